"""Which layer of another model is a layer most similar to, and is that more than searching among layers gives?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from probes.functional.holm import holm
from probes.functional.hsic import cka_from_hsic, hsic_of_kernels, kernel
from probes.functional.representations import paired
from probes.functional.units import FEWEST_ARRANGEMENTS, half_samples, n_pairings, pairings
from tasks import InputError
from tasks.errors import check_at_least

LEVEL = 0.05
_CHUNK = 2**23  # numbers in kernels that are re-paired at once


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
    units: Shaped[Tensor, "n"] | None = None,
) -> BestPairs:
    """Find the base layer that each tuned layer is most similar to, with a p-value that pays for the search.

    The largest of many CKA is high by chance. It is compared with the largest over the same base layers in every
    re-pairing of the examples, and Holm's correction is made over the tuned layers. Whether the most similar layer is
    another than the expected one depends on the interval of their difference.

    Cost: for every two layers, of the order of ``n^2 (n_permutations + n_resamples)``. Memory: ``n^2`` float64 numbers
    for each layer of both models.

    Args:
        tuned: rows of each layer of one model.
        base: rows of each layer of the other, of the same examples in the same order.
        expected: for each tuned layer, the place of the base layer that it would be like if nothing had moved.
        n_permutations: number of re-pairings; by default twenty for each tuned layer, the fewest with which Holm's
            p-values can reach .05.
        n_resamples: number of half-samples for the intervals.
        seed: for both.
        units: which examples belong together: whole units are re-paired, among those of one size, and halves are of
            units. With fewer than 20 different re-pairings the p-values are NaN.

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
    tuned_kernels, base_kernels = ([kernel(rows) for rows in side] for side in _paired(tuned, base))
    cka = _cka(tuned_kernels, base_kernels)
    known = np.isfinite(cka).any(axis=1)
    ranked = np.where(np.isfinite(cka), cka, -np.inf)
    best = np.where(known, ranked.argmax(axis=1), -1)
    orders = torch.stack(list(pairings(len(tuned[0]), n_permutations, seed, units)))
    largest = _largest_of_pairings(tuned_kernels, base_kernels, orders, np.isfinite(cka))
    p_value = (1 + (largest >= ranked.max(axis=1)[:, None]).sum(axis=1)) / (1 + n_permutations)
    p_value = np.where(known & (n_pairings(len(tuned[0]), units) >= FEWEST_ARRANGEMENTS), p_value, np.nan)
    adjusted = np.full(len(tuned), np.nan)
    tested = np.isfinite(p_value)
    adjusted[tested] = holm(p_value[tested].tolist())
    place = np.arange(len(tuned))
    difference = np.where(known, cka[place, best] - cka[place, list(expected)], np.nan)
    halves = list(half_samples(len(tuned[0]), n_resamples, seed, units))
    width = _widths(tuned_kernels, base_kernels, halves, np.array(expected))[place, best]
    return BestPairs(cka, best, p_value, adjusted, difference, difference - width, difference + width)


def _paired(tuned: Sequence[Tensor], base: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the layers of both models as float64 matrices of paired rows."""
    return [paired(x, base[0])[0] for x in tuned], [paired(tuned[0], y)[1] for y in base]


def _cka(tuned: Sequence[Tensor], base: Sequence[Tensor]) -> Float[np.ndarray, "tuned base"]:
    """Return debiased CKA of every two kernels; NaN if undefined."""
    of_tuned = [hsic_of_kernels(k, k) for k in tuned]
    of_base = [hsic_of_kernels(l, l) for l in base]  # noqa: E741
    found = np.empty((len(tuned), len(base)))
    for i, j in np.ndindex(found.shape):
        found[i, j] = cka_from_hsic(hsic_of_kernels(tuned[i], base[j]), of_tuned[i], of_base[j], debiased=True)[0]
    return found


def _off_diagonal(kernels: Sequence[Float[Tensor, "n n"]]) -> Float[Tensor, "layer n n"]:
    """Return the kernels with zeros on their diagonals."""
    stacked = torch.stack(list(kernels))
    return stacked - torch.diag_embed(stacked.diagonal(dim1=1, dim2=2))


def _hsic(one: Float[Tensor, "a n n"], other: Float[Tensor, "b n n"]) -> Float[Tensor, "a b"]:
    """Return HSIC_1 (Song et al. 2012, eq. 5) of every two kernels without diagonals."""
    n = one.shape[-1]
    sums, other_sums = one.sum(dim=2), other.sum(dim=2)
    together = one.flatten(1) @ other.flatten(1).T
    means = sums.sum(dim=1)[:, None] * other_sums.sum(dim=1) / ((n - 1) * (n - 2))
    return (together + means - 2 / (n - 2) * sums @ other_sums.T) / (n * (n - 3))


def _own_hsic(kernels: Float[Tensor, "layer n n"]) -> Float[Tensor, "layer"]:
    """Return HSIC_1 of each kernel with itself."""
    return torch.stack([_hsic(k[None], k[None])[0, 0] for k in kernels])


def _largest_of_pairings(
    tuned: Sequence[Tensor],
    base: Sequence[Tensor],
    orders: Int[Tensor, "pairing n"],
    known: Bool[np.ndarray, "tuned base"],
) -> Float[np.ndarray, "tuned pairing"]:
    """Return the largest CKA of each tuned layer over the base layers, in each re-pairing of the examples."""
    x, y = _off_diagonal(tuned), _off_diagonal(base)
    scale = (_own_hsic(x)[:, None] * _own_hsic(y)).sqrt()
    largest = torch.full((len(x), len(orders)), -torch.inf, dtype=x.dtype, device=x.device)
    at_once = max(1, _CHUNK // y[0].numel())
    for j, other in enumerate(y):
        for start in range(0, len(orders), at_once):
            chosen = orders[start : start + at_once].to(y.device)
            values = _hsic(x, other[chosen[:, :, None], chosen[:, None, :]]) / scale[:, j, None]
            values[~torch.from_numpy(known[:, j])] = -torch.inf
            place = slice(start, start + len(chosen))
            largest[:, place] = torch.maximum(largest[:, place], values)
    return largest.cpu().numpy()


def _widths(
    tuned: Sequence[Tensor],
    base: Sequence[Tensor],
    halves: Sequence[Int[Tensor, "half"]],
    expected: Int[np.ndarray, "tuned"],
) -> Float[np.ndarray, "tuned base"]:
    """Return half the width of the interval of each difference from the expected layer.

    The differences' deviations over half-samples are divided by their standard deviation, and the 95% quantile of the
    largest in size over all pairs of layers gives one factor for all standard deviations. NaN for the expected layer
    itself, and if half-samples have no CKA.
    """
    values = np.array([_cka([k[h][:, h] for k in tuned], [k[h][:, h] for k in base]) for h in halves])
    differences = values - np.take_along_axis(values, expected[None, :, None], axis=2)
    deviations = differences - differences.mean(axis=0)
    scale = deviations.std(axis=0)
    scale[~(scale > 0)] = np.nan  # of the expected layer, and of layers that are copies of it
    ratios = np.abs(deviations / scale)[:, np.isfinite(scale)]
    if not ratios.size:
        return np.full(scale.shape, np.nan)
    return scale * float(np.quantile(ratios.max(axis=1), 1 - LEVEL))
