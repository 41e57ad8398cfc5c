"""The layer of another model that a layer is most similar to, with a p-value that pays for the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import paired_arrays
from probes.functional.cka import cka_from_hsic
from probes.functional.halves import half_samples
from probes.functional.holm import holm
from probes.functional.hsic import centred_kernel, hsic_of_kernels
from probes.functional.permutation_test import permutation_p_value
from probes.functional.units import FEWEST_ARRANGEMENTS, n_unit_pairings, unit_pairings
from tasks import InputError
from tasks.settings import check_count

_Kernels: TypeAlias = Sequence[Float[Tensor, "row row"]]

LEVEL = 0.05
_MAX_NUMBERS_AT_ONCE = 2**23  # numbers in re-paired kernels


@dataclass(frozen=True)
class BestPairs:
    """The base layer that each tuned layer is most similar to, and whether that means anything.

    Attributes:
        cka: debiased CKA of every two layers. NaN if undefined.
        best: the most similar base layer. -1 if CKA is undefined with all of them.
        p_value: share of re-pairings of the examples in which the largest CKA over all base layers is at least as high
            as the largest one measured, counting the latter. All layers share the re-pairings.
        adjusted: Holm's p-values over the tuned layers.
        difference: CKA with the best base layer - CKA with the expected one.
        low: lower end of the 95% interval of the difference, from paired half-samples. It holds for all pairs of layers
            together, to allow for the search. NaN if the expected layer is the best one.
        high: upper end.
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
        """Return whether a tuned layer is similar to the base, and more to another layer than to the expected one."""
        return (self.adjusted <= LEVEL) & (self.low > 0)


def best_pairs(
    tuned: Sequence[Float[Tensor, "row _"]],
    base: Sequence[Float[Tensor, "row _"]],
    expected: Sequence[int],
    *,
    n_permutations: int | None = None,
    n_resamples: int = 100,
    seed: int = 0,
    units: Shaped[Tensor, "row"] | None = None,
) -> BestPairs:
    """Find the base layer that each tuned layer is most similar to, with a p-value corrected for the search.

    The largest of many CKA is high by chance. It is compared with the largest over these base layers in every
    re-pairing of the examples, and Holm's correction is made over the tuned layers. The interval of the difference
    tells whether the most similar layer is not the expected one.

    Cost: for every two layers, of the order of ``n^2 (n_permutations + n_resamples)``. Memory: ``n^2`` float64 numbers
    for each layer of both models.

    Args:
        tuned: rows of each layer of one model.
        base: rows of each layer of the other, for these examples in order.
        expected: for each tuned layer, the place of the base layer that it would match without any change.
        n_permutations: number of re-pairings. By default twenty for each tuned layer, the fewest with which Holm's
            p-values can reach .05.
        n_resamples: number of half-samples for the intervals.
        seed: seed of both.
        units: which examples belong together: whole units of one size are re-paired, and halves are of units. With
            fewer than 20 different re-pairings the p-values are NaN.

    Raises:
        InputError: for rows that are not paired, and without one expected layer for each tuned one.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> base = [torch.randn(60, 6, generator=draw) for _ in range(3)]
        >>> pairs = best_pairs([base[1], base[2]], base, expected=[0, 1])  # shifted by a layer
        >>> pairs.best.tolist(), pairs.elsewhere.tolist()
        ([1, 2], [True, True])
    """
    if len(expected) != len(tuned) or not all(0 <= place < len(base) for place in expected):
        raise InputError("expected needs one place of a base layer for each tuned layer")
    n_permutations = 20 * len(tuned) if n_permutations is None else n_permutations
    check_count(n_permutations=(n_permutations, 1), n_resamples=(n_resamples, 20), seed=(seed, 0))
    tuned_kernels = [centred_kernel(paired_arrays(rows, base[0])[0]) for rows in tuned]
    base_kernels = [centred_kernel(paired_arrays(tuned[0], rows)[1]) for rows in base]
    n = len(tuned[0])
    cka = _cka(tuned_kernels, base_kernels)
    is_known = np.isfinite(cka).any(axis=1)
    ranked = np.where(np.isfinite(cka), cka, -np.inf)
    best = np.where(is_known, ranked.argmax(axis=1), -1)
    orders = torch.stack(list(unit_pairings(n, n_permutations, seed, units)))
    largest = _largest_of_pairings(tuned_kernels, base_kernels, orders, np.isfinite(cka))
    p_value = permutation_p_value(torch.from_numpy(ranked.max(axis=1)), largest.T).numpy()
    p_value = np.where(is_known & (n_unit_pairings(n, units) >= FEWEST_ARRANGEMENTS), p_value, np.nan)
    layers = np.arange(len(tuned))
    difference = np.where(is_known, cka[layers, best] - cka[layers, list(expected)], np.nan)
    halves = list(half_samples(n, n_resamples, seed, units))
    width = _widths(tuned_kernels, base_kernels, halves, np.array(expected))[layers, best]
    return BestPairs(
        cka=cka,
        best=best,
        p_value=p_value,
        adjusted=_adjusted(p_value),
        difference=difference,
        low=difference - width,
        high=difference + width,
    )


def _adjusted(p_value: Float[np.ndarray, "tuned"]) -> Float[np.ndarray, "tuned"]:
    """Return Holm's p-values over the layers that have one."""
    adjusted = np.full(len(p_value), np.nan)
    is_tested = np.isfinite(p_value)
    adjusted[is_tested] = holm(p_value[is_tested].tolist())
    return adjusted


def _cka(tuned: _Kernels, base: _Kernels) -> Float[np.ndarray, "tuned base"]:
    """Return debiased CKA of every two kernels, or NaN if undefined."""
    tuned_hsic = [hsic_of_kernels(k, k) for k in tuned]
    base_hsic = [hsic_of_kernels(k, k) for k in base]
    cka = np.empty((len(tuned), len(base)))
    for i, j in np.ndindex(cka.shape):
        cka[i, j] = cka_from_hsic(hsic_of_kernels(tuned[i], base[j]), tuned_hsic[i], base_hsic[j], debiased=True)[0]
    return cka


def _off_diagonal(kernels: _Kernels) -> Float[Tensor, "layer row row"]:
    """Return the kernels with zeros on their diagonals."""
    stacked = torch.stack(list(kernels))
    return stacked - torch.diag_embed(stacked.diagonal(dim1=1, dim2=2))


def _hsic(one: Float[Tensor, "a row row"], other: Float[Tensor, "b row row"]) -> Float[Tensor, "a b"]:
    """Return HSIC_1 (Song et al. 2012, eq. 5) of every two kernels without diagonals."""
    n = one.shape[-1]
    sums = one.sum(dim=2)
    other_sums = other.sum(dim=2)
    together = one.flatten(1) @ other.flatten(1).T
    means = sums.sum(dim=1)[:, None] * other_sums.sum(dim=1) / ((n - 1) * (n - 2))
    return (together + means - 2 / (n - 2) * sums @ other_sums.T) / (n * (n - 3))


def _hsic_with_itself(kernels: Float[Tensor, "layer row row"]) -> Float[Tensor, "layer"]:
    """Return HSIC_1 of each kernel with itself."""
    return torch.stack([_hsic(k[None], k[None])[0, 0] for k in kernels])


def _largest_of_pairings(
    tuned: _Kernels,
    base: _Kernels,
    orders: Int[Tensor, "pairing row"],
    is_known: Bool[np.ndarray, "tuned base"],
) -> Float[np.ndarray, "tuned pairing"]:
    """Return the largest CKA of each tuned layer over the base layers, in each re-pairing of the examples."""
    x = _off_diagonal(tuned)
    y = _off_diagonal(base)
    scale = (_hsic_with_itself(x)[:, None] * _hsic_with_itself(y)).sqrt()
    largest = torch.full((len(x), len(orders)), -torch.inf, dtype=x.dtype, device=x.device)
    at_once = max(1, _MAX_NUMBERS_AT_ONCE // y[0].numel())
    for j, other in enumerate(y):
        for start in range(0, len(orders), at_once):
            chosen = orders[start : start + at_once].to(y.device)
            values = _hsic(x, other[chosen[:, :, None], chosen[:, None, :]]) / scale[:, j, None]
            values[~torch.from_numpy(is_known[:, j])] = -torch.inf
            place = slice(start, start + len(chosen))
            largest[:, place] = torch.maximum(largest[:, place], values)
    return largest.cpu().numpy()


def _widths(
    tuned: _Kernels,
    base: _Kernels,
    halves: Sequence[Int[Tensor, "half"]],
    expected: Int[np.ndarray, "tuned"],
) -> Float[np.ndarray, "tuned base"]:
    """Return half the width of the interval of each difference from the expected layer.

    The differences' deviations over half-samples are divided by their standard deviation. The 95% quantile of the
    largest in size over all pairs of layers is one factor for all standard deviations. NaN for the expected layer
    itself, and if half-samples have no CKA.
    """
    values = np.array([_cka(_restricted(tuned, half), _restricted(base, half)) for half in halves])
    differences = values - np.take_along_axis(values, expected[None, :, None], axis=2)
    deviations = differences - differences.mean(axis=0)
    scale = deviations.std(axis=0)
    scale[~(scale > 0)] = np.nan  # undefined for the expected layer and its copies
    ratios = np.abs(deviations / scale)[:, np.isfinite(scale)]
    if not ratios.size:
        return np.full(scale.shape, np.nan)
    return scale * float(np.quantile(ratios.max(axis=1), 1 - LEVEL))


def _restricted(kernels: _Kernels, rows: Int[Tensor, "half"]) -> list[Float[Tensor, "half half"]]:
    return [k[rows][:, rows] for k in kernels]
