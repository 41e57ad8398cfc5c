"""Means over layers and changes between checkpoints, with intervals over prompts, units or documents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechclust.commands.history.curves import Curve
from probes.functional.halves import interval_from_halves

Ends = tuple[float, float]


def mean_over_layers(curve: Curve, at: int) -> tuple[float, Ends]:
    """Return the mean over layers at a checkpoint with its 95% interval, whose ends are NaN if there is none."""
    halves = None if curve.halves is None else curve.halves[at]
    return _mean_with_ends(curve, curve.value[at], halves)


def mean_change(curve: Curve, first: int, last: int) -> tuple[float, Ends]:
    """Return the mean over layers of the change between two checkpoints with its 95% interval."""
    halves = None if curve.halves is None else curve.halves[last] - curve.halves[first]
    return _mean_with_ends(curve, curve.value[last] - curve.value[first], halves)


def _mean_with_ends(
    curve: Curve, values: Float[np.ndarray, "layer"], halves: Float[np.ndarray, "layer half"] | None
) -> tuple[float, Ends]:
    known = np.isfinite(values)
    mean = np.array(values[known].mean())
    if halves is None:
        return float(mean), (np.nan, np.nan)
    low, high = interval_from_halves(mean, halves[known].mean(axis=0), curve.n_units)
    return float(mean), (float(low), float(high))


def measured_ends(curve: Curve, right: Sequence[int]) -> list[int]:
    """Return the first and the last checkpoint at which any layer is measured, once if they are the same."""
    measured = [i for i in right if np.isfinite(curve.value[i]).any()]
    return sorted({*measured[:1], *measured[-1:]})
