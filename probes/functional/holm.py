"""Several tests at once: Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given: all of at most .05 are significant together at that level.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    ranked = np.argsort(p_values, kind="stable")
    factors = np.arange(len(ranked), 0, -1)
    adjusted = np.empty(len(ranked))
    adjusted[ranked] = np.maximum.accumulate(np.minimum(1.0, factors * np.asarray(p_values)[ranked]))
    return adjusted.tolist()
