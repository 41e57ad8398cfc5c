"""What a run of the task-cluster study measured, and the claims T1 to T10 about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechclust.report.claims import Bound, Claim, claim
from mechclust.training.callbacks import load_steps
from probes import load_result
from tasks import InputError

if TYPE_CHECKING:
    from mechclust.studies.task_clusters.study import Job, TaskClustersConfig

_PAPER = "Wu & Varshney"
VALIDATION, TRAIN = "validation_subset", "train_subset"


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
    found = {split: load_steps(folder, f"{split}.ari") for split in (TRAIN, VALIDATION)}
    if config.training.steps not in found[VALIDATION]:
        raise InputError(f"{str(out)!r} lacks the end of run {job.name}; start the study again with the same --out")

    def stack(split: str, measure: str, label: str) -> np.ndarray:
        return np.stack([r.sel(measure, label=label).numpy() for r in found[split].values()])

    tsne = load_steps(folder, f"{VALIDATION}.ari-tsne")
    accuracy = load_steps(folder, f"{VALIDATION}.accuracy")
    bands = [stack(VALIDATION, measure, "task") for measure in ("null_low", "null_high")]
    return Curves(
        steps=np.array(list(found[VALIDATION])),
        ari={split: stack(split, "ari", "task") for split in found},
        output_ari=stack(VALIDATION, "ari", "output"),
        null=np.stack(bands, axis=-1),
        tsne=tsne[config.training.steps].sel("ari", label="task").numpy() if tsne else None,
        accuracy=np.array([float(r["accuracy"]) for r in accuracy.values()]),
        loss=load_result(folder / "loss.safetensors")["loss"].numpy(),
    )


def by_arm(config: TaskClustersConfig, curves: Mapping[Job, Curves]) -> dict[str, list[Curves]]:
    return {arm: [c for job, c in curves.items() if job.arm == arm] for arm in config.arms}


def claims_of(config: TaskClustersConfig, curves: Mapping[Job, Curves]) -> list[Claim]:
    """The claims T1 to T10, with their bounds. Sites are layers 0 to n, then the final norm."""
    from scipy.stats import spearmanr

    arms = by_arm(config, curves)
    n, tested = config.n_layers, config.test_claims
    layers = slice(0, n + 1)
    chance = f"0; relabelled, 95% within {_band(arms['private'])}"

    def top(c: Curves) -> int:  # the better of the two top layers, by the end's validation ARI
        return max((n - 1, n), key=lambda layer: c.ari[VALIDATION][-1, layer])

    def grows(cs: Sequence[Curves]) -> list[tuple[str, list[float], Bound]]:
        ends = [float(c.ari[VALIDATION][-1, top(c)]) for c in cs]
        starts = [float(c.ari[VALIDATION][0, top(c)]) for c in cs]
        growth = [end - 5 * start for end, start in zip(ends, starts, strict=True)]
        return [("end", ends, Bound(">=", 0.5)), ("end - 5 x start", growth, Bound(">=", 0))]

    def rho(x: Sequence[float], y: np.ndarray) -> float:
        return float(spearmanr(x, y).statistic) if np.ptp(y) > 0 else math.nan  # a flat curve has no rank

    private = arms["private"]
    rises = [rho(c.steps.tolist(), c.ari[VALIDATION][:, top(c)]) for c in private]
    late = [_late_change(c, top(c), config.training.steps) for c in private]
    by_layer = [rho(range(n + 1), c.ari[VALIDATION][-1, layers]) for c in private]
    climb = [float(c.ari[VALIDATION][-1, n] - c.ari[VALIDATION][-1, 1]) for c in private]
    flat = [float(np.ptp(c.ari[VALIDATION][:, 0])) for c in private]
    low = [float(c.ari[VALIDATION][:, 0].max()) for c in private]
    agree = [abs(float(c.ari[VALIDATION][-1, n] - c.ari[TRAIN][-1, n])) for c in private]
    start = [float(c.ari[VALIDATION][0].max()) for c in private]
    guess = [config.task_of(job).input_only_accuracy() for job in curves if job.arm == "private"]
    n_eval_tasks = min(config.task.n_eval_tasks, config.task.n_tasks)
    by_output = [float(c.output_ari[-1, n] - c.ari[VALIDATION][-1, n]) for c in arms.get("shared", [])]
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
    return abs(float(c.ari[VALIDATION][-1, layer] - c.ari[VALIDATION][two_thirds, layer]))


def _band(curves: Sequence[Curves]) -> str:
    low, high = (np.mean([c.null[..., i].mean() for c in curves]) for i in (0, 1))
    return f"{low:.3f} to {high:.3f}"
