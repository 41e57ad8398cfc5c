"""CKA with Gaussian kernels."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.cka import HSIC, Similarity, centred, cka_from_hsic, matrix, paired
from tasks import InputError

_BLOCK = 2**22  # kernel entries at once


def rbf_cka(
    x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], *, fraction: float = 0.5, debiased: bool = False
) -> Similarity:
    """CKA with Gaussian kernels ``exp(-|a - b|^2 / (2 s^2))``, ``s`` a fraction of the median distance on each side.

    Sees structure that linear CKA misses (small ``fraction``), and tends to it as ``fraction`` grows. Does not change
    with a rotation, a common scale or a shift of either side.

    Memory: ``n^2 / 2`` float64 numbers while a median is found (400 MB for 10,000 rows); afterwards blocks of 4
    million kernel entries. Cost: ``n^2 (dx + dy)``.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), section 3; HSIC_1 as in ``linear_cka``.

    Args:
        x: rows of one representation; computed in float64.
        y: rows of the other, in the same order.
        fraction: of the median distance between different examples.
        debiased: which form.

    Example:
        >>> x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
        >>> round(float(rbf_cka(x, 5 * x - 1)), 9)
        1.0
    """
    x, y = paired(x, y)
    scales = rbf_scale(x, fraction), rbf_scale(y, fraction)
    value, why = rbf_undefined(*scales) or cka_from_hsic(*rbf_hsic(x, y, *scales), debiased=debiased)
    return Similarity(value, len(x), (x.shape[1], y.shape[1]), why)


def check_fraction(fraction: float) -> float:
    """``fraction``, or an ``InputError`` where it is not above 0."""
    if not fraction > 0:
        raise InputError(f"fraction is {fraction}; expected a number above 0, such as 0.5")
    return fraction


def rbf_scale(x: Float[Tensor, "n d"], fraction: float) -> float:
    """``fraction`` of the median distance between different rows; NaN where all rows are the same."""
    x, fraction = centred(matrix(x, "x")), check_fraction(fraction)
    if not bool(x.any()):
        return math.nan
    return fraction * float(np.median(torch.pdist(x).cpu().numpy(), overwrite_input=True))


def rbf_undefined(x: float, y: float) -> tuple[float, str] | None:
    """NaN and why, where a kernel of these widths is undefined."""
    for name, scale in (("x", x), ("y", y)):
        if math.isnan(scale):
            return math.nan, f"{name}: all examples are the same"
        if not scale:
            return math.nan, f"{name}: more than half of the distances between examples are 0"
    return None


def rbf_hsic(x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], *scales: float) -> tuple[HSIC, HSIC, HSIC]:
    """HSIC of the Gaussian kernels of these widths, of (x, y), (x, x) and (y, y)."""
    sides, n = [centred(side) for side in paired(x, y)], len(x)
    kl, kk, ll = (sides[0].new_zeros(()) for _ in range(3))
    k_sums, l_sums = [], []
    for rows in torch.split(torch.arange(n, device=sides[0].device), max(1, _BLOCK // n)):
        k, l = (_kernel(side[rows], side, scale) for side, scale in zip(sides, scales, strict=True))  # noqa: E741
        k[torch.arange(len(rows)), rows] = 0.0
        l[torch.arange(len(rows)), rows] = 0.0
        kl, kk, ll = kl + (k * l).sum(), kk + k.square().sum(), ll + l.square().sum()
        k_sums.append(k.sum(1))
        l_sums.append(l.sum(1))
    k_row, l_row = torch.cat(k_sums), torch.cat(l_sums)
    pairs, zeros = ((kl, k_row, l_row), (kk, k_row, k_row), (ll, l_row, l_row)), torch.zeros_like(k_row)
    xy, xx, yy = (HSIC.of_sums(n, *sums, (zeros, zeros)) for sums in pairs)
    return xy, xx, yy


def _kernel(rows: Tensor, x: Tensor, scale: float) -> Tensor:
    """The kernel minus 1: HSIC does not change with a constant, and a wide kernel keeps its digits."""
    distance = torch.cdist(rows / scale, x / scale, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.expm1(-distance.square() / 2)
