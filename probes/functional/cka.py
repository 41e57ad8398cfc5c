"""Linear CKA of paired rows: exact, biased and debiased, from kernels if there are few rows, from moments if many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch, in_float64
from probes.functional.cross_moments import CrossMoments
from probes.functional.hsic import HSIC, cka_from_hsic, hsic_of_blocks, linear_kernel
from probes.functional.preprocess import centred_matrix
from probes.functional.products import Precision, check_precision
from probes.functional.top_components import top_components, without_components
from tasks import InputError
from tasks.errors import check_count


class Similarity(NamedTuple):
    """Similarity of two representations of shared examples. ``float()`` gives the value.

    Attributes:
        value: the similarity, never clamped. NaN if undefined.
        n: number of examples.
        d: dimensions of the two.
        note: why the value is NaN, or another caveat. Empty otherwise.

    Example:
        >>> float(Similarity(value=0.5, n=10, d=(3, 4)))
        0.5
    """

    value: float
    n: int
    d: tuple[int, int]
    note: str = ""

    def __float__(self) -> float:
        return self.value


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
    check_precision(precision)
    check_count(remove_top=(remove_top, 0))
    n = len(x)
    d = (x.shape[1], y.shape[1])
    if remove_top:
        x, why_x = without_top_components(x, remove_top)
        y, why_y = without_top_components(y, remove_top)
        if why_x or why_y:
            return Similarity(math.nan, n, d, f"x: {why_x}" if why_x else f"y: {why_y}")
    hsic = linear_hsic({"x": x, "y": y}, [("x", "y"), ("x", "x"), ("y", "y")], precision)
    value, why = cka_from_hsic(hsic["x", "y"], hsic["x", "x"], hsic["y", "y"], debiased=debiased)
    return Similarity(value, n, d, why or ("" if debiased else _bias_note(n, max(d))))


def cka_from_moments(xy: CrossMoments, xx: CrossMoments, yy: CrossMoments, *, debiased: bool = False) -> Similarity:
    """Return linear CKA from the moments of (x, y), (x, x) and (y, y), see ``linear_cka``.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [4.0, 4.0], [0.0, 3.0]])
        >>> y = x[:, :1] + 1
        >>> moments = [CrossMoments.of(a, b) for a, b in ((x, y), (x, x), (y, y))]
        >>> round(float(cka_from_moments(*moments)), 6) == round(float(linear_cka(x, y)), 6)
        True
    """
    _check_moments(xy, xx, yy)
    value, why = cka_from_hsic(xy.hsic(), xx.hsic(), yy.hsic(), debiased=debiased)
    d = (len(xx.x0), len(yy.x0))
    return Similarity(value, xy.n, d, why or ("" if debiased else _bias_note(xy.n, max(d))))


def _check_moments(xy: CrossMoments, xx: CrossMoments, yy: CrossMoments) -> None:
    """Refuse moments whose examples or dimensions differ from the other two's."""
    for name, moments in (("xy", xy), ("xx", xx), ("yy", yy)):
        if not isinstance(moments, CrossMoments):
            raise InputError(f"{name} is a {type(moments).__name__}; expected CrossMoments")
    dims = [tuple(moments.product.shape) for moments in (xy, xx, yy)]
    dx, dy = dims[0]
    if not xy.n == xx.n == yy.n or dims[1:] != [(dx, dx), (dy, dy)]:
        shapes = ", ".join(str(list(shape)) for shape in dims)
        raise InputError(
            f"the moments are of {xy.n}, {xx.n} and {yy.n} examples and of {shapes} dimensions; "
            "give moments of (x, y), (x, x) and (y, y) of the same examples"
        )


def linear_hsic(
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
        return hsic_of_blocks({site: linear_kernel(x, precision) for site, x in rows.items()}, n, pairs, precision)
    return {(x, y): CrossMoments.of_rows(rows[x], rows[y], precision=precision).hsic(precision) for x, y in pairs}


def compact_rows(x: Float[Tensor, "row dim"]) -> Float[Tensor, "row kept"]:
    """Return centred rows in at most n dimensions with unchanged inner products."""
    x = centred_matrix(x)
    return x if x.shape[1] <= len(x) else torch.linalg.qr(x.T, mode="r")[1].T


def _bias_note(n: int, d: int) -> str:
    """Return a caveat on a biased value, or ``""`` if n >= 10 d."""
    return "" if n >= 10 * d else f"n = {n} is below 10 d (d = {d}): the biased form is too high; see the debiased one"


def without_top_components(x: Float[Tensor, "row dim"], k: int) -> tuple[Float[Tensor, "row dim"], str]:
    """Return centred rows without their ``k`` largest components, and why these are undefined (or ``""``)."""
    rows = centred_matrix(x)
    components, why = top_components(rows, k)
    return without_components(rows, components), why
