"""Second opinions beside linear CKA: other similarities, dimensions, neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
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


def positive(fraction: float) -> float:
    """``fraction``, or an ``InputError`` where it is none."""
    if not fraction > 0:
        raise InputError(f"fraction is {fraction}; expected a number above 0, such as 0.5")
    return fraction


def rbf_scale(x: Float[Tensor, "n d"], fraction: float) -> float:
    """``fraction`` of the median distance between different rows; NaN where all rows are the same."""
    x, fraction = centred(matrix(x, "x")), positive(fraction)
    if not bool(x.any()):
        return math.nan
    return fraction * float(np.median(torch.pdist(x).cpu().numpy(), overwrite_input=True))


def rbf_undefined(x: float, y: float) -> tuple[float, str] | None:
    """Why there is no kernel of these widths, beside the NaN it makes."""
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


def svcca(x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], *, variance: float = 0.99) -> Similarity:
    """Mean canonical correlation between the principal directions that hold ``variance`` of each side.

    Not far from 1 for unrelated rows too, unless n is much larger than the numbers of directions (which ``note``
    tells). Does not change with a rotation, a common scale or a shift of either side.

    Source: Raghu et al. 2017 (arXiv 1706.05806).

    Args:
        x: rows of one representation; computed in float64.
        y: rows of the other, in the same order.
        variance: share of the variance to keep, above 0 and at most 1.

    Example:
        >>> x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
        >>> round(float(svcca(x, x.flip(1) + 1)), 9), svcca(x, x).note
        (1.0, '3 and 3 directions')
    """
    x, y = paired(x, y)
    bases = principal(x, variance), principal(y, variance)
    value, why = mean_correlation(*bases)
    directions = " and ".join(str(basis.shape[1]) for basis in bases)
    return Similarity(value, len(x), (x.shape[1], y.shape[1]), why or f"{directions} directions")


def principal(x: Float[Tensor, "n d"], variance: float) -> Float[Tensor, "n k"]:
    """An orthonormal basis of the rows' coordinates in the directions that hold ``variance`` of the variance.

    Without columns where all rows are the same.
    """
    u, s, _ = torch.linalg.svd(_unit(centred(matrix(x, "x"))), full_matrices=False)
    return u[:, : _directions(s, variance)]


def mean_correlation(x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"]) -> tuple[float, str]:
    """The mean canonical correlation of two such bases, and why it is NaN (empty where it is not)."""
    for name, basis in (("x", x), ("y", y)):
        if not basis.shape[1]:
            return math.nan, f"{name}: all examples are the same"
    return float(torch.linalg.svdvals(x.T @ y).mean()), ""


def n_dims(x: Float[Tensor, "n d"], *, variance: float = 0.99) -> float:
    """How many principal directions hold at least ``variance`` of the variance; NaN where all rows are the same.

    Never more than n - 1: compare only values at one n.

    Example:
        >>> n_dims(torch.eye(3) * torch.tensor([[1.0], [10.0], [10.0]]))
        2.0
    """
    return float(_directions(torch.linalg.svdvals(_unit(centred(matrix(x, "x")))), variance)) or math.nan


def share(variance: float) -> float:
    """``variance``, or an ``InputError`` where it is no share."""
    if not 0 < variance <= 1:
        raise InputError(f"variance is {variance}; expected a share above 0 and at most 1")
    return variance


def _unit(x: Tensor) -> Tensor:
    """Scaled to a largest entry of 1, so that squares neither vanish nor overflow."""
    largest = x.abs().max()
    return x / largest if bool(largest > 0) else x


def _directions(s: Tensor, variance: float) -> int:
    """How many singular values hold the share; none that is 0 up to rounding."""
    s = s[s > s[0] * len(s) * torch.finfo(s.dtype).eps]
    held = s.square().cumsum(0) / s.square().sum()
    return min(len(s), int((held < share(variance) * (1 - 1e-12)).sum()) + 1)


def neighbour_purity(x: Float[Tensor, "n d"], labels: Shaped[Tensor, "n"], k: int = 10) -> float:
    """Share of the ``k`` nearest other examples (Euclidean distance) that have an example's own label, on average.

    By chance ``neighbour_purity_chance``. Of examples equally near, which count depends on their order.

    Source: scikit-learn's ``NearestNeighbors``, by brute force.

    Args:
        x: rows; computed in float64.
        labels: of each row.
        k: neighbours, fewer than there are rows.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> neighbour_purity(x, torch.tensor([5, 5, 7, 7]), k=1)
        1.0
    """
    from sklearn.neighbors import NearestNeighbors
    from threadpoolctl import threadpool_limits

    rows, names = centred(matrix(x, "x")).cpu().numpy(), _labels(labels)
    if len(names) != len(rows):
        raise InputError(f"x has {len(rows)} rows for {len(names)} labels; give one label a row")
    if not 1 <= k < len(rows):
        raise InputError(f"k is {k} for {len(rows)} examples; expected 1 to {len(rows) - 1}")
    with threadpool_limits(1):  # the same sums in the same order
        near = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(rows).kneighbors(return_distance=False)
    return float((names[near] == names[:, None]).mean())


def neighbour_purity_chance(labels: Shaped[Tensor, "n"]) -> float:
    """``neighbour_purity`` when neighbours are drawn at random: share of pairs with one label. NaN for one row.

    Example:
        >>> neighbour_purity_chance(torch.tensor([0, 0, 1, 1]))
        0.3333333333333333
    """
    counts = np.unique(_labels(labels), return_counts=True)[1]
    n = int(counts.sum())
    return float((counts * (counts - 1)).sum() / (n * (n - 1))) if n > 1 else math.nan


def _labels(labels: Any) -> np.ndarray:
    return labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
