"""HSIC of examples that come in units, of which only different ones are independent."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probes.functional.arrays import paired_matrices
from probes.functional.cka import Similarity
from probes.functional.hsic import HSIC, LEAST_DEBIASED, centred_kernel, cka_from_hsic, hsic_of_kernels


def hsic_between_units(
    k: Float[Tensor, "n n"],
    l: Float[Tensor, "n n"],  # noqa: E741
    units: Shaped[Tensor, "n"],
) -> HSIC:
    """Return HSIC from kernel matrices, whose debiased form takes examples of different units only.

    HSIC is the mean of ``K_ij L_ij`` over pairs, minus twice the mean of ``K_ij L_ir`` over triples, plus the mean of
    ``K_ij L_qr`` over quadruples of independent examples. Song et al. estimate it without bias from different examples.
    Here they are of different units, so that examples which share a template, or are repeated, add no bias. With units
    of one example it is HSIC_1. The biased form uses all examples.

    Source: Song et al. 2012, eq. 5, with means over units.

    Returns:
        The debiased form is NaN with fewer than 4 units.

    Example:
        >>> x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> once = x @ x.T
        >>> twice = once.repeat(2, 2)
        >>> units = torch.arange(20).repeat(2)
        >>> bool(torch.isclose(hsic_between_units(twice, twice, units).debiased, hsic_of_kernels(once, once).debiased))
        True
    """
    whole = hsic_of_kernels(k, l)
    member = torch.unique(units.to(k.device), return_inverse=True)[1]
    in_unit = torch.nn.functional.one_hot(member).double()  # [n unit]
    if in_unit.shape[1] < LEAST_DEBIASED:
        nan = torch.full_like(whole.biased, torch.nan)
        return whole._replace(debiased=nan, terms=nan)
    other = (member[:, None] != member).double()
    k = k.double() * other
    l = l.double() * other  # noqa: E741
    ones = _sums(other, other, in_unit)  # numbers of pairs, triples and quadruples
    pairs, triples, quadruples = (total / count for total, count in zip(_sums(k, l, in_unit), ones, strict=True))
    terms = torch.stack([pairs, -2 * triples, quadruples])
    return whole._replace(debiased=terms.sum(), terms=terms.abs().sum())


def cka_between_units(
    x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], units: Shaped[Tensor, "n"], *, debiased: bool = True
) -> Similarity:
    """Return linear CKA of examples that come in units, from ``hsic_between_units``.

    Args:
        x: rows of one representation, of any floating dtype.
        y: rows of the other, in the order of ``x``.
        units: unit of each row.
        debiased: which form.

    Raises:
        InputError: for arrays that are not paired rows, or that hold NaN or infinity.

    Example:
        >>> x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        >>> round(float(cka_between_units(x, 2 * x, torch.arange(20) // 2)), 9)
        1.0
    """
    x, y = paired_matrices(x, y)
    k = centred_kernel(x)
    l = centred_kernel(y)  # noqa: E741
    terms = (hsic_between_units(a, b, units) for a, b in ((k, l), (k, k), (l, l)))
    value, why = cka_from_hsic(*terms, debiased=debiased)
    return Similarity(value, len(x), (x.shape[1], y.shape[1]), why)


def _sums(
    k: Float[Tensor, "n n"],
    l: Float[Tensor, "n n"],  # noqa: E741
    in_unit: Float[Tensor, "n unit"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """Return sums of products over pairs, triples and quadruples of different units, of matrices that are 0 within."""
    row_k = k @ in_unit
    row_l = l @ in_unit
    between_k = in_unit.T @ row_k  # [unit unit]
    between_l = in_unit.T @ row_l
    together = (between_k * between_l).sum()
    triples = (row_k.sum(1) * row_l.sum(1)).sum() - (row_k * row_l).sum()
    rows = (between_k.sum(1) * between_l.sum(1)).sum()
    quadruples = between_k.sum() * between_l.sum() - 4 * rows + 2 * together
    return (k * l).sum(), triples, quadruples
