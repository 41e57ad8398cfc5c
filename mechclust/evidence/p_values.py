"""Correct p-values for the number of places that were tested."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

CHANCE_LEVEL = 0.05  # the level of every "above chance"


def corrected_p_values(p: ArrayLike) -> Float[np.ndarray, "..."]:
    """Return p-values corrected for their number (Benjamini & Hochberg 1995), in the given order.

    Of the places at or below a level, at most that share are there by chance on average. That holds for independent
    tests and for positively dependent ones, such as consecutive layers. NaN stays NaN and is not counted as a test.

    Example:
        >>> corrected_p_values([0.01, 0.5, 0.02, float("nan")]).tolist()
        [0.03, 0.5, 0.03, nan]
    """
    from scipy.stats import false_discovery_control

    p_values = np.array(p, dtype=float)
    tested = np.isfinite(p_values)
    if tested.any():
        p_values[tested] = false_discovery_control(p_values[tested])
    return p_values


def least_permutations_for_p_values(n_tests: int) -> int:
    """Return the number of relabellings with which a single one of ``n_tests`` tests can be above chance.

    Example:
        >>> least_permutations_for_p_values(13)
        259
    """
    return int(np.ceil(n_tests / CHANCE_LEVEL)) - 1
