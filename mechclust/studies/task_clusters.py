"""Task clusters: hidden states of a causal LM cluster by task as it learns to follow instructions.

Wu & Varshney, "Transformer-based Causal Language Models Perform Clustering" (arXiv 2402.12151).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mechclust.execution import check_device
from mechclust.models import build_model, load_model, model_for
from mechclust.studies.claims import Bound, Claim, claim
from mechclust.studies.study import Analysis, Panel, Study, check_seeds
from mechclust.training import AccuracyCallback, CheckpointCallback, ProbeCallback, TrainConfig, train
from mechclust.training.callbacks import load_steps, save_losses
from probes import ProbeResult, Projection, TaskClusterARI, residual, token_at
from tasks import InputError, InstructionFollowing

_PAPER = "Wu & Varshney"
_ARMS: Mapping[str, Mapping[str, Any]] = {
    "private": {"outputs": "private", "split_by": "instance"},
    "instruction": {"outputs": "private", "split_by": "instruction"},
    "shared": {"outputs": "shared", "split_by": "instance"},
}
_VALIDATION, _TRAIN = "validation_subset", "train_subset"


@dataclass(frozen=True)
class TaskClustersConfig:
    """Settings of the task-cluster study.

    Args:
        seeds: one training run per seed and arm; the seed draws the tasks and the initial weights.
        arms: ``private``: each task has output tokens of its own (the primary arm); ``instruction``:
            the same, validation instructions never seen; ``shared``: all tasks share outputs.
        task: the data; its ``seed``, ``outputs`` and ``split_by`` are set by the run.
        shared_outputs: output tokens in the ``shared`` arm.
        training: the training loop.
        n_layers: transformer blocks.
        d_model: width.
        n_heads: attention heads.
        n_init: k-means starts.
        n_permutations: random relabellings behind each null interval.
        tsne: also measure after t-SNE, at the end of training.
        device: where to train, such as ``cpu`` or ``cuda``.
        test_claims: whether this size can test the claims.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    arms: tuple[str, ...] = ("private", "instruction", "shared")
    task: InstructionFollowing = InstructionFollowing()
    shared_outputs: int = 10
    training: TrainConfig = TrainConfig()
    n_layers: int = 6
    d_model: int = 128
    n_heads: int = 4
    n_init: int = 10
    n_permutations: int = 1000
    tsne: bool = True
    device: str = "cpu"
    test_claims: bool = True

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        own = InstructionFollowing()
        for name in ("seed", "outputs", "split_by"):
            if getattr(self.task, name) != getattr(own, name):
                raise InputError(f"task.{name} is set by each run, from seeds and arms; leave it out and set those")
        if unknown := [arm for arm in self.arms if arm not in _ARMS]:
            raise InputError(f"no arm {unknown[0]!r} (there are {', '.join(_ARMS)})")
        if "private" not in self.arms:
            raise InputError("arms lacks 'private', the primary arm that the claims are about; add it")

    def task_of(self, job: Job) -> InstructionFollowing:
        """The data of one run."""
        task = replace(self.task, seed=job.seed, **_ARMS[job.arm])
        return replace(task, n_outputs=self.shared_outputs) if job.arm == "shared" else task


class Job(NamedTuple):
    """One training run."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-seed{self.seed}"


def _jobs(config: TaskClustersConfig) -> list[Job]:
    check_device(config.device)
    return [Job(arm, seed) for seed in config.seeds for arm in config.arms]


def _picture_steps(config: TaskClustersConfig) -> list[int]:
    """The steps of the projection figure: untrained, a little trained, trained."""
    steps = config.training.checkpoint_steps
    return [0, steps[len(steps) // 2], steps[-1]]


def _run_job(config: TaskClustersConfig, job: Job, out: Path) -> None:
    task = config.task_of(job)
    shape = {"n_layers": config.n_layers, "d_model": config.d_model, "n_heads": config.n_heads}
    model = build_model(model_for(task, seed=job.seed, **shape))
    if config.device != "cpu":
        model.to(config.device)
    results, end = out / "results" / job.name, config.training.steps
    batches = {split: list(task.batches(split)) for split in (_TRAIN, _VALIDATION)}
    at = residual(final_norm=True)
    measure = TaskClusterARI(also=("output",), at=at, n_init=config.n_init, n_permutations=config.n_permutations)
    validation = {_VALIDATION: batches[_VALIDATION]}
    callbacks: list[Any] = [
        CheckpointCallback(out / "models" / job.name, at=[end]),
        AccuracyCallback(results, task, _VALIDATION),
        ProbeCallback(results, batches, {"ari": measure}),
    ]
    if config.tsne:
        probes = {"ari-tsne": TaskClusterARI(**{**measure.parameters(), "reduce": "tsne"})}
        callbacks.append(ProbeCallback(results, validation, probes, at=[end]))
    if job == _jobs(config)[0]:
        picture = Projection(at=residual(), readout=token_at("input"))
        callbacks.append(ProbeCallback(results, validation, {"projection": picture}, at=_picture_steps(config)))
    losses = train(model, task, config.training, out / "models" / job.name, callbacks, progress=True, name=job.name)
    path = results / "loss.safetensors"
    if path.exists():
        return
    save_losses(losses, path)


@dataclass(frozen=True)
class Curves:
    """What one run measured over training.

    Attributes:
        steps: ``[checkpoints]``.
        ari: split to ``[checkpoints sites]`` task-ARI.
        output_ari: the same against output labels, on the validation subset.
        null: ``[checkpoints sites 2]`` central 95% of the task-ARI under relabelling, validation.
        tsne: ``[sites]`` task-ARI after t-SNE at the end, validation; ``None`` when not measured.
        accuracy: ``[checkpoints]`` on the validation subset.
        loss: ``[steps]`` training loss in nats.
    """

    steps: np.ndarray
    ari: Mapping[str, np.ndarray]
    output_ari: np.ndarray
    null: np.ndarray
    tsne: np.ndarray | None
    accuracy: np.ndarray
    loss: np.ndarray


def load_curves(config: TaskClustersConfig, out: Path, job: Job) -> Curves:
    """Read a run's artefacts."""
    folder = out / "results" / job.name
    found = {split: load_steps(folder, f"{split}.ari") for split in (_TRAIN, _VALIDATION)}
    if config.training.steps not in found[_VALIDATION]:
        raise InputError(f"{str(out)!r} lacks the end of run {job.name}; start the study again with the same --out")

    def stack(split: str, measure: str, label: str) -> np.ndarray:
        return np.stack([r.sel(measure, label=label).numpy() for r in found[split].values()])

    tsne = load_steps(folder, f"{_VALIDATION}.ari-tsne")
    accuracy = load_steps(folder, f"{_VALIDATION}.accuracy")
    bands = [stack(_VALIDATION, measure, "task") for measure in ("null_low", "null_high")]
    return Curves(
        steps=np.array(list(found[_VALIDATION])),
        ari={split: stack(split, "ari", "task") for split in found},
        output_ari=stack(_VALIDATION, "ari", "output"),
        null=np.stack(bands, axis=-1),
        tsne=tsne[config.training.steps].sel("ari", label="task").numpy() if tsne else None,
        accuracy=np.array([float(r["accuracy"]) for r in accuracy.values()]),
        loss=ProbeResult.load(folder / "loss.safetensors")["loss"].numpy(),
    )


def _by_arm(config: TaskClustersConfig, curves: Mapping[Job, Curves]) -> dict[str, list[Curves]]:
    return {arm: [c for job, c in curves.items() if job.arm == arm] for arm in config.arms}


def _claims(config: TaskClustersConfig, curves: Mapping[Job, Curves]) -> list[Claim]:
    """The claims T1 to T10 of spec 1, with their bounds. Sites are layers 0 to n, then the final norm."""
    from scipy.stats import spearmanr

    arms = _by_arm(config, curves)
    n, tested = config.n_layers, config.test_claims
    layers = slice(0, n + 1)
    chance = f"0; relabelled, 95% within {_band(arms['private'])}"

    def top(c: Curves) -> int:  # the better of the two top layers, by the end's validation ARI
        return max((n - 1, n), key=lambda layer: c.ari[_VALIDATION][-1, layer])

    def grows(cs: Sequence[Curves]) -> list[tuple[str, list[float], Bound]]:
        ends = [float(c.ari[_VALIDATION][-1, top(c)]) for c in cs]
        starts = [float(c.ari[_VALIDATION][0, top(c)]) for c in cs]
        growth = [end - 5 * start for end, start in zip(ends, starts, strict=True)]
        return [("end", ends, Bound(">=", 0.5)), ("end - 5 x start", growth, Bound(">=", 0))]

    def rho(x: Sequence[float], y: np.ndarray) -> float:
        return float(spearmanr(x, y).statistic) if np.ptp(y) > 0 else math.nan  # a flat curve has no rank

    private = arms["private"]
    rises = [rho(c.steps.tolist(), c.ari[_VALIDATION][:, top(c)]) for c in private]
    late = [_late_change(c, top(c), config.training.steps) for c in private]
    by_layer = [rho(range(n + 1), c.ari[_VALIDATION][-1, layers]) for c in private]
    climb = [float(c.ari[_VALIDATION][-1, n] - c.ari[_VALIDATION][-1, 1]) for c in private]
    flat = [float(np.ptp(c.ari[_VALIDATION][:, 0])) for c in private]
    low = [float(c.ari[_VALIDATION][:, 0].max()) for c in private]
    agree = [abs(float(c.ari[_VALIDATION][-1, n] - c.ari[_TRAIN][-1, n])) for c in private]
    start = [float(c.ari[_VALIDATION][0].max()) for c in private]
    guess = [config.task_of(job).input_only_accuracy() for job in curves if job.arm == "private"]
    n_eval_tasks = min(config.task.n_eval_tasks, config.task.n_tasks)
    by_output = [float(c.output_ari[-1, n] - c.ari[_VALIDATION][-1, n]) for c in arms.get("shared", [])]
    unseen = arms.get("instruction", [])
    options: dict[str, Any] = {"tested": tested}
    top_name = f"layer {n - 1} or {n}, the better at the end"
    return [
        claim("T1", "validation accuracy at the end", "set-up", [float(c.accuracy[-1]) for c in private],
              Bound(">=", 0.95), **options),
        claim("T2", f"task-ARI of the top layer ({top_name}) is high and far above its start", f"{_PAPER}; bound ours",
              grows(private)[0][1], grows(private), chance=chance, **options),
        claim("T3", "top-layer task-ARI rises with log step, then saturates (last third of training)", _PAPER, rises,
              [("Spearman", rises, Bound(">", 0.8)), ("late change", late, Bound("<", 0.1))], **options),
        claim("T4", f"task-ARI at the end rises with layer, 0 to {n}", _PAPER, by_layer,
              [("Spearman", by_layer, Bound(">", 0.8)), (f"layer {n} - layer 1", climb, Bound(">=", 0.2))], **options),
        claim("T5", "layer 0 (word embedding) stays flat and low over training", _PAPER, flat,
              [("range", flat, Bound("<=", 0.05)), ("maximum", low, Bound("<=", 0.15))], **options,
              note="one point per input token, fewer than clusters: the partition is the token itself"),
        claim("T6", f"training subset and validation agree at layer {n}, at the end", _PAPER, agree,
              Bound("<=", 0.1), **options),
        claim("T7", "before training no layer clusters by task (largest task-ARI)", _PAPER, start,
              Bound("<=", 0.1), chance=chance, **options),
        claim("T8", "x alone predicts the task little better than chance", f"{_PAPER}; bound ours (3 x chance)", guess,
              Bound("<=", 3 / n_eval_tasks), chance=f"{1 / n_eval_tasks:.3g}", **options),
        claim("T9", f"shared outputs: layer {n} clusters by output more than by task (difference of ARI)", "ours",
              by_output, Bound(">", 0), **options),
        claim("T10", f"instructions never seen cluster too ({top_name})", f"{_PAPER}; bound ours",
              grows(unseen)[0][1], grows(unseen), chance=chance, **options),
    ]  # fmt: skip


def _late_change(c: Curves, layer: int, steps: int) -> float:
    """Change of the validation task-ARI over the last third of training."""
    two_thirds = int(np.searchsorted(c.steps, 2 * steps / 3))
    return abs(float(c.ari[_VALIDATION][-1, layer] - c.ari[_VALIDATION][two_thirds, layer]))


def _band(curves: Sequence[Curves]) -> str:
    low, high = (np.mean([c.null[..., i].mean() for c in curves]) for i in (0, 1))
    return f"{low:.3f} to {high:.3f}"


def _analyse(config: TaskClustersConfig, out: Path) -> Analysis:
    from mechclust.views import attention_view
    from mechclust.views import task_clusters as figures

    curves = {job: load_curves(config, out, job) for job in _jobs(config)}
    first = _jobs(config)[0]
    task = config.task_of(first)
    example = next(task.batches(_VALIDATION, batch_size=1))
    model = load_model(out / "models" / first.name / f"step-{config.training.steps:06d}.safetensors")
    length = int(example.lengths()[0])
    view = attention_view(model, example.tokens[:, :length], str_tokens=task.to_str_tokens(example.tokens[0, :length]))
    pictures = load_steps(out / "results" / first.name, f"{_VALIDATION}.projection")
    by_arm = _by_arm(config, curves)
    panels = [
        Panel(
            "ari_over_training",
            figures.ari_over_training(by_arm["private"]),
            "Task-ARI over training, one line a layer (mean over seeds, band: least to greatest seed); training "
            "subset left, validation right. FN: after the final norm. Grey: 95% of the index under relabelling.",
        ),
        Panel(
            "ari_by_layer",
            figures.ari_by_layer(by_arm),
            "ARI by layer at the end, against task and against output, for each arm; one thin line a seed. "
            "FN: after the final norm. t-SNE, where measured, is drawn apart and never mixed into a curve.",
        ),
        Panel(
            "projection",
            figures.projections(pictures),
            "Hidden states at x in two dimensions (t-SNE; PCA where the states are few points), "
            f"run {first.name}, coloured by task.",
        ),
        Panel("accuracy_and_loss", figures.accuracy_and_loss(curves), "Validation accuracy and loss of every run."),
    ]
    return Analysis(
        claims=_claims(config, curves),
        panels=panels,
        views={f"Attention of run {first.name} on a validation example": view.fragment()},
        notes=[
            "Which outputs the tasks share decides the result: with shared outputs the top layers cluster by output, "
            "not by task. The claims but T9 and T10 are about the arm with private outputs.",
            "Layer 0 is the token embedding of x without position: at most one point per input token, so k-means "
            "has fewer points than clusters there and each point is a cluster of its own.",
            "Each label is clustered with as many clusters as it has classes.",
        ],
    )


_SMALL = TaskClustersConfig(
    seeds=(0, 1),
    task=InstructionFollowing(n_tasks=20, n_eval=500),
    arms=("private", "shared"),
    training=TrainConfig(steps=600, batch_size=128),
    d_model=64,
    n_init=4,
    n_permutations=200,
    tsne=False,
)

STUDY = Study(
    name="task-clusters",
    title="Task clusters: hidden states of a causal LM cluster by task",
    source="Wu & Varshney, Transformer-based Causal Language Models Perform Clustering (arXiv 2402.12151)",
    presets={
        "smoke": TaskClustersConfig(
            seeds=(0,),
            task=InstructionFollowing(n_tasks=4, variants=12, n_eval=60),
            training=TrainConfig(steps=20, batch_size=32, n_checkpoints=3),
            n_layers=2,
            d_model=32,
            n_init=1,
            n_permutations=50,
            test_claims=False,
        ),
        "quick": _SMALL,
        "paper": TaskClustersConfig(),
        "gpt2": TaskClustersConfig(d_model=768, n_heads=12, device="cuda"),
    },
    jobs=_jobs,
    run_job=_run_job,
    analyse=_analyse,
)
