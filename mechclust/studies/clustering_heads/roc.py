"""Area under the ROC curve with its interval."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from mechclust.evidence.intervals import Interval


def share_below(positive: Float[np.ndarray, "n"], negative: Float[np.ndarray, "m"]) -> Float[np.ndarray, "n"]:
    """Return for each positive the share of negatives with a lower score, ties counting half.

    Their mean is the area under the ROC curve.

    Example:
        >>> share_below(np.array([0.9, 0.4]), np.array([0.1, 0.4])).tolist()
        [1.0, 0.75]
    """
    return _above(positive, negative).mean(axis=1)


def roc_area(positive: Float[np.ndarray, "n"], negative: Float[np.ndarray, "m"]) -> tuple[float, Interval]:
    """Return the area under the ROC curve and its 95% interval by bootstrap over both kinds of network.

    Args:
        positive: scores of cases that should be detected.
        negative: scores of cases that should not.

    Example:
        >>> area, (low, high) = roc_area(np.array([0.9, 0.8, 0.4]), np.array([0.1, 0.4]))
        >>> round(area, 3), low <= area <= high
        (0.917, True)
    """
    above = _above(positive, negative)
    rng = np.random.default_rng(0)
    n, m = above.shape
    rows = rng.multinomial(n, np.full(n, 1 / n), size=500) / n
    columns = rng.multinomial(m, np.full(m, 1 / m), size=500) / m
    areas = np.einsum("bm,bm->b", rows @ above, columns)
    low, high = np.quantile(areas, (0.025, 0.975))
    return float(above.mean()), (float(low), float(high))


def _above(positive: np.ndarray, negative: np.ndarray) -> Float[np.ndarray, "n m"]:
    ties = positive[:, None] == negative
    return (positive[:, None] > negative) + 0.5 * ties
