"""Linear CKA of paired rows: exact in one streaming pass, biased and debiased; by chance; how far examples move it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.arrays import Array, as_tensor, computed_in_torch
from probes.functional.products import ROUNDING, Precision, check_precision, float32_as_it_is, product
from probes.functional.top_components import top_components, without_components
from tasks import InputError
from tasks.errors import check_at_least

LEAST_DEBIASED = 4  # examples that HSIC_1 needs
# Of a difference this many times the rounding below its terms fewer than four digits are left: it counts as 0.
_RESOLUTION = 1e4


class Similarity(NamedTuple):
    """How similar two representations of the same examples are; ``float()`` gives the value.

    Attributes:
        value: the similarity; NaN where it is undefined, and never clamped.
        n: number of examples.
        d: dimensions of the two.
        note: why the value is NaN, or what a reader must know; empty otherwise.
    """

    value: float
    n: int
    d: tuple[int, int]
    note: str = ""

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, eq=False)
class CrossMoments:
    """Sums over paired rows ``x_i``, ``y_i`` from which the HSIC of linear kernels follows exactly.

    Additive: ``a.merge(b)`` are the moments of all rows of both, whatever the split and order, and ``a.update(x, y)``
    adds a batch. For CKA take three of them: of (x, y), of (x, x) and of (y, y); see ``cka_from_moments``.

    Numerics: the sums are of ``x - x0`` and ``y - y0``. CKA does not change under translation, but raw moments
    (``x0 = 0``) lose all digits where the mean is far larger than the spread. The points ``x0``, ``y0`` are the means
    of the first batch. They are moved, and the sums translated, when the mean has come to hold over half of the
    squares, so that at most a bit is lost. That is nearly as good as a running centre (Chan's update), which would
    have to go through ``product`` three more times in every batch. Equal rows give exact zeros, so that a constant
    is recognised. What stays is the cancellation in HSIC_1 itself, ``HSIC.terms``: one row ``D`` times as long as
    the others costs a factor of about ``10 D^2 / n``.

    Memory: ``dx dy + 3 (dx + dy)`` float64 numbers, independent of the number of examples.

    Attributes:
        n: number of rows.
        x0, y0: the fixed points; what follows is of rows minus these.
        sum_x, sum_y: ``sum x``, ``sum y``.
        product: ``sum x y'``.
        square_x, square_y: ``sum |x|^2``, ``sum |y|^2``.
        cube_x, cube_y: ``sum |y|^2 x``, ``sum |x|^2 y``.
        fourth: ``sum |x|^2 |y|^2``.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
        >>> whole = CrossMoments.of(x, x)
        >>> parts = CrossMoments.of(x[:1], x[:1]).merge(CrossMoments.of(x[1:], x[1:]))
        >>> bool(torch.isclose(whole.hsic().biased, parts.hsic().biased))
        True
    """

    n: int
    x0: Float[Tensor, "dx"]
    y0: Float[Tensor, "dy"]
    sum_x: Float[Tensor, "dx"]
    sum_y: Float[Tensor, "dy"]
    product: Float[Tensor, "dx dy"]
    square_x: Float[Tensor, ""]
    square_y: Float[Tensor, ""]
    cube_x: Float[Tensor, "dx"]
    cube_y: Float[Tensor, "dy"]
    fourth: Float[Tensor, ""]

    @classmethod
    def of(
        cls,
        x: Float[Array, "n dx"],
        y: Float[Array, "n dy"],
        like: CrossMoments | None = None,
        precision: Precision = "float64",
    ) -> CrossMoments:
        """The moments of at least one row, about the fixed points of ``like`` where it is given.

        ``precision="float32"``: rows minus the point are rounded to float32 for ``product``, block by block.
        """
        x, y = float64(as_tensor(x)), float64(as_tensor(y))
        x0, y0 = (centre(x), centre(y)) if like is None else (like.x0, like.y0)
        x, y = x - x0, y - y0
        p, q = x.square().sum(dim=1), y.square().sum(dim=1)
        together = product(x, y, precision)
        return cls(len(x), x0, y0, x.sum(0), y.sum(0), together, p.sum(), q.sum(), q @ x, p @ y, p @ q)

    def update(self, x: Float[Array, "n dx"], y: Float[Array, "n dy"]) -> CrossMoments:
        """The moments of these rows and the ones so far."""
        if not len(x):
            return self
        return self.merge(CrossMoments.of(x, y, like=self if self.n >= len(x) else None))

    def merge(self, other: CrossMoments) -> CrossMoments:
        """The moments of the rows of both."""
        if self.n < other.n:  # the fixed points of the many fit better
            return other.merge(self)
        other = other.about(self.x0, self.y0)
        sums = (getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[3:])
        return CrossMoments(self.n + other.n, self.x0, self.y0, *sums).near_the_means()

    def about(self, x0: Float[Tensor, "dx"], y0: Float[Tensor, "dy"]) -> CrossMoments:
        """The same about other fixed points."""
        shift_x, shift_y = self.x0 - x0, self.y0 - y0
        return self.translated(shift_x, shift_y) if bool(shift_x.any()) or bool(shift_y.any()) else self

    def near_the_means(self) -> CrossMoments:
        """The same about the means, where the fixed points have proved far from them."""
        x, y, half = self.sum_x, self.sum_y, self.n / 2
        if not bool((x @ x > half * self.square_x) | (y @ y > half * self.square_y)):
            return self
        x0, y0 = self.x0 + x / self.n, self.y0 + y / self.n
        return self.translated(self.x0 - x0, self.y0 - y0)  # by the rounded step, which later rows see

    def translated(self, u: Float[Tensor, "dx"], v: Float[Tensor, "dy"]) -> CrossMoments:
        """The same about the points ``x0 - u`` and ``y0 - v``: of the rows, about these ``u`` and ``v`` further on."""
        n, a, b = self.n, u @ u, v @ v
        square_x = self.square_x + 2 * u @ self.sum_x + n * a
        square_y = self.square_y + 2 * v @ self.sum_y + n * b
        towards_x, towards_y = self.product @ v, u @ self.product
        return CrossMoments(
            n,
            self.x0 - u,
            self.y0 - v,
            self.sum_x + n * u,
            self.sum_y + n * v,
            torch.addr(self.product, self.sum_x + n * u, v).addr_(u, self.sum_y),
            square_x,
            square_y,
            self.cube_x + 2 * towards_x + b * self.sum_x + square_y * u,
            self.cube_y + 2 * towards_y + a * self.sum_y + square_x * v,
            self.fourth
            + 2 * (v @ self.cube_y + u @ self.cube_x + 2 * towards_y @ v + b * u @ self.sum_x + a * v @ self.sum_y)
            + (b * self.square_x + a * self.square_y + n * a * b),
        )

    def centred(self) -> CrossMoments:
        """The same about the means: ``product / n`` is then the covariance."""
        return self.translated(-self.sum_x / self.n, -self.sum_y / self.n)

    def hsic(self, precision: Precision = "float64") -> HSIC:
        """Both estimates of HSIC of the linear kernels; ``precision`` is what ``product`` was made in.

        About the means the sums shorten: ``HSIC_0 = |X'Y|^2 / (n-1)^2`` and ``HSIC_1 = (|X'Y|^2 -
        n/(n-2) sum |x|^2 |y|^2 + sum |x|^2 sum |y|^2 / ((n-1)(n-2))) / (n (n-3))``.
        """
        n, centred, rounding = self.n, self.centred(), ROUNDING[precision]
        together = centred.product.square().sum()
        if n < LEAST_DEBIASED:
            return HSIC.biased_only(n, together)
        terms = torch.stack(
            [together, -n / (n - 2) * centred.fourth, centred.square_x * centred.square_y / ((n - 1) * (n - 2))]
        )
        scale = n * (n - 3)
        return HSIC(n, together / (n - 1) ** 2, terms.sum() / scale, terms.abs().sum() / scale, rounding)


class HSIC(NamedTuple):
    """Hilbert-Schmidt independence criterion of ``n`` pairs.

    Attributes:
        biased: HSIC_0 of Gretton et al. 2005, with ``(n-1)^2``.
        debiased: HSIC_1 of Song et al. 2012, eq. 5; NaN for fewer than 4 pairs.
        terms: the size of what was added up for ``debiased``, to tell it from rounding.
        rounding: of the products behind it, relative to them.
    """

    n: int
    biased: Tensor
    debiased: Tensor
    terms: Tensor
    rounding: float = ROUNDING["float64"]

    @classmethod
    def biased_only(cls, n: int, together: Tensor) -> HSIC:
        """Of fewer than 4 pairs."""
        nan = torch.full_like(together, torch.nan)
        return cls(n, together / (n - 1) ** 2 if n > 1 else torch.zeros_like(together), nan, nan)

    @classmethod
    def of_sums(
        cls,
        n: int,
        kl: Tensor,
        k: Tensor,
        l: Tensor,  # noqa: E741
        diagonals: tuple[Tensor, Tensor],
        precision: Precision = "float64",
    ) -> HSIC:
        """From kernel matrices' ``sum K*L``, row sums ``[n]`` and diagonals ``[n]``, all float64."""
        biased = kl - 2 / n * (k @ l) + k.sum() * l.sum() / n**2
        if n < LEAST_DEBIASED:
            return cls.biased_only(n, biased)
        off_kl, off_k, off_l = kl - diagonals[0] @ diagonals[1], k - diagonals[0], l - diagonals[1]
        terms = torch.stack(
            [off_kl, off_k.sum() * off_l.sum() / ((n - 1) * (n - 2)), -2 / (n - 2) * (off_k @ off_l)]
        ) / (n * (n - 3))
        return cls(n, biased / (n - 1) ** 2, terms.sum(), terms.abs().sum(), ROUNDING[precision])

    @property
    def error(self) -> float:
        """About how far rounding may move ``debiased``, relative to it."""
        return float(self.rounding * self.terms / self.debiased.abs())

    def undefined(self, debiased: bool) -> str:
        """Why the HSIC of a matrix with itself cannot be divided by; empty where it can."""
        if self.n < 2:
            return "there is one example only"
        if not bool(self.biased > 0):
            return "all examples are the same"
        if debiased and self.n < LEAST_DEBIASED:
            return f"there are {self.n} examples, and the debiased form needs at least {LEAST_DEBIASED}"
        if debiased and bool(self.debiased.isnan()):
            return f"there are fewer than {LEAST_DEBIASED} units, which the debiased form needs"
        if debiased and not bool(self.debiased > _RESOLUTION * self.rounding * self.terms):
            if self.rounding == ROUNDING["float64"]:
                return "every two examples are equally far apart, which leaves nothing to the debiased form"
            return "float32 leaves fewer than four digits of the debiased form; use precision='float64'"
        return ""


def cka_from_hsic(xy: HSIC, xx: HSIC, yy: HSIC, *, debiased: bool = False) -> tuple[float, str]:
    """``HSIC(x, y) / sqrt(HSIC(x, x) HSIC(y, y))``, and why it is NaN (empty where it is not)."""
    for name, own in (("x", xx), ("y", yy)):
        if reason := own.undefined(debiased):
            return math.nan, f"{name}: {reason}"
    top, x, y = ((h.debiased if debiased else h.biased) for h in (xy, xx, yy))
    return float(top / x.sqrt() / y.sqrt()), ""


def cka_from_moments(xy: CrossMoments, xx: CrossMoments, yy: CrossMoments, *, debiased: bool = False) -> Similarity:
    """Linear CKA from the moments of (x, y), (x, x) and (y, y); see ``linear_cka``.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [4.0, 4.0], [0.0, 3.0]])
        >>> y = x[:, :1] + 1
        >>> moments = [CrossMoments.of(a, b) for a, b in ((x, y), (x, x), (y, y))]
        >>> round(float(cka_from_moments(*moments)), 6) == round(float(linear_cka(x, y)), 6)
        True
    """
    if not xy.n == xx.n == yy.n:
        raise InputError(f"the moments are of {xy.n}, {xx.n} and {yy.n} examples; give moments of the same examples")
    value, why = cka_from_hsic(xy.hsic(), xx.hsic(), yy.hsic(), debiased=debiased)
    d = (len(xx.x0), len(yy.x0))
    return Similarity(value, xy.n, d, why or ("" if debiased else bias_note(xy.n, max(d))))


@computed_in_torch("x", "y")
def linear_cka(
    x: Float[Array, "n dx"],
    y: Float[Array, "n dy"],
    *,
    debiased: bool = False,
    precision: Precision = "float64",
    remove_top: int = 0,
) -> Similarity:
    """Linear centred kernel alignment of two representations of the same examples.

    Takes tensors or NumPy arrays.

    Biased: ``|Xc'Yc|^2 / (|Xc'Xc| |Yc'Yc|)`` (Frobenius norms, columns centred), in [0, 1]; of independent Gaussians
    with n = 100 and d = 4096 it is .98. Debiased: every HSIC replaced by its unbiased estimate HSIC_1, which may be
    negative; near 0 for independent rows. Neither changes with a rotation, a common scale or a shift of either side.

    Cost: ``n (dx^2 + dx dy + dy^2)`` through moments; where there are few rows, of the order of ``n^2 (dx + dy)``
    through n x n matrices. The value is the same.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), eq. 4; HSIC_1: Song et al. 2012, eq. 5, in CKA: Nguyen et al.
    2021 (arXiv 2010.15327), eq. 3.

    Args:
        x: rows of one representation; any floating dtype.
        y: rows of the other, in the same order.
        debiased: which form.
        precision: of the products; ``"float32"`` is faster and right to about 1e-7. Sums are float64 in either.
        remove_top: take this many of the largest principal components out of each side first; NaN where
            they cannot be told.

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
    x, y = paired(x, y)
    check_precision(precision)
    check_at_least(remove_top=(remove_top, 0))
    n, d = len(x), (x.shape[1], y.shape[1])
    if remove_top:
        x, y = centred(x), centred(y)
        (of_x, why_x), (of_y, why_y) = top_components(x, remove_top), top_components(y, remove_top)
        if why_x or why_y:
            return Similarity(math.nan, n, d, f"x: {why_x}" if why_x else f"y: {why_y}")
        x, y = without_components(x, of_x), without_components(y, of_y)
    terms = (hsic_of_rows(a, b, precision) for a, b in ((x, y), (x, x), (y, y)))
    value, why = cka_from_hsic(*terms, debiased=debiased)
    return Similarity(value, n, d, why or ("" if debiased else bias_note(n, max(d))))


def compact(x: Tensor) -> Tensor:
    """Centred rows in at most n dimensions with the same inner products."""
    x = centred(x)
    return x if x.shape[1] <= len(x) else torch.linalg.qr(x.T, mode="r")[1].T


def hsic_of_rows(x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], precision: Precision = "float64") -> HSIC:
    """HSIC of the linear kernels: ``n dx dy`` operations, or ``n^2 (dx + dy)`` where that is less."""
    if not few_rows(x, y):
        return CrossMoments.of(x, y, precision=precision).hsic(precision)
    k = kernel(x, precision)
    return hsic_of_kernels(k, k if x is y else kernel(y, precision))


def few_rows(x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"]) -> bool:
    """Whether n x n kernel matrices are less work than ``dx x dy`` moments."""
    return len(x) * (x.shape[1] + y.shape[1]) < x.shape[1] * y.shape[1]


def kernel(x: Float[Tensor, "n d"], precision: Precision = "float64") -> Float[Tensor, "n n"]:
    """Inner products of the centred rows, in ``precision``."""
    rows = centred(float64(x))
    if precision == "float64":
        return rows @ rows.T
    with float32_as_it_is():
        return (rows := rows.float()) @ rows.T


def hsic_of_kernels(k: Float[Tensor, "n n"], l: Float[Tensor, "n n"]) -> HSIC:  # noqa: E741
    """HSIC from whole kernel matrices, in their precision; the sums are float64."""
    together, k_sums, l_sums = (k * l).sum(dtype=torch.float64), *(m.sum(1, dtype=torch.float64) for m in (k, l))
    precision: Precision = "float32" if k.dtype is torch.float32 else "float64"
    diagonals = k.diagonal().double(), l.diagonal().double()
    return HSIC.of_sums(len(k), together, k_sums, l_sums, diagonals, precision)


def bias_note(n: int, d: int) -> str:
    """What to know of a biased value; empty where n >= 10 d."""
    return "" if n >= 10 * d else f"n = {n} is below 10 d (d = {d}): the biased form is too high; see the debiased one"


def paired(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Two float64 matrices of paired rows, on the first one's device.

    Raises:
        InputError: for other shapes, no rows, or rows that are not finite.
    """
    x, y = matrix(x, "x"), matrix(y, "y")
    if len(x) != len(y):
        raise InputError(f"x has {len(x)} rows and y {len(y)}; give both for the same examples, in the same order")
    return x, y.to(x.device)


def matrix(rows: Any, name: str) -> Tensor:
    """``rows`` as a float64 matrix of at least one finite row."""
    x = torch.as_tensor(rows)
    if x.ndim != 2 or not x.numel():
        raise InputError(f"{name} has shape {tuple(x.shape)}; expected [examples dimensions], at least one of each")
    x = float64(x)
    if bool((bad := ~torch.isfinite(x).all(dim=1)).any()):
        raise InputError(f"{name} has NaN or infinity in row {int(bad.nonzero()[0])}; leave the example out of both")
    return x


def float64(x: Tensor) -> Tensor:
    """In double precision, on a device that has it."""
    x = x.detach()
    return (x.cpu() if x.device.type == "mps" else x).double()  # MPS has no float64


def centre(x: Tensor) -> Tensor:
    """The mean, or the row itself, exactly, where all rows are the same."""
    return x[0] + (x - x[0]).mean(dim=0)


def centred(x: Tensor) -> Tensor:
    """``x`` minus its mean: exact zeros where all rows are the same."""
    return x - centre(x)
