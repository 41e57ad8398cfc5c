"""Area under the ROC curve with its interval."""

from __future__ import annotations

import numpy as np

from mechclust.evidence.intervals import Interval


def roc_area(positive: np.ndarray, negative: np.ndarray) -> tuple[float, Interval]:
    """Area under the ROC curve, ties counting half, and its 95% interval by bootstrap over both kinds of network.

    Args:
        positive: ``[n]`` scores of cases that should be detected.
        negative: ``[m]`` scores of cases that should not.

    Example:
        >>> area, (low, high) = roc_area(np.array([0.9, 0.8, 0.4]), np.array([0.1, 0.4]))
        >>> round(area, 3), low <= area <= high
        (0.917, True)
    """
    above = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    rng = np.random.default_rng(0)
    n, m = above.shape
    rows = rng.multinomial(n, np.full(n, 1 / n), size=500) / n
    columns = rng.multinomial(m, np.full(m, 1 / m), size=500) / m
    areas = np.einsum("bm,bm->b", rows @ above, columns)
    low, high = np.quantile(areas, (0.025, 0.975))
    return float(above.mean()), (float(low), float(high))
