"""Reads the measurements of all runs, arm by arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from mechclust.evidence.intervals import UNKNOWN, mean_with_interval
from mechclust.studies.cluster_factors.config import ClusterFactorsConfig, measured_steps
from mechclust.studies.cluster_factors.measurements import CURVES, probes_of
from mechclust.studies.kept import load_required, load_required_by_step
from mechclust.studies.study import Job
from probes import ProbeResult
from tasks.instructions import VALIDATION_SUBSET

if TYPE_CHECKING:
    import pandas as pd

_LINEAR = "x task, linear (accuracy)"
_Curves = Mapping[str, Float[np.ndarray, "seed step layer"]]
_Measured = Mapping[str, Sequence[Sequence[ProbeResult]]]  # by probe, seed and step


@dataclass(frozen=True)
class ArmResults:
    """Measurements of an arm's networks over training, at layers 0 to n.

    Attributes:
        steps: measured checkpoints.
        ari: adjusted Rand index, by the names of ``CURVES``. An arm lacks curves that its outputs leave undefined.
        null: lower and upper end of the central 95% of ``ari`` under relabelling. Labels are exchanged within the
            classes of the input at ``x`` and over the prompt. For the partial measures, they are exchanged within the
            classes of the other label.
        linear: accuracy of a linear classifier that reads the task at ``x``.
        accuracy: accuracy on the validation subset.
        became: share of answers that become another task's, as ``swap_centroids`` measures it at the end.
    """

    steps: Int[np.ndarray, "step"]
    ari: _Curves
    null: Mapping[str, Float[np.ndarray, "seed step layer 2"]]
    linear: Float[np.ndarray, "seed step layer"]
    accuracy: Float[np.ndarray, "seed step"]
    became: Float[np.ndarray, "seed position kind layer"]


Results = Mapping[str, ArmResults]  # by arm


def load(config: ClusterFactorsConfig, out: Path) -> dict[str, ArmResults]:
    """Read the results of every arm that was run.

    Raises:
        InputError: naming the result that is missing.
    """
    return {arm: _load_arm(config, out, arm) for arm in config.arms}


def _load_arm(config: ClusterFactorsConfig, out: Path, arm: str) -> ArmResults:
    """Read the results of one arm, in the order of the seeds."""
    steps = measured_steps(config)
    folders = [out / "results" / Job(arm, seed).name for seed in config.seeds]
    measured = {}
    for name in [*probes_of(config, arm), "accuracy"]:
        runs = [load_required_by_step(out, folder, f"{VALIDATION_SUBSET}.{name}", steps) for folder in folders]
        measured[name] = [list(run.values()) for run in runs]
    null_low = _curves(measured, "null_low")
    null_high = _curves(measured, "null_high")
    swaps = [load_required(out, folder / "swap.safetensors") for folder in folders]
    return ArmResults(
        steps=np.array(steps),
        ari=_curves(measured, "ari"),
        null={curve: np.stack([low, null_high[curve]], axis=-1) for curve, low in null_low.items()},
        linear=_stack(measured["x-linear"], "accuracy", "task"),
        accuracy=np.array([[float(result["accuracy"]) for result in run] for run in measured["accuracy"]]),
        became=np.stack([swap["became"].numpy() for swap in swaps]),
    )


def _curves(measured: _Measured, measure: str) -> _Curves:
    """Return a measure of every curve whose probe was run."""
    return {
        curve: _stack(measured[probe], measure, label) for curve, (probe, label) in CURVES.items() if probe in measured
    }


def _stack(results: Sequence[Sequence[ProbeResult]], measure: str, label: str) -> Float[np.ndarray, "seed step layer"]:
    return np.array([[result.sel(measure, label=label).numpy() for result in run] for run in results])


def table_of(results: Results) -> pd.DataFrame:
    """Return mean indices over seeds with 95% intervals, in the last layer at the end: a row per arm."""
    import pandas as pd

    rows = []
    for name, arm in results.items():
        cells = {curve: mean_with_interval(index[:, -1, -1]) for curve, index in arm.ari.items()}
        rows.append({"arm": name, **cells, _LINEAR: mean_with_interval(arm.linear[:, -1, -1], share=True)})
    return pd.DataFrame(rows, columns=["arm", *CURVES, _LINEAR]).fillna(UNKNOWN)
