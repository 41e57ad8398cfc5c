"""p-values read together: what is above chance, of many places that were looked at."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

CHANCE_LEVEL = 0.05  # of every sentence that says "above chance"


def corrected(p: ArrayLike) -> np.ndarray:
    """p-values corrected for how many there are (Benjamini & Hochberg 1995), in the same places.

    Of the places at or below a level, at most that share are there by chance on average. That holds for independent
    tests and for positively dependent ones, such as layers that pass on what they read. NaN stays NaN
    and is not counted as a test.

    Example:
        >>> corrected([0.01, 0.5, 0.02, float("nan")]).tolist()
        [0.03, 0.5, 0.03, nan]
    """
    from scipy.stats import false_discovery_control

    given = np.asarray(p, dtype=float)
    found, tests = given.copy(), np.isfinite(given)
    if tests.any():
        found[tests] = false_discovery_control(given[tests])
    return found


def least_permutations(n_tests: int) -> int:
    """How many relabellings let one test of ``n_tests`` alone be above chance.

    Example:
        >>> least_permutations(13)
        259
    """
    return int(np.ceil(n_tests / CHANCE_LEVEL)) - 1
