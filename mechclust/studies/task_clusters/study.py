"""Task clusters: hidden states of a causal LM cluster by task as it learns to follow instructions.

Wu & Varshney, "Transformer-based Causal Language Models Perform Clustering" (arXiv 2402.12151).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mechclust.models import build_model, load_model, model_for
from mechclust.report.analysis import Analysis, Panel
from mechclust.studies.extra_probes import Subject
from mechclust.studies.study import Study, check_seeds
from mechclust.studies.task_clusters.claims import TRAIN, VALIDATION, by_arm, claims_of, load_curves
from mechclust.training import AccuracyCallback, CheckpointCallback, ProbeCallback, TrainConfig, train
from mechclust.training.callbacks import load_steps, save_losses
from probes import HookedModel, Projection, TaskClusterARI, residual, token_at
from probes.hooks import check_device
from tasks import Batch, InputError, InstructionFollowing

_PAPER = "Wu & Varshney"
_ARMS: Mapping[str, Mapping[str, Any]] = {
    "private": {"outputs": "private", "split_by": "instance"},
    "instruction": {"outputs": "private", "split_by": "instruction"},
    "shared": {"outputs": "shared", "split_by": "instance"},
}


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
    batches = {split: list(task.batches(split)) for split in (TRAIN, VALIDATION)}
    at = residual(final_norm=True)
    measure = TaskClusterARI(also=("output",), at=at, n_init=config.n_init, n_permutations=config.n_permutations)
    validation = {VALIDATION: batches[VALIDATION]}
    callbacks: list[Any] = [
        CheckpointCallback(out / "models" / job.name, at=[end]),
        AccuracyCallback(results, task, VALIDATION),
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


def _subjects(config: TaskClustersConfig, out: Path) -> list[Subject]:
    return [Subject(job.name, partial(_subject, config, out, job)) for job in _jobs(config)]


def _subject(config: TaskClustersConfig, out: Path, job: Job) -> tuple[HookedModel, Iterable[Batch]]:
    path = out / "models" / job.name / f"step-{config.training.steps:06d}.safetensors"
    return load_model(path), config.task_of(job).batches(VALIDATION)


def _analyse(config: TaskClustersConfig, out: Path) -> Analysis:
    from mechclust.attention import attention_view
    from mechclust.studies.task_clusters import figures as figures

    curves = {job: load_curves(config, out, job) for job in _jobs(config)}
    first = _jobs(config)[0]
    task = config.task_of(first)
    example = next(task.batches(VALIDATION, batch_size=1))
    model = load_model(out / "models" / first.name / f"step-{config.training.steps:06d}.safetensors")
    length = int(example.lengths()[0])
    view = attention_view(model, example.tokens[:, :length], str_tokens=task.to_str_tokens(example.tokens[0, :length]))
    pictures = load_steps(out / "results" / first.name, f"{VALIDATION}.projection")
    arms = by_arm(config, curves)
    panels = [
        Panel(
            "ari_over_training",
            figures.ari_over_training(arms["private"]),
            "Task-ARI over training, one line a layer (mean over seeds, band: least to greatest seed); training "
            "subset left, validation right. FN: after the final norm. Grey: 95% of the index under relabelling.",
        ),
        Panel(
            "ari_by_layer",
            figures.ari_by_layer(arms),
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
        claims=claims_of(config, curves),
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
    subjects=_subjects,
)
