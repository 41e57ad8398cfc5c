"""The 95% interval of a cross-validated accuracy, and how many independent examples it counts."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float, Int

from probes.functional.arrays import Array, computed_in_numpy
from probes.functional.wilson_interval import wilson_interval
from tasks import InputError


@computed_in_numpy
def accuracy_interval(
    hits_per_fold: Float[Array, "fold"],
    n_per_fold: Float[Array, "fold"],
    n_effective: float | None = None,
) -> tuple[float, float]:
    """Return the 95% interval of a cross-validated accuracy: of ``hits_per_fold`` among ``n_per_fold`` examples.

    Takes tensors, NumPy arrays or lists.

    Each end is the wider of two intervals, within 0 and 1. One is Wilson's, over examples. The other is the corrected
    resampled one, over the k folds' accuracies with variance ``s^2``, whose training parts overlap:
    ``accuracy +- t_{k-1} sqrt((1 / k + 1 / (k - 1)) s^2)``. Wilson's alone is too narrow, as it takes the fitted
    classifiers as given. Folds without examples do not count. With one fold it is Wilson's.

    Args:
        hits_per_fold: examples that were predicted right.
        n_per_fold: examples.
        n_effective: number of independent examples for Wilson's interval, see ``accuracy_effective_size``. All of them
            if not given.

    Source: Wilson 1927. Nadeau & Bengio, Machine Learning 52, 2003.

    Raises:
        InputError: for no example, or more hits than examples in a fold.

    Example:
        >>> [round(x, 3) for x in accuracy_interval([9, 7, 8, 8, 8], [10] * 5)]
        [0.668, 0.932]
        >>> accuracy_interval([7, 7, 7], [10, 10, 10]) == wilson_interval(21, 30)
        True
    """
    from scipy.stats import t

    hits = hits_per_fold.astype(np.float64)
    n = n_per_fold.astype(np.float64)
    outside = np.flatnonzero((hits < 0) | (hits > n))
    if len(outside):
        k = outside[0]
        raise InputError(f"hits_per_fold is {hits[k]:g} of n_per_fold {n[k]:g} in fold {k}; expected 0 to {n[k]:g}")
    size = float(n.sum()) if n_effective is None else n_effective
    low, high = wilson_interval(float(hits.sum()) * (size / max(1.0, float(n.sum()))), size)
    shares = hits[n > 0] / n[n > 0]
    k = len(shares)
    if k < 2:
        return low, high
    half = float(t.ppf(0.975, k - 1)) * math.sqrt((1 / k + 1 / (k - 1)) * float(shares.var(ddof=1)))
    accuracy = float(hits.sum() / n.sum())
    return max(0.0, min(low, accuracy - half)), min(1.0, max(high, accuracy + half))


def accuracy_effective_size(right: Bool[np.ndarray, "example"], units: Int[np.ndarray, "example"]) -> float:
    """Return how many independent examples give a share with the variance found for examples in units.

    ``n`` over Kish's design effect, from the variance of the units' sums about their sizes times the share, at least 1
    and at most ``n``. The number of units if all examples are equal.

    Source: Kish, Survey Sampling, 1965.

    Example:
        >>> right = np.array([True, True, False, False] * 10)
        >>> round(accuracy_effective_size(right, np.repeat(np.arange(20), 2)), 1)  # of 40, in pairs that always agree
        19.0
    """
    member = np.unique(units, return_inverse=True)[1]
    sizes = np.bincount(member)
    n = len(right)
    n_units = len(sizes)
    share = float(right.mean())
    if n_units < 2 or share in (0.0, 1.0):
        return float(n_units)
    residuals = np.bincount(member, weights=right) - share * sizes
    variance = n_units / (n_units - 1) * float(np.square(residuals).sum()) / n**2
    independent = share * (1 - share) / n
    return n if variance <= independent else max(1.0, n * independent / variance)
