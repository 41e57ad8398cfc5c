"""HSIC, the numerator and the denominators of CKA, from kernel matrices: whole, by blocks, or between units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probes.functional.arrays import Matrix, in_float64
from probes.functional.matrix_blocks import upper_matrix_blocks
from probes.functional.preprocess import row_mean
from probes.functional.products import ROUNDING, Precision, full_float32_products

LEAST_DEBIASED = 4  # examples that HSIC_1 needs
# Of a difference this many times the rounding below its terms fewer than four digits are left: it counts as 0.
_RESOLUTION = 1e4
_MAX_BLOCK_ROWS = 1024
_MIN_BLOCK_ROWS = 128
_MAX_BLOCK_NUMBERS = 2**24  # numbers in one block of all kernels

Kernel: TypeAlias = Float[Tensor, "row row"]
KernelBlock: TypeAlias = Callable[[slice, slice], Float[Tensor, "some others"]]


class HSIC(NamedTuple):
    """Hilbert-Schmidt independence criterion of ``n`` pairs.

    Attributes:
        n: number of examples.
        biased: HSIC_0 of Gretton et al. 2005, with ``(n-1)^2``.
        debiased: HSIC_1 of Song et al. 2012, eq. 5. NaN for fewer than 4 pairs.
        terms: the size of the terms of ``debiased``, to distinguish it from rounding.
        rounding: rounding of the products behind it, relative to them.

    Example:
        >>> one = torch.tensor(1.0)
        >>> HSIC(n=5, biased=one, debiased=one / 2, terms=one).debiased.item()
        0.5
    """

    n: int
    biased: Float[Tensor, ""]
    debiased: Float[Tensor, ""]
    terms: Float[Tensor, ""]
    rounding: float = ROUNDING["float64"]

    @classmethod
    def biased_only(cls, n: int, product: Float[Tensor, ""]) -> HSIC:
        """Return HSIC of fewer than 4 pairs from ``sum K*L`` of centred kernel matrices."""
        nan = torch.full_like(product, torch.nan)
        return cls(n, product / (n - 1) ** 2 if n > 1 else torch.zeros_like(product), nan, nan)

    @classmethod
    def of_sums(
        cls,
        n: int,
        kl: Float[Tensor, ""],
        k: Float[Tensor, "row"],
        l: Float[Tensor, "row"],  # noqa: E741
        diagonals: tuple[Float[Tensor, "row"], Float[Tensor, "row"]],
        precision: Precision = "float64",
    ) -> HSIC:
        """Return HSIC from float64 sums over two kernel matrices.

        With ``K~`` and ``L~``, the matrices without their diagonals, and ``1``, a vector of ones::

            HSIC_0 = tr(K H L H) / (n-1)^2, where H = I - 11'/n
            HSIC_1 = (tr(K~ L~) + 1'K~1 1'L~1 / ((n-1)(n-2)) - 2 / (n-2) 1'K~ L~1) / (n (n-3))

        Source: Gretton et al. 2005 for HSIC_0. Song et al. 2012, eq. 5, for HSIC_1.

        Args:
            n: number of examples.
            kl: ``sum K*L``.
            k: sums of the rows of ``K``.
            l: sums of ``L``.
            diagonals: diagonals of ``K`` and ``L``.
            precision: precision of their entries.
        """
        biased = kl - 2 / n * (k @ l) + k.sum() * l.sum() / n**2
        if n < LEAST_DEBIASED:
            return cls.biased_only(n, biased)
        off_kl = kl - diagonals[0] @ diagonals[1]
        off_k = k - diagonals[0]
        off_l = l - diagonals[1]
        terms = torch.stack(
            [off_kl, off_k.sum() * off_l.sum() / ((n - 1) * (n - 2)), -2 / (n - 2) * (off_k @ off_l)]
        ) / (n * (n - 3))
        return cls(n, biased / (n - 1) ** 2, terms.sum(), terms.abs().sum(), ROUNDING[precision])

    @property
    def error(self) -> float:
        """About how far rounding may move ``debiased``, relative to it."""
        return float(self.rounding * self.terms / self.debiased.abs())

    def undefined(self, debiased: bool) -> str:
        """Return why the HSIC of a matrix with itself cannot be a divisor, or ``""`` if it can."""
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


# ---- whole kernel matrices ----


def centred_kernel(x: Matrix, precision: Precision = "float64") -> Kernel:
    """Return the inner products of the centred rows, in ``precision``."""
    everything = slice(0, len(x))
    return linear_hsic_kernel(x, precision)(everything, everything)


def hsic_of_kernels(k: Kernel, l: Kernel) -> HSIC:  # noqa: E741
    """Return HSIC from whole kernel matrices, in their precision. The sums are float64."""
    return HSIC.of_sums(
        len(k),
        (k * l).sum(dtype=torch.float64),
        k.sum(1, dtype=torch.float64),
        l.sum(1, dtype=torch.float64),
        (k.diagonal().double(), l.diagonal().double()),
        "float32" if k.dtype is torch.float32 else "float64",
    )


# ---- blocks of kernel matrices ----


def hsic_of_blocks(
    kernels: Mapping[str, KernelBlock], n: int, pairs: Iterable[tuple[str, str]], precision: Precision = "float64"
) -> dict[tuple[str, str], HSIC]:
    """Return HSIC of pairs of kernels, from one block of all their matrices at a time.

    Memory: one block of each matrix in float64, whatever ``n``. Cost: every entry above the diagonals once, however
    many kernels each is compared with.

    Args:
        kernels: by name. Each gives a block of its ``n x n`` matrix, on one device.
        n: number of examples.
        pairs: names of the kernels to compare.
        precision: precision of the entries. Sums are float64.
    """
    names = list(kernels)
    device = kernels[names[0]](slice(1), slice(1)).device
    products = torch.zeros(len(names), len(names), dtype=torch.float64, device=device)
    sums = torch.zeros(len(names), n, dtype=torch.float64, device=device)
    diagonals = torch.zeros_like(sums)
    for rows, columns in upper_matrix_blocks(n, _block_rows(len(names))):
        block = products.new_empty(len(names), rows.stop - rows.start, columns.stop - columns.start)
        for i, name in enumerate(names):
            block[i] = kernels[name](rows, columns)
        product = block.flatten(1) @ block.flatten(1).T
        sums[:, rows] += block.sum(2)
        if rows == columns:
            products += product
            diagonals[:, rows] = block.diagonal(dim1=1, dim2=2)
        else:  # its mirror image below the diagonal counts too
            products += 2 * product
            sums[:, columns] += block.sum(1)
    hsic = {}
    for x, y in pairs:
        i = names.index(x)
        j = names.index(y)
        hsic[x, y] = HSIC.of_sums(n, products[i, j], sums[i], sums[j], (diagonals[i], diagonals[j]), precision)
    return hsic


def linear_hsic_kernel(x: Matrix, precision: Precision = "float64") -> KernelBlock:
    """Return a function of rows and columns that gives a block of ``centred_kernel(x, precision)``."""
    return partial(_linear_block, x, row_mean(in_float64(x)), precision)


def _linear_block(
    x: Matrix, middle: Float[Tensor, "dim"], precision: Precision, rows: slice, columns: slice
) -> Float[Tensor, "some others"]:
    some = in_float64(x[rows]) - middle
    if precision == "float32":
        some = some.float()
    others = some if rows == columns else (in_float64(x[columns]) - middle).to(some.dtype)
    with full_float32_products():
        return some @ others.T


def _block_rows(n_kernels: int) -> int:
    """Return the rows of a block if so many kernels are in memory at once."""
    return max(_MIN_BLOCK_ROWS, min(_MAX_BLOCK_ROWS, math.isqrt(_MAX_BLOCK_NUMBERS // n_kernels)))


# ---- examples that come in units ----


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
