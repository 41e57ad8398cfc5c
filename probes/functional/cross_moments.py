"""Sums over paired rows from which linear CKA follows exactly, in one streaming pass."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.arrays import in_float64
from probes.functional.hsic import HSIC, LEAST_DEBIASED
from probes.functional.preprocess import row_mean
from probes.functional.products import ROUNDING, Precision, product
from tasks import InputError

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class CrossMoments:
    """Sums over paired rows ``x_i``, ``y_i`` from which the HSIC of linear kernels follows exactly.

    Additive: ``a.merge(b)`` are the moments of all rows of both, whatever the split and order. CKA takes three of them:
    of (x, y), of (x, x) and of (y, y).

    Numerics: the sums are of ``x - x0`` and ``y - y0``. CKA does not change under translation, but raw moments
    (``x0 = 0``) lose all digits if the mean is far larger than the spread. The points ``x0``, ``y0`` are the means of
    the first rows. They are moved, and the sums translated, when the mean makes up over half of the squares, so that
    at most a bit is lost. That is nearly as good as a running centre (Chan's update), which would go through
    ``product`` three more times in every batch. Equal rows give exact zeros, so that a constant is recognised. The
    cancellation in HSIC_1 itself remains, ``HSIC.terms``: one row ``D`` times as long as the others costs a factor of
    about ``10 D^2 / n``.

    Memory: ``dx dy + 3 (dx + dy)`` float64 numbers, independent of the number of examples.

    Attributes:
        n: number of rows.
        x0, y0: the fixed points, which are subtracted from the rows in all sums below.
        sum_x, sum_y: ``sum x``, ``sum y``.
        product: ``sum x y'``.
        square_x, square_y: ``sum |x|^2``, ``sum |y|^2``.
        cube_x, cube_y: ``sum |y|^2 x``, ``sum |x|^2 y``.
        fourth: ``sum |x|^2 |y|^2``.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
        >>> whole = CrossMoments.of_rows(x, x)
        >>> parts = CrossMoments.of_rows(x[:1], x[:1]).merge(CrossMoments.of_rows(x[1:], x[1:]))
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
    def of_rows(
        cls,
        x: Float[Tensor, "row dx"],
        y: Float[Tensor, "row dy"],
        like: CrossMoments | None = None,
        precision: Precision = "float64",
    ) -> CrossMoments:
        """Return the moments of at least one row. The rows are known to be paired and finite.

        On a CPU they are added 1,024 at a time, so that temporary arrays stay small.

        Args:
            x: rows of one representation.
            y: rows of the other, in the order of ``x``.
            like: moments whose fixed points to begin with. By default, the means of the first rows that are added.
            precision: ``"float32"`` rounds rows minus the point to float32 for ``product``, block by block.
        """
        at_once = len(x) if x.is_cuda else _ROWS_AT_ONCE
        blocks = zip(torch.split(x, at_once), torch.split(y, at_once), strict=True)
        moments = cls._of_block(*next(blocks), like, precision)
        for some_x, some_y in blocks:
            moments = moments.merge(cls._of_block(some_x, some_y, moments, precision))
        return moments

    @classmethod
    def _of_block(
        cls, x: Float[Tensor, "row dx"], y: Float[Tensor, "row dy"], like: CrossMoments | None, precision: Precision
    ) -> CrossMoments:
        x = in_float64(x)
        y = in_float64(y)
        x0 = row_mean(x) if like is None else like.x0
        y0 = row_mean(y) if like is None else like.y0
        x = x - x0
        y = y - y0
        square_x = x.square().sum(dim=1)
        square_y = y.square().sum(dim=1)
        return cls(
            n=len(x),
            x0=x0,
            y0=y0,
            sum_x=x.sum(0),
            sum_y=y.sum(0),
            product=product(x, y, precision),
            square_x=square_x.sum(),
            square_y=square_y.sum(),
            cube_x=square_y @ x,
            cube_y=square_x @ y,
            fourth=square_x @ square_y,
        )

    def merge(self, other: CrossMoments) -> CrossMoments:
        """Return the moments of the rows of both.

        Raises:
            InputError: for moments of rows of other dimensions.
        """
        dims = list(self.product.shape)
        if list(other.product.shape) != dims:
            raise InputError(f"x and y have {list(other.product.shape)} dimensions; expected {dims}, as before")
        if self.n < other.n:  # the fixed points of the many fit better
            return other.merge(self)
        other = other.about(self.x0, self.y0)
        sums = (getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[3:])
        return CrossMoments(self.n + other.n, self.x0, self.y0, *sums).near_the_means()

    def about(self, x0: Float[Tensor, "dx"], y0: Float[Tensor, "dy"]) -> CrossMoments:
        """Return the moments of these rows about other fixed points."""
        shift_x = self.x0 - x0
        shift_y = self.y0 - y0
        return self.translated(shift_x, shift_y) if bool(shift_x.any()) or bool(shift_y.any()) else self

    def near_the_means(self) -> CrossMoments:
        """Return the moments about the means if the fixed points have proved far from them."""
        x_is_far = self.sum_x @ self.sum_x > self.n / 2 * self.square_x
        y_is_far = self.sum_y @ self.sum_y > self.n / 2 * self.square_y
        if not bool(x_is_far | y_is_far):
            return self
        x0 = self.x0 + self.sum_x / self.n
        y0 = self.y0 + self.sum_y / self.n
        return self.translated(self.x0 - x0, self.y0 - y0)  # the rounded step applies to later rows

    def translated(self, u: Float[Tensor, "dx"], v: Float[Tensor, "dy"]) -> CrossMoments:
        """Return the moments about the points ``x0 - u`` and ``y0 - v``: rows are then ``u`` and ``v`` further on."""
        n = self.n
        u_squared = u @ u
        v_squared = v @ v
        square_x = self.square_x + 2 * u @ self.sum_x + n * u_squared
        square_y = self.square_y + 2 * v @ self.sum_y + n * v_squared
        product_v = self.product @ v
        u_product = u @ self.product
        linear_in_cubes = v @ self.cube_y + u @ self.cube_x
        linear_in_sums = v_squared * u @ self.sum_x + u_squared * v @ self.sum_y
        in_squares = v_squared * self.square_x + u_squared * self.square_y + n * u_squared * v_squared
        return CrossMoments(
            n=n,
            x0=self.x0 - u,
            y0=self.y0 - v,
            sum_x=self.sum_x + n * u,
            sum_y=self.sum_y + n * v,
            product=torch.addr(self.product, self.sum_x + n * u, v).addr_(u, self.sum_y),
            square_x=square_x,
            square_y=square_y,
            cube_x=self.cube_x + 2 * product_v + v_squared * self.sum_x + square_y * u,
            cube_y=self.cube_y + 2 * u_product + u_squared * self.sum_y + square_x * v,
            fourth=self.fourth + 2 * (linear_in_cubes + 2 * u_product @ v + linear_in_sums) + in_squares,
        )

    def centred(self) -> CrossMoments:
        """Return the moments about the means: ``product / n`` is then the covariance."""
        return self.translated(-self.sum_x / self.n, -self.sum_y / self.n)

    def hsic(self, precision: Precision = "float64") -> HSIC:
        """Return both estimates of HSIC of the linear kernels.

        About the means the sums shorten: ``HSIC_0 = |X'Y|^2 / (n-1)^2`` and ``HSIC_1 = (|X'Y|^2 -
        n/(n-2) sum |x|^2 |y|^2 + sum |x|^2 sum |y|^2 / ((n-1)(n-2))) / (n (n-3))``.

        Args:
            precision: precision of ``product``.
        """
        n = self.n
        centred = self.centred()
        squares = centred.product.square().sum()
        if n < LEAST_DEBIASED:
            return HSIC.biased_only(n, squares)
        terms = torch.stack(
            [squares, -n / (n - 2) * centred.fourth, centred.square_x * centred.square_y / ((n - 1) * (n - 2))]
        ) / (n * (n - 3))
        return HSIC(n, squares / (n - 1) ** 2, terms.sum(), terms.abs().sum(), ROUNDING[precision])
