"""The layer from which one curve stays above another."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike

from mechclust.mossa.task_curves import ByLayer, TaskCurves

Layers: TypeAlias = Int[np.ndarray, "..."] | np.integer[Any]
_MAX_EXCEPTIONS = 1  # layers that are not above, after a crossover


def crossover(base: ArrayLike, tuned: ArrayLike, margin: float = 0.0) -> int:
    """Return the first layer from which ``tuned - base`` stays above ``margin``, with at most one exception.

    Layers count from 1. The result is one more than there are if it never does. A layer with NaN is not above.

    Example:
        >>> crossover([1.0, 0.9, 0.8, 0.8, 0.7], [0.9, 0.8, 0.9, 0.8, 0.9])
        3
    """
    base = np.asarray(base, dtype=float)
    tuned = np.asarray(tuned, dtype=float)
    return int(crossovers(base, tuned, margin))


def crossing_text(curves: TaskCurves) -> str:
    """Return the ``crossover`` of the medians over tasks, ``"never"``, or ``"unknown"`` if a median is undefined."""
    if curves.undefined_layers:
        return "unknown"
    layer = crossover(curves.median("base"), curves.median("tuned"))
    return "never" if layer > curves.n_layers else str(layer)


def crossovers(base: ByLayer, tuned: ByLayer, margin: float = 0.0) -> Layers:
    """Return ``crossover`` of many curves at once.

    Example:
        >>> crossovers(np.array([[0.5, 0.5], [0.5, 0.9]]), np.array([0.4, 0.6])).tolist()
        [2, 3]
    """
    above = tuned - base > margin
    ahead = np.flip(np.cumsum(np.flip(~above, axis=-1), axis=-1), axis=-1)  # layers not above, from each on
    starts = above & (ahead <= _MAX_EXCEPTIONS)
    return np.where(starts.any(axis=-1), np.argmax(starts, axis=-1) + 1, above.shape[-1] + 1)
