"""HSIC, the numerator and the denominators of CKA, from kernel matrices: whole, or a block at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.arrays import Matrix, in_float64
from probes.functional.preprocess import row_mean
from probes.functional.products import ROUNDING, Precision, float32_as_it_is

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


def cka_from_hsic(xy: HSIC, xx: HSIC, yy: HSIC, *, debiased: bool = False) -> tuple[float, str]:
    """Return ``HSIC(x, y) / sqrt(HSIC(x, x) HSIC(y, y))``, and why it is NaN (or ``""``)."""
    for side, hsic in (("x", xx), ("y", yy)):
        why = hsic.undefined(debiased)
        if why:
            return math.nan, f"{side}: {why}"
    if debiased:
        return float(xy.debiased / xx.debiased.sqrt() / yy.debiased.sqrt()), ""
    return float(xy.biased / xx.biased.sqrt() / yy.biased.sqrt()), ""


# ---- whole kernel matrices ----


def centred_kernel(x: Matrix, precision: Precision = "float64") -> Kernel:
    """Return the inner products of the centred rows, in ``precision``."""
    everything = slice(0, len(x))
    return linear_kernel(x, precision)(everything, everything)


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
    for rows, columns in upper_blocks(n, _block_rows(len(names))):
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


def linear_kernel(x: Matrix, precision: Precision = "float64") -> KernelBlock:
    """Return a function of rows and columns that gives a block of ``centred_kernel(x, precision)``."""
    return partial(_linear_block, x, row_mean(in_float64(x)), precision)


def _linear_block(
    x: Matrix, middle: Float[Tensor, "dim"], precision: Precision, rows: slice, columns: slice
) -> Float[Tensor, "some others"]:
    some = in_float64(x[rows]) - middle
    if precision == "float32":
        some = some.float()
    others = some if rows == columns else (in_float64(x[columns]) - middle).to(some.dtype)
    with float32_as_it_is():
        return some @ others.T


def upper_blocks(n: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of the blocks on and above the diagonal of an n x n matrix.

    Example:
        >>> [(rows.stop, columns.stop) for rows, columns in upper_blocks(5, 2)]
        [(2, 2), (2, 4), (2, 5), (4, 4), (4, 5), (5, 5)]
    """
    parts = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    for i, rows in enumerate(parts):
        for columns in parts[i:]:
            yield rows, columns


def _block_rows(n_kernels: int) -> int:
    """Return the rows of a block if so many kernels are in memory at once."""
    return max(_MIN_BLOCK_ROWS, min(_MAX_BLOCK_ROWS, math.isqrt(_MAX_BLOCK_NUMBERS // n_kernels)))
