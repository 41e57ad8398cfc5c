"""Linear CKA of rows that are paired at random, and of random halves of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probes.functional.arrays import Array, Labels, computed_in_torch
from probes.functional.cka import (
    HSIC,
    CrossMoments,
    cka_from_hsic,
    compact,
    hsic_of_kernels,
    hsic_of_rows,
    kernel,
    paired,
)
from probes.functional.products import Precision
from probes.functional.unit_hsic import hsic_between_units
from probes.functional.units import half_samples, pairings
from tasks.errors import check_at_least


@computed_in_torch("x", "y", labels=["units"])
def cka_null(
    x: Float[Array, "n dx"],
    y: Float[Array, "n dy"],
    n_permutations: int,
    *,
    debiased: bool = False,
    units: Labels | None = None,
    seed: int = 0,
) -> Float[Array, "n_permutations"]:
    """Linear CKA of rows paired at random: its chance level at this n and d.

    Takes tensors or NumPy arrays, and returns the same kind.

    With ``units``, whole units are paired at random, each with one of as many rows, row by row in their order.

    Example:
        >>> x = torch.randn(40, 200, generator=torch.Generator().manual_seed(0))
        >>> null = cka_null(x, x, 20)
        >>> bool(null.min() > 0.7), bool(cka_null(x, x, 20, debiased=True).abs().max() < 0.2)
        (True, True)
    """
    check_at_least(n_permutations=(n_permutations, 1))
    return null_of(*null_hsic(*paired(x, y), n_permutations, seed, units=units), debiased=debiased)


def null_hsic(
    x: Float[Tensor, "n dx"],
    y: Float[Tensor, "n dy"],
    n_permutations: int,
    seed: int,
    precision: Precision = "float64",
    units: Shaped[Tensor, "n"] | None = None,
) -> tuple[list[HSIC], HSIC, HSIC]:
    """Of rows, or whole units, paired at random, and of either side with itself: for both forms."""
    orders = (order.to(y.device) for order in pairings(len(x), n_permutations, seed, units))
    if units is not None:
        k, other = kernel(x, precision), kernel(y, precision)
        drawn = [hsic_between_units(k, other[o][:, o], units) for o in orders]
        return drawn, hsic_between_units(k, k, units), hsic_between_units(other, other, units)
    if len(x) <= min(x.shape[1], y.shape[1]):  # kernel matrices are no larger than the rows, and made once
        k, other = kernel(x, precision), kernel(y, precision)
        found = [hsic_of_kernels(k, other[o][:, o]) for o in orders]
        return found, hsic_of_kernels(k, k), hsic_of_kernels(other, other)
    x, y = compact(x), compact(y)
    like = CrossMoments.of(x, y, precision=precision)
    found = [CrossMoments.of(x, y[o], like, precision).hsic(precision) for o in orders]
    return found, hsic_of_rows(x, x, precision), hsic_of_rows(y, y, precision)


def null_of(found: Sequence[HSIC], xx: HSIC, yy: HSIC, *, debiased: bool) -> Float[Tensor, "n_permutations"]:
    """CKA of what ``null_hsic`` gave."""
    return torch.tensor([cka_from_hsic(xy, xx, yy, debiased=debiased)[0] for xy in found], dtype=torch.float64)


@computed_in_torch("x", "y", labels=["units"])
def cka_resamples(
    x: Float[Array, "n dx"],
    y: Float[Array, "n dy"],
    n_resamples: int,
    *,
    debiased: bool = False,
    units: Labels | None = None,
    seed: int = 0,
) -> Float[Array, "n_resamples"]:
    """How much linear CKA varies with the examples: deviations of random half-samples from their mean.

    Takes tensors or NumPy arrays, and returns the same kind.

    Halves are drawn without replacement: a draw of m = n/2 of n rows varies as much about the whole sample as n rows
    vary about the population, ``(1 - m/n) / m = 1/n`` (Shao & Wu 1989, delete-half jackknife). The usual bootstrap
    draws rows twice; a row and its copy agree in both representations, which puts back the diagonal that the
    debiased form leaves out. Only the spread is used, since the bias of the biased form differs at half the size. With
    ``units``, halves are of units, which are then what is taken as independent.

    Returns:
        ``[n_resamples]``; the value plus their 2.5% and 97.5% quantiles is a 95% interval over examples. NaN
        where a half-sample has no CKA, and so for fewer than 8 examples in the debiased form.

    Example:
        >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        >>> cka_resamples(x, 2 * x, 10).abs().max() < 1e-12  # always 1
        tensor(True)
    """
    check_at_least(n_resamples=(n_resamples, 1))
    x, y = (compact(side) for side in paired(x, y))
    terms = (halves_hsic(a, b, n_resamples, seed, units=units) for a, b in ((x, y), (x, x), (y, y)))
    return deviations_of(*terms, debiased=debiased)


def halves_hsic(
    x: Float[Tensor, "n dx"],
    y: Float[Tensor, "n dy"],
    n_resamples: int,
    seed: int,
    precision: Precision = "float64",
    units: Shaped[Tensor, "n"] | None = None,
) -> list[HSIC]:
    """Of random halves of ``compact`` rows, or of their units, for both forms. The halves depend on n, the units and
    the seed alone, so that those of a side with itself serve every pair it is in."""
    halves = (half.to(x.device) for half in half_samples(len(x), n_resamples, seed, units))
    return [_hsic_of_half(x, y, half, precision, units) for half in halves]


def _hsic_of_half(x: Tensor, y: Tensor, half: Tensor, precision: Precision, units: Tensor | None) -> HSIC:
    if not len(half):
        return HSIC.biased_only(1, x.new_zeros(()))
    rows = x[half]
    if units is not None:
        k = kernel(rows, precision)
        return hsic_between_units(k, k if x is y else kernel(y[half], precision), units[half.to(units.device)])
    return hsic_of_rows(rows, rows if x is y else y[half], precision)


def deviations_of(
    xy: Sequence[HSIC], xx: Sequence[HSIC], yy: Sequence[HSIC], *, debiased: bool
) -> Float[Tensor, "n_resamples"]:
    """CKA of what ``halves_hsic`` gave, minus its mean."""
    found = [cka_from_hsic(*terms, debiased=debiased)[0] for terms in zip(xy, xx, yy, strict=True)]
    values = torch.tensor(found, dtype=torch.float64)
    return values - values.mean()
