"""95% intervals: of a mean, of a share, of an accuracy, and of an index from its values for halves of the units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, computed_in_numpy
from tasks import InputError
from tasks.settings import check_at_least

_HITS_ROUNDING = 1e-9  # rounding of a rescaled number of hits
FEWEST_UNITS = 8  # a half is then four units
MAX_UNDEFINED_SHARE = 0.05  # share of the halves
MIN_DIFFERENCE = 1e-9  # halves that differ by less are alike


def interval_from_sums(
    total: Float[Tensor, "*shape"], squares: Float[Tensor, "*shape"], n: int
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Return the 95% interval of a mean by Student's t, or NaN for one example.

    Args:
        total: sum over ``n`` examples.
        squares: sum of their squares.
        n: number of examples.

    Example:
        >>> low, high = interval_from_sums(torch.tensor(6.0), torch.tensor(14.0), 3)  # 1, 2, 3
        >>> round(float(low), 2), round(float(high), 2)
        (-0.48, 4.48)
    """
    if n < 2:
        return torch.full_like(total, torch.nan), torch.full_like(total, torch.nan)
    from scipy.stats import t

    mean = total / n
    variance = ((squares - total * mean) / (n - 1)).clamp(min=0)  # equal examples leave rounding below 0
    half = float(t.ppf(0.975, n - 1)) * (variance / n).sqrt()
    return mean - half, mean + half


def wilson_interval(hits: float, n: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the 95% interval of a share: of ``hits`` among ``n`` independent examples (Wilson 1927).

    Raises:
        InputError: for no example, or more hits than examples.

    Example:
        >>> [round(x, 3) for x in wilson_interval(8, 10)]
        [0.49, 0.943]
    """
    check_at_least(hits=(hits, 0), n=(n, 1))
    if hits > n * (1 + _HITS_ROUNDING):
        raise InputError(f"hits is {hits:g}; expected at most n, {n:g}")
    share = hits / n
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def wilson_ends(share: float, z2: float) -> tuple[float, float]:
    """Return both ends of Wilson's interval (1927) of a share.

    Args:
        share: a share from 0 to 1.
        z2: square of the quantile, times the share's variance in units of ``share (1 - share)``.
    """
    middle = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (share * (1 - share)) + z2 * z2 / 4) / (1 + z2)
    return middle - half, middle + half


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
        n_effective: number of independent examples for Wilson's interval, see ``effective_size``. All of them if not
            given.

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


def effective_size(right: Bool[np.ndarray, "example"], units: Int[np.ndarray, "example"]) -> float:
    """Return how many independent examples give a share with the variance found for examples in units.

    ``n`` over Kish's design effect, from the variance of the units' sums about their sizes times the share, at most
    ``n``. The number of units if all examples are equal.

    Source: Kish, Survey Sampling, 1965.

    Example:
        >>> right = np.array([True, True, False, False] * 10)
        >>> round(effective_size(right, np.repeat(np.arange(20), 2)), 1)  # of 40, in pairs that always agree
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
    return n if variance <= independent else n * independent / variance


# ---- from the values for halves of the units ----


def half_interval(index: float, of_halves: Sequence[float], n_units: int) -> tuple[float, float]:
    """Return the 95% interval of an index, such as the adjusted Rand index, from its values for halves of the units.

    Halves are drawn without replacement (``half_samples``): their variance about their mean estimates
    the index's variance over samples of as many units (Shao & Wu 1989). The usual bootstrap draws units twice, and
    repeated rows raise any measure of similarity.

    The interval is Wilson's for the share ``(1 + index) / 2``, with the halves' variance and Student's quantile for
    ``n_units - 1``. If all halves are equal, the variance of independent units is used. So it stays within -1 and 1,
    and an index of 1 has an interval below it.

    Coverage at nominal 95% was 96% to 100% for the adjusted Rand index of k-means clusters with planted classes (8 to
    120 units, mean index .03 to .99, 80 to 100 samples a setting, so within 4 points). It is cautious because half as
    many units cluster less stably. It is too narrow, 76% and 82%, if another structure is as strong as the classes, so
    that samples cluster by either of them.

    Args:
        index: the index of all units.
        of_halves: the index of each half.
        n_units: units that the halves are drawn from.

    Returns:
        Both ends. NaN for an undefined index, fewer than two halves, or fewer than 8 units.

    Raises:
        InputError: for an index that is not between -1 and 1.

    Example:
        >>> [round(end, 2) for end in half_interval(0.6, [0.5, 0.55, 0.65, 0.7], 20)]
        [0.38, 0.76]
        >>> [round(end, 2) for end in half_interval(1.0, [1.0, 1.0], 20)]
        [0.64, 1.0]
    """
    if abs(index) > 1:
        raise InputError(f"index is {index}; expected a number between -1 and 1")
    if n_units < FEWEST_UNITS or len(of_halves) < 2 or math.isnan(index):
        return math.nan, math.nan
    from scipy.stats import t

    share = (1 + index) / 2
    variance = float(np.var(of_halves, ddof=1)) / 4
    of_outcomes = share * (1 - share)
    nearly_sure = 1 / (2 * n_units)  # a share of 1 has no variance that the halves' could be compared with
    per_outcome = variance / max(of_outcomes, nearly_sure * (1 - nearly_sure))
    z2 = float(t.ppf(0.975, n_units - 1)) ** 2 * (per_outcome if variance > 0 else 1 / n_units)
    low, high = wilson_ends(share, z2)
    return 2 * low - 1, 2 * high - 1


def interval_from_halves(
    value: Float[np.ndarray, "*place"] | float,
    of_halves: Float[np.ndarray, "*place half"],
    n_units: int,
    *,
    n_compared: int = 1,
) -> tuple[Float[np.ndarray, "*place"], Float[np.ndarray, "*place"]]:
    """Return the 95% interval of any number, such as the change of an index, from its values for halves of the units.

    The variance of the halves about their mean estimates the value's variance (``half_interval``), with Student's
    quantile for ``n_units - 1``. Give the logarithm of a ratio. The change of a measure on fixed units needs equal
    halves before and after.

    Args:
        value: the value of all units.
        of_halves: the value of each half. Undefined ones, if they are at most 5%, are left out.
        n_units: units that the halves are drawn from.
        n_compared: number of values, of which this one was chosen because it is the highest or lowest. Its interval is
            Bonferroni's, which covers all of them at once.

    Returns:
        Both ends. NaN for an undefined value, fewer than two halves, fewer than 8 units, or equal halves, whose
        variance is unknown.

    Source: Shao & Wu 1989. ``docs/calibration.md`` says how often it misses a planted value.

    Example:
        >>> low, high = interval_from_halves(np.array(0.3), np.array([0.2, 0.25, 0.35, 0.4]), 20)
        >>> round(float(low), 2), round(float(high), 2)
        (0.11, 0.49)
    """
    from scipy.stats import t

    defined = np.isfinite(of_halves)
    values = np.where(defined, of_halves, np.nan)
    n = defined.sum(axis=-1)
    enough = (n >= max(2, (1 - MAX_UNDEFINED_SHARE) * of_halves.shape[-1])) & (n_units >= FEWEST_UNITS)
    mean = np.where(defined, of_halves, 0).sum(axis=-1) / np.maximum(n, 1)
    squares = np.nansum((values - mean[..., None]) ** 2, axis=-1)
    quantile = float(t.ppf(1 - 0.025 / n_compared, max(1, n_units - 1)))
    enough &= squares > MIN_DIFFERENCE**2 * n
    half = np.where(enough, quantile * np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    return np.asarray(value - half), np.asarray(value + half)


def half_samples(
    n: int, times: int, seed: int, units: Shaped[Tensor, "example"] | None = None
) -> Iterator[Int[Tensor, "half"]]:
    """Yield random halves of ``n`` examples, or all examples of random halves of their units, rounded down.

    Example:
        >>> [half.tolist() for half in half_samples(5, 2, 0, torch.tensor([3, 7, 3, 7, 7]))]
        [[0, 2], [1, 3, 4]]
    """
    generator = torch.Generator().manual_seed(seed)
    if units is None:
        for _ in range(times):
            yield torch.randperm(n, generator=generator)[: n // 2]
        return
    member = torch.unique(units.cpu(), return_inverse=True)[1]
    n_units = int(member.max()) + 1
    for _ in range(times):
        chosen = torch.zeros(n_units, dtype=torch.bool)
        chosen[torch.randperm(n_units, generator=generator)[: n_units // 2]] = True
        yield chosen[member].nonzero()[:, 0]
