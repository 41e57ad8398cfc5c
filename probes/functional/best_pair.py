"""Which layer of another model is a layer most similar to, and is that more than searching among layers gives?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.functional.cka import (
    HSIC,
    cka_from_hsic,
    compact,
    deviations_of,
    halves_hsic,
    hsic_of_rows,
    null_hsic,
    null_of,
    paired,
)
from probes.functional.holm import holm
from tasks import InputError
from tasks.errors import check_at_least

LEVEL = 0.05


@dataclass(frozen=True)
class BestPairs:
    """The base layer that each tuned layer is most similar to, and whether that says anything.

    Attributes:
        cka: ``[tuned base]`` debiased CKA of every two layers; NaN if undefined.
        best: ``[tuned]`` the most similar base layer; -1 if CKA is undefined with all of them.
        p_value: ``[tuned]`` share of re-pairings of the examples in which the largest CKA over all base layers is at
            least as high as the largest one found, counting the latter. The re-pairings are the same for all layers.
        adjusted: ``[tuned]`` Holm's p-values over the tuned layers.
        difference: ``[tuned]`` CKA with the best base layer - CKA with the expected one.
        low, high: ``[tuned]`` 95% interval of the difference, from paired half-samples, for all pairs of layers
            together: as wide as the search among them requires. NaN if the expected layer is the best one.
    """

    cka: Float[np.ndarray, "tuned base"]
    best: Int[np.ndarray, "tuned"]
    p_value: Float[np.ndarray, "tuned"]
    adjusted: Float[np.ndarray, "tuned"]
    difference: Float[np.ndarray, "tuned"]
    low: Float[np.ndarray, "tuned"]
    high: Float[np.ndarray, "tuned"]

    @property
    def elsewhere(self) -> Bool[np.ndarray, "tuned"]:
        """Whether a tuned layer is similar to the base, and more to another layer of it than to the expected one."""
        return (self.adjusted <= LEVEL) & (self.low > 0)


def best_pairs(
    tuned: Sequence[Float[Tensor, "n _"]],
    base: Sequence[Float[Tensor, "n _"]],
    expected: Sequence[int],
    *,
    n_permutations: int | None = None,
    n_resamples: int = 100,
    seed: int = 0,
) -> BestPairs:
    """Find the base layer that each tuned layer is most similar to, with a p-value that pays for the search.

    The largest of many CKA is high by chance. It is compared with the largest over the same base layers in every
    re-pairing of the examples, and Holm's correction is made over the tuned layers. Whether the most similar layer is
    another than the expected one depends on the interval of their difference.

    Cost: that of ``n_permutations + n_resamples`` CKA for every two layers.

    Args:
        tuned: rows of each layer of one model.
        base: rows of each layer of the other, of the same examples in the same order.
        expected: for each tuned layer, the place of the base layer that it would be like if nothing had moved.
        n_permutations: number of re-pairings; by default twenty for each tuned layer, the fewest with which Holm's
            p-values can reach .05.
        n_resamples: number of half-samples for the intervals.
        seed: for both.

    Raises:
        InputError: for rows that are not paired, and without one expected layer for each tuned one.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> base = [torch.randn(60, 6, generator=draw) for _ in range(3)]
        >>> found = best_pairs([base[1], base[2]], base, expected=[0, 1])  # shifted by a layer
        >>> found.best.tolist(), found.elsewhere.tolist()
        ([1, 2], [True, True])
    """
    if len(expected) != len(tuned) or not all(0 <= place < len(base) for place in expected):
        raise InputError("expected needs one place of a base layer for each tuned layer")
    n_permutations = 20 * len(tuned) if n_permutations is None else n_permutations
    check_at_least(n_permutations=(n_permutations, 1), n_resamples=(n_resamples, 20), seed=(seed, 0))
    pairs = [[paired(x, y) for y in base] for x in tuned]
    cka = np.array([[_debiased(x, y) for x, y in row] for row in pairs])
    known = np.isfinite(cka).any(axis=1)
    best = np.where(known, np.where(np.isfinite(cka), cka, -np.inf).argmax(axis=1), -1)
    largest = np.array([_null_of_largest(row, n_permutations, seed) for row in pairs])
    highest = np.where(known, np.where(np.isfinite(cka), cka, -np.inf).max(axis=1), np.nan)
    p_value = np.where(known, (1 + (largest >= highest[:, None]).sum(axis=1)) / (1 + n_permutations), np.nan)
    adjusted = np.full(len(tuned), np.nan)
    adjusted[known] = holm(p_value[known].tolist())
    gaps = cka - np.take_along_axis(cka, np.array(expected)[:, None], axis=1)
    spread = _largest_deviation(pairs, np.array(expected), n_resamples, seed)
    place = np.arange(len(tuned))
    difference = np.where(known, gaps[place, best], np.nan)
    width = spread[place, best]
    return BestPairs(cka, best, p_value, adjusted, difference, difference - width, difference + width)


def _debiased(x: Tensor, y: Tensor) -> float:
    """Return debiased CKA, NaN if undefined."""
    return cka_from_hsic(*(hsic_of_rows(a, b) for a, b in ((x, y), (x, x), (y, y))), debiased=True)[0]


def _null_of_largest(row: Sequence[tuple[Tensor, Tensor]], n: int, seed: int) -> Float[np.ndarray, "n"]:
    """Return the largest CKA of a tuned layer over the base layers in each re-pairing, the same for all of them."""
    drawn = [null_of(*null_hsic(x, y, n, seed), debiased=True).numpy() for x, y in row]
    values = np.array(drawn)
    return np.where(np.isfinite(values), values, -np.inf).max(axis=0)


def _largest_deviation(
    pairs: Sequence[Sequence[tuple[Tensor, Tensor]]], expected: Int[np.ndarray, "tuned"], n: int, seed: int
) -> Float[np.ndarray, "tuned base"]:
    """Return half the width of the interval of each difference from the expected layer.

    The differences' deviations over half-samples are divided by their standard deviation, and the 95% quantile of the
    largest in size over all pairs of layers gives one factor for all standard deviations. NaN for the expected layer
    itself, and if half-samples have no CKA.
    """
    deviations = np.array([_deviations(row, n, seed) for row in pairs])  # [tuned base resample]
    at_expected = np.take_along_axis(deviations, expected[:, None, None], axis=1)
    differences = deviations - at_expected
    scale = differences.std(axis=-1)
    scale[~(scale > 0)] = np.nan  # of the expected layer, and of layers that are copies of it
    ratios = np.abs(differences / scale[..., None]).reshape(-1, n)
    ratios = ratios[np.isfinite(ratios).all(axis=1)]
    if not len(ratios):
        return np.full(scale.shape, np.nan)
    return scale * float(np.quantile(ratios.max(axis=0), 1 - LEVEL))


def _deviations(row: Sequence[tuple[Tensor, Tensor]], n: int, seed: int) -> Float[np.ndarray, "base n"]:
    """Return how CKA of a tuned layer with each base layer varies over the same half-samples."""
    x = compact(row[0][0])
    own: list[HSIC] = halves_hsic(x, x, n, seed)
    values = []
    for _, other in row:
        y = compact(other)
        terms = halves_hsic(x, y, n, seed), own, halves_hsic(y, y, n, seed)
        values.append(deviations_of(*terms, debiased=True).numpy())
    return np.array(values)
