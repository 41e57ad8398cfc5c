"""Spearman's correlation, also of flat curves."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Shaped


def spearman_correlation(x: Shaped[np.ndarray, "n"], y: Shaped[np.ndarray, "n"]) -> float:
    """Return Spearman's correlation, or NaN for a flat curve, which has no ranks."""
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic) if np.ptp(y) > 0 else math.nan
