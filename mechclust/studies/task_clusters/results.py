"""Reads the measurements of the task-cluster study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from mechclust.studies.kept import load_required, load_required_by_step
from mechclust.studies.study import Job
from mechclust.studies.task_clusters.config import TaskClustersConfig, jobs, pictured_steps
from probes import ProbeResult
from tasks.instructions import TRAIN_SUBSET, VALIDATION_SUBSET


@dataclass(frozen=True)
class RunResults:
    """Measurements of one run over training.

    Attributes:
        steps: of the checkpoints.
        ari: task-ARI by split. Sites are layers 0 to n, then the final norm.
        output_ari: ARI against output labels, on the validation subset.
        null: of the task-ARI when examples are relabelled within the classes of the input, on validation. It has lower
            and upper end of the central 95%, and the mean.
        tsne: task-ARI after t-SNE at the end, on validation. ``None`` if not measured.
        accuracy: on the validation subset.
        loss: training loss in nats.
        projections: hidden states in two dimensions by step, of the first run.
    """

    steps: Int[np.ndarray, "checkpoint"]
    ari: Mapping[str, Float[np.ndarray, "checkpoint site"]]
    output_ari: Float[np.ndarray, "checkpoint site"]
    null: Float[np.ndarray, "checkpoint site 3"]
    tsne: Float[np.ndarray, "site"] | None
    accuracy: Float[np.ndarray, "checkpoint"]
    loss: Float[np.ndarray, "step"]
    projections: Mapping[int, ProbeResult] = field(default_factory=dict)


def load(config: TaskClustersConfig, out: Path) -> dict[Job, RunResults]:
    """Read the results of all runs.

    Raises:
        InputError: naming the result that is missing.
    """
    return {job: load_results(config, out, job) for job in jobs(config)}


def load_results(config: TaskClustersConfig, out: Path, job: Job) -> RunResults:
    """Read a run's results.

    Raises:
        InputError: naming the result that is missing.
    """
    folder = out / "results" / job.name
    load_steps = partial(load_required_by_step, out, folder)
    steps = config.training.checkpoint_steps
    by_split = {split: load_steps(f"{split}.ari", steps) for split in (TRAIN_SUBSET, VALIDATION_SUBSET)}
    validation = by_split[VALIDATION_SUBSET]
    null = [_stack(validation, end, "task") for end in ("null_low", "null_high", "null_mean")]
    accuracy = load_steps(f"{VALIDATION_SUBSET}.accuracy", steps)
    tsne = None
    if config.tsne:
        (at_end,) = load_steps(f"{VALIDATION_SUBSET}.ari-tsne", steps[-1:]).values()
        tsne = at_end.sel("ari", label="task").numpy()
    pictured = pictured_steps(config) if job == jobs(config)[0] else []
    return RunResults(
        steps=np.array(list(validation)),
        ari={split: _stack(by_step, "ari", "task") for split, by_step in by_split.items()},
        output_ari=_stack(validation, "ari", "output"),
        null=np.stack(null, axis=-1),
        tsne=tsne,
        accuracy=np.array([float(result["accuracy"]) for result in accuracy.values()]),
        loss=load_required(out, folder / "loss.safetensors")["loss"].numpy(),
        projections=load_steps(f"{VALIDATION_SUBSET}.projection", pictured),
    )


def _stack(by_step: Mapping[int, ProbeResult], measure: str, label: str) -> Float[np.ndarray, "checkpoint site"]:
    return np.stack([result.sel(measure, label=label).numpy() for result in by_step.values()])


def by_arm(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> dict[str, list[RunResults]]:
    """Return each arm's runs, in the order of the seeds."""
    return {arm: [run for job, run in runs.items() if job.arm == arm] for arm in config.arms}


def headline(config: TaskClustersConfig, runs: Mapping[Job, RunResults]) -> str:
    """Say how well clusters agree with the task at the top layer: after training, before it and by chance."""
    top = config.n_layers
    private = by_arm(config, runs)["private"]
    curves = [run.ari[VALIDATION_SUBSET][:, top] for run in private]
    after = np.mean([curve[-1] for curve in curves])
    before = np.mean([curve[0] for curve in curves])
    chance = max(run.null[-1, top, 1] for run in private)
    return (
        f"Task-ARI of layer {top}: {after:z.2f} after training, {before:z.2f} before (means over seeds); by chance at "
        f"most {chance:z.2f} in any seed."
    )
