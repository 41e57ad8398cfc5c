"""Linear CKA: its value, its values for rows that are paired at random, and its values for random halves of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, Labels, computed_in_torch, in_float64
from probes.functional.cross_moments import CrossMoments
from probes.functional.halves import half_samples
from probes.functional.hsic import (
    HSIC,
    centred_kernel,
    hsic_between_units,
    hsic_of_blocks,
    hsic_of_kernels,
    linear_hsic_kernel,
)
from probes.functional.preprocess import centred_matrix
from probes.functional.products import Precision, check_product_precision
from probes.functional.similarity import Similarity
from probes.functional.top_components import without_top_components
from probes.functional.units import unit_pairings
from tasks.settings import check_count

_BLOCK_ROWS = 1024
_LEAST_COST = 10**6  # multiplications in the time that even the smallest half takes


@computed_in_torch()
def linear_cka(
    x: Float[Array, "row dx"],
    y: Float[Array, "row dy"],
    *,
    debiased: bool = False,
    precision: Precision = "float64",
    remove_top: int = 0,
) -> Similarity:
    """Return the linear centred kernel alignment (CKA) of two representations of shared examples.

    Takes tensors, NumPy arrays or lists.

    Biased: ``|Xc'Yc|^2 / (|Xc'Xc| |Yc'Yc|)`` (Frobenius norms, columns centred), in [0, 1]. For independent Gaussians
    with n = 100 and d = 4096 it is .98. Debiased: every HSIC replaced by its unbiased estimate HSIC_1. Near 0 for
    independent rows, and may be negative. Neither changes with a rotation, a common scale or a shift of either side.

    Cost: ``n^2 (dx + dy)`` through n x n kernel matrices if there are few rows, ``n (dx^2 + dx dy + dy^2)`` through
    moments if there are many. The values are equal.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), eq. 4. HSIC_1: Song et al. 2012, eq. 5. In CKA: Nguyen et al. 2021
    (arXiv 2010.15327), eq. 3.

    Args:
        x: rows of one representation, of any floating dtype.
        y: rows of the other, in the order of ``x``.
        debiased: which form.
        precision: precision of the products. ``"float32"`` is faster and right to about 1e-7. Sums are float64 in
            either.
        remove_top: take this many of the largest principal components out of each side first. NaN if they cannot be
            distinguished.

    Raises:
        InputError: for another precision, a negative ``remove_top``, arrays that are not paired rows, or that hold NaN
            or infinity.

    Example:
        >>> x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
        >>> round(float(linear_cka(x, 3 - 2 * x.flip(1))), 9)  # a reflection, scaled and shifted
        1.0
        >>> linear_cka(x[:3], x[:3], debiased=True).note
        'x: there are 3 examples, and the debiased form needs at least 4'
    """
    x = in_float64(x)
    y = in_float64(y).to(x.device)
    check_product_precision(precision)
    check_count(remove_top=(remove_top, 0))
    n = len(x)
    d = (x.shape[1], y.shape[1])
    if remove_top:
        x, why_x = without_top_components(x, remove_top)
        y, why_y = without_top_components(y, remove_top)
        if why_x or why_y:
            return Similarity(math.nan, n, d, f"x: {why_x}" if why_x else f"y: {why_y}")
    hsic = linear_cka_terms({"x": x, "y": y}, [("x", "y"), ("x", "x"), ("y", "y")], precision)
    value, why = cka_from_hsic(hsic["x", "y"], hsic["x", "x"], hsic["y", "y"], debiased=debiased)
    return Similarity(value, n, d, why or ("" if debiased else _bias_note(n, max(d))))


def cka_from_hsic(xy: HSIC, xx: HSIC, yy: HSIC, *, debiased: bool = False) -> tuple[float, str]:
    """Return ``HSIC(x, y) / sqrt(HSIC(x, x) HSIC(y, y))``, and why it is NaN (or ``""``)."""
    for side, hsic in (("x", xx), ("y", yy)):
        why = hsic.undefined(debiased)
        if why:
            return math.nan, f"{side}: {why}"
    if debiased:
        return float(xy.debiased / xx.debiased.sqrt() / yy.debiased.sqrt()), ""
    return float(xy.biased / xx.biased.sqrt() / yy.biased.sqrt()), ""


def cka_of_draws(
    xy: Sequence[HSIC], xx: Sequence[HSIC], yy: Sequence[HSIC], *, debiased: bool
) -> Float[Tensor, "draw"]:
    """Return CKA of each draw of rows, from the results of ``cka_null_terms``, or three of ``cka_halves_terms``."""
    values = [cka_from_hsic(*terms, debiased=debiased)[0] for terms in zip(xy, xx, yy, strict=True)]
    return torch.tensor(values, dtype=torch.float64)


def linear_cka_terms(
    rows: Mapping[str, Float[Tensor, "row _"]], pairs: Sequence[tuple[str, str]], precision: Precision = "float64"
) -> dict[tuple[str, str], HSIC]:
    """Return HSIC of the linear kernels of pairs of sites, from the cheaper of kernel matrices and moments.

    Args:
        rows: rows of shared examples, by site.
        pairs: sites to compare.
        precision: precision of the products. Sums are float64.
    """
    n = len(next(iter(rows.values())))
    d = {site: x.shape[1] for site, x in rows.items()}
    kernels_cost = n**2 * (sum(d.values()) + len(d) ** 2)  # the matrices, and the products of all pairs
    moments_cost = n * sum(d[x] * d[y] for x, y in pairs)
    if kernels_cost < moments_cost:
        return hsic_of_blocks({site: linear_hsic_kernel(x, precision) for site, x in rows.items()}, n, pairs, precision)
    return {(x, y): CrossMoments.of_rows(rows[x], rows[y], precision=precision).hsic(precision) for x, y in pairs}


def _bias_note(n: int, d: int) -> str:
    """Return a caveat on a biased value, or ``""`` if n >= 10 d."""
    return "" if n >= 10 * d else f"n = {n} is below 10 d (d = {d}): the biased form is too high; see the debiased one"


# ---- rows that are paired at random ----


@computed_in_torch()
def cka_null(
    x: Float[Array, "row dx"],
    y: Float[Array, "row dy"],
    n_permutations: int,
    *,
    debiased: bool = False,
    units: Labels | None = None,
    seed: int = 0,
) -> Float[Array, "n_permutations"]:
    """Return linear CKA of rows paired at random: its chance level at this n and d.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    With ``units``, whole units are paired at random, each with one of as many rows, row by row in their order.

    Example:
        >>> x = torch.randn(40, 200, generator=torch.Generator().manual_seed(0))
        >>> null = cka_null(x, x, 20)
        >>> bool(null.min() > 0.7), bool(cka_null(x, x, 20, debiased=True).abs().max() < 0.2)
        (True, True)
    """
    check_count(n_permutations=(n_permutations, 1))
    x = in_float64(x)
    y = in_float64(y).to(x.device)
    return cka_of_draws(*cka_null_terms(x, y, n_permutations, seed, units=units), debiased=debiased)


def cka_null_terms(
    x: Float[Tensor, "n dx"],
    y: Float[Tensor, "n dy"],
    n_permutations: int,
    seed: int,
    precision: Precision = "float64",
    units: Shaped[Tensor, "n"] | None = None,
) -> tuple[list[HSIC], list[HSIC], list[HSIC]]:
    """Return HSIC of rows, or whole units, paired at random, and of either side with itself: for both forms.

    Either side is the same in every pairing.
    """
    orders = (order.to(y.device) for order in unit_pairings(len(x), n_permutations, seed, units))
    kernels_fit = len(x) <= min(x.shape[1], y.shape[1])  # kernels are then no larger than the rows
    if kernels_fit or units is not None:
        k = centred_kernel(x, precision)
        l = centred_kernel(y, precision)  # noqa: E741
        hsic = hsic_of_kernels if units is None else partial(hsic_between_units, units=units)
        xy = [hsic(k, l[order][:, order]) for order in orders]
        return xy, [hsic(k, k)] * n_permutations, [hsic(l, l)] * n_permutations
    x = centred_and_compacted(x)
    y = centred_and_compacted(y)
    points = CrossMoments.of_rows(x, y, precision=precision)
    xy = [CrossMoments.of_rows(x, y[order], points, precision).hsic(precision) for order in orders]
    xx = _hsic_of_pair(x, x, precision)
    yy = _hsic_of_pair(y, y, precision)
    return xy, [xx] * n_permutations, [yy] * n_permutations


# ---- random halves of the rows ----


@computed_in_torch()
def cka_resamples(
    x: Float[Array, "row dx"],
    y: Float[Array, "row dy"],
    n_resamples: int,
    *,
    debiased: bool = False,
    units: Labels | None = None,
    seed: int = 0,
) -> Float[Array, "n_resamples"]:
    """Return the variation of linear CKA with the examples: deviations of random half-samples from their mean.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    Halves are drawn without replacement (Shao & Wu 1989, delete-half jackknife). A draw of m = n/2 of n rows varies as
    much about the whole sample as n rows about the population: ``(1 - m/n) / m = 1/n``. The usual bootstrap draws rows
    twice. A row and its copy agree in both representations, which restores the diagonal that the debiased form leaves
    out. Only the spread is used, since the bias of the biased form differs at half the size. With ``units``, halves are
    of units, which are taken as independent.

    Returns:
        ``[n_resamples]``. The value plus their 2.5% and 97.5% quantiles is a 95% interval over examples. NaN if a
        half-sample has no CKA, and so for fewer than 8 examples in the debiased form.

    Raises:
        InputError: for fewer than 2 half-samples, which do not vary.

    Example:
        >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        >>> cka_resamples(x, 2 * x, 10).abs().max() < 1e-12  # always 1
        tensor(True)
    """
    check_count(n_resamples=(n_resamples, 2))
    x = centred_and_compacted(in_float64(x))
    y = centred_and_compacted(in_float64(y).to(x.device))
    terms = (cka_halves_terms(a, b, n_resamples, seed, units=units) for a, b in ((x, y), (x, x), (y, y)))
    values = cka_of_draws(*terms, debiased=debiased)
    return values - values.mean()


def cka_halves_terms(
    x: Float[Tensor, "n dx"],
    y: Float[Tensor, "n dy"],
    n_resamples: int,
    seed: int,
    precision: Precision = "float64",
    units: Shaped[Tensor, "n"] | None = None,
) -> list[HSIC]:
    """Return HSIC of random halves of ``centred_and_compacted`` rows, or of their units, for both forms.

    The halves depend on n, the units and the seed alone, so that HSIC of a side with itself serves every pair of it.
    """
    halves = [half.to(x.device) for half in half_samples(len(x), n_resamples, seed, units)]
    if units is None and len(x) > 1 and _kernels_are_cheaper(x, y, n_resamples):
        return _halves_of_kernels(x, y, halves, precision)
    return [_hsic_of_half(x, y, half, precision, units) for half in halves]


def _kernels_are_cheaper(x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], n_halves: int) -> bool:
    """Return whether kernels of all rows, computed once, take fewer multiplications than moments of each half."""
    n = len(x)
    kernels_cost = n**2 * (x.shape[1] + y.shape[1] + 3 * n_halves)
    return kernels_cost < n_halves * max(n * x.shape[1] * y.shape[1] / 2, _LEAST_COST)


def _halves_of_kernels(
    x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], halves: Sequence[Int[Tensor, "half"]], precision: Precision
) -> list[HSIC]:
    """Return HSIC of each half from sums over the rows and columns of the whole kernel matrices that it has."""
    n = len(x)
    kernel_x = linear_hsic_kernel(x, precision)
    kernel_y = linear_hsic_kernel(y, precision)
    members = torch.zeros(n, len(halves), dtype=torch.float64, device=x.device)
    for i, half in enumerate(halves):
        members[half, i] = 1
    kl = members.new_zeros(len(halves))
    k = torch.zeros_like(members)
    l = torch.zeros_like(members)  # noqa: E741
    diagonal_k = members.new_zeros(n)
    diagonal_l = members.new_zeros(n)
    for start in range(0, n, _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, n))
        some_k = kernel_x(rows, slice(0, n)).double()
        some_l = some_k if x is y else kernel_y(rows, slice(0, n)).double()
        kl += ((some_k * some_l) @ members * members[rows]).sum(0)
        k[rows] = some_k @ members
        l[rows] = some_l @ members
        diagonal_k[rows] = some_k[:, rows].diagonal()
        diagonal_l[rows] = some_l[:, rows].diagonal()
    return [
        HSIC.of_sums(len(half), kl[i], k[half, i], l[half, i], (diagonal_k[half], diagonal_l[half]), precision)
        for i, half in enumerate(halves)
    ]


def _hsic_of_half(
    x: Float[Tensor, "n dx"],
    y: Float[Tensor, "n dy"],
    half: Int[Tensor, "half"],
    precision: Precision,
    units: Shaped[Tensor, "n"] | None,
) -> HSIC:
    if not len(half):
        return HSIC.biased_only(1, x.new_zeros(()))
    half_x = x[half]
    half_y = half_x if x is y else y[half]
    if units is None:
        return _hsic_of_pair(half_x, half_y, precision)
    k = centred_kernel(half_x, precision)
    l = k if x is y else centred_kernel(half_y, precision)  # noqa: E741
    return hsic_between_units(k, l, units[half.to(units.device)])


def _hsic_of_pair(x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], precision: Precision) -> HSIC:
    """Return HSIC of the linear kernels of two sides, or of one with itself."""
    if x is y:
        return linear_cka_terms({"x": x}, [("x", "x")], precision)["x", "x"]
    return linear_cka_terms({"x": x, "y": y}, [("x", "y")], precision)["x", "y"]


def centred_and_compacted(x: Float[Tensor, "row dim"]) -> Float[Tensor, "row kept"]:
    """Return centred rows in at most n dimensions with unchanged inner products."""
    x = centred_matrix(x)
    return x if x.shape[1] <= len(x) else torch.linalg.qr(x.T, mode="r")[1].T
