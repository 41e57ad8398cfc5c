"""What claims about a measure's growth are about: over training, and from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mechclust.report.findings import Parts
from mechclust.report.verdicts import Bound


def rising(steps: Sequence[int] | np.ndarray, curves: np.ndarray) -> Parts:
    """A measure rises with log step, then saturates: it changes little over the last third of training.

    Args:
        steps: of the checkpoints; the last is the end of training.
        curves: ``[seed checkpoint]``.

    Example:
        >>> parts = rising([0, 1, 10, 20, 30], np.array([[0.0, 0.5, 0.75, 1.0, 1.0]]))
        >>> [(name, round(values[0], 3)) for name, values, _ in parts]
        [('Spearman', 0.975), ('late change', 0.0)]
    """
    late = int(np.searchsorted(steps, 2 * steps[-1] / 3))
    return [
        ("Spearman", [spearman(np.asarray(steps), curve) for curve in curves], Bound(">", 0.8)),
        ("late change", np.abs(curves[:, -1] - curves[:, late]).tolist(), Bound("<", 0.1)),
    ]


def saturating(steps: Sequence[int] | np.ndarray) -> np.ndarray:
    """``[checkpoint]`` such a curve, for the power of the claim: from .1 to .8 in half of training."""
    found: np.ndarray = 0.1 + 0.7 * np.minimum(1, np.log1p(steps) / np.log1p(steps[-1] / 2))
    return found


def climbing(layers: np.ndarray) -> Parts:
    """A measure rises with layer.

    Args:
        layers: ``[seed layer]``, layers 0 to n.
    """
    n = layers.shape[1] - 1
    return [
        ("Spearman", [spearman(np.arange(n + 1), one) for one in layers], Bound(">", 0.8)),
        (f"layer {n} - layer 1", (layers[:, n] - layers[:, 1]).tolist(), Bound(">=", 0.2)),
    ]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation; NaN for a flat curve, which has no ranks."""
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic) if np.ptp(y) > 0 else math.nan
