"""What the runs of the study measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from mechclust.evidence.intervals import interval_over_seeds
from mechclust.studies.cluster_factors.config import (
    TRAIN,
    VALIDATION,
    ClusterFactorsConfig,
    measured_steps,
    names_of,
    results_of,
)
from mechclust.studies.kept import check_there
from mechclust.studies.study import Job
from mechclust.training import load_steps
from probes import load_result

if TYPE_CHECKING:
    import pandas as pd

# Curve (position and label) -> the file that holds it, and the label's name in that file.
CURVES: Mapping[str, tuple[str, str]] = {
    "x task": ("x", "task"),
    "x output": ("x", "output"),
    "x input": ("x-input", "input"),
    "x task|output": ("x-task-given-output", "task"),
    "x output|task": ("x-output-given-task", "output"),
    "instruction task": ("instruction", "task"),
    "mean task": ("mean", "task"),
    "mean output": ("mean", "output"),
    "mean input": ("mean-input", "input"),
}
LINEAR = "x task, linear"


@dataclass(frozen=True)
class RunResults:
    """What one run measured over training.

    Attributes:
        steps: ``[steps]`` at which the run was measured.
        ari: by the names of ``CURVES``, ``[steps layers]`` adjusted Rand index; layers 0 to n.
        ami: the same for adjusted mutual information.
        null: the same with a last axis of 3: lower and upper end of the central 95% under relabelling, and the mean.
            Relabelling is within the classes of the input at ``x`` and over the prompt, and within those of the other
            label for the partial measures.
        linear: ``[steps layers]`` accuracy of a linear classifier that reads the task at ``x``.
        linear_null: ``[steps layers 2]`` its central 95% with the labels shuffled.
        train_ari: ``[layers]`` task-ARI at ``x`` at the end, on the training subset.
        accuracy: ``[steps]`` on the validation subset.
        swapped: by ``became`` and ``stayed``, ``[position kind layer]`` as ``swap_centroids`` measures them.
        loss: ``[training steps]`` in nats.
        notes: of the last checkpoint, such as why a value is undefined.
    """

    steps: np.ndarray
    ari: Mapping[str, np.ndarray]
    ami: Mapping[str, np.ndarray]
    null: Mapping[str, np.ndarray]
    linear: np.ndarray
    linear_null: np.ndarray
    train_ari: np.ndarray
    accuracy: np.ndarray
    swapped: Mapping[str, np.ndarray]
    loss: np.ndarray
    notes: tuple[str, ...] = ()

    def at(self, step: int) -> int:
        """The index of a step in ``steps``."""
        return int(np.flatnonzero(self.steps == step)[0])


Found = Mapping[str, Sequence[RunResults]]  # by arm, in the order of the seeds


def load_results(config: ClusterFactorsConfig, out: Path, job: Job) -> RunResults:
    """Read a run's results.

    Raises:
        InputError: if a result is missing; the text names it.
    """
    check_there(out, results_of(config, job, out))
    folder, steps = out / "results" / job.name, measured_steps(config)
    held = {name: load_steps(folder, f"{VALIDATION}.{name}") for name in names_of(job.arm)}

    def stack(name: str, label: str, *measures: str) -> np.ndarray:
        found = [[held[name][step].sel(m, label=label).numpy() for m in measures] for step in steps]
        return np.moveaxis(np.array(found), 1, -1)

    curves = {curve: of for curve, of in CURVES.items() if of[0] in held}
    accuracy = load_steps(folder, f"{VALIDATION}.accuracy")
    swap = load_result(folder / "swap.safetensors")
    train = load_result(folder / f"step-{steps[-1]:06d}.{TRAIN}.x.safetensors")
    last = [note for name in held for note in held[name][steps[-1]].notes]
    return RunResults(
        steps=np.array(steps),
        ari={curve: stack(*of, "ari")[..., 0] for curve, of in curves.items()},
        ami={curve: stack(*of, "ami")[..., 0] for curve, of in curves.items()},
        null={curve: stack(*of, "null_low", "null_high", "null_mean") for curve, of in curves.items()},
        linear=stack("x-linear", "task", "accuracy")[..., 0],
        linear_null=stack("x-linear", "task", "null_low", "null_high"),
        train_ari=train.sel("ari", label="task").numpy(),
        accuracy=np.array([float(accuracy[step]["accuracy"]) for step in steps]),
        swapped={name: swap[name].numpy() for name in ("became", "stayed")},
        loss=load_result(folder / "loss.safetensors")["loss"].numpy(),
        notes=tuple(dict.fromkeys(last)),
    )


def by_arm(config: ClusterFactorsConfig, runs: Mapping[Job, RunResults]) -> dict[str, list[RunResults]]:
    """Each arm's runs, in the order of the seeds."""
    return {arm: [run for job, run in runs.items() if job.arm == arm] for arm in config.arms}


def table_of(found: Found, measure: Literal["ari", "ami"]) -> pd.DataFrame:
    """The last layer at the end of training: one row per arm, one column per curve; means with 95% intervals."""
    import pandas as pd

    rows = []
    for arm, runs in found.items():
        curves = [[getattr(run, measure).get(curve, _UNKNOWN)[-1, -1] for run in runs] for curve in CURVES]
        linear = [run.linear[-1, -1] for run in runs]
        rows.append([arm, *map(_cell, curves), _cell(linear, share=True)])
    return pd.DataFrame(rows, columns=["arm", *CURVES, f"{LINEAR} (accuracy)"])


_UNKNOWN = np.full((1, 1), np.nan)


def _cell(values: Sequence[float], *, share: bool = False) -> str:
    """Return the mean and its interval as text."""
    if not np.isfinite(values).all():
        return "–"
    span = interval_over_seeds([float(v) for v in values], share=share)
    return f"{np.mean(values):z.2f}" + ("" if span is None else f" ({span[0]:z.2f} to {span[1]:z.2f})")
