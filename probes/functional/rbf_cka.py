"""CKA with Gaussian kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch
from probes.functional.cka import cka_from_hsic
from probes.functional.distances import Distances
from probes.functional.hsic import HSIC
from probes.functional.matrix_blocks import upper_matrix_blocks
from probes.functional.similarity import Similarity
from tasks import InputError

MAX_BLOCK_ROWS = 512  # rows and columns of a block
MIN_BLOCK_ROWS = 128  # if many kernels are in memory at once
_MAX_NUMBERS_AT_ONCE = 2**25  # numbers in all blocks together
MAX_KEPT_DISTANCES = 2**22  # distances that a median is taken from
SAMPLED_PAIRS = 2**14  # whose distances bracket the median
BINS = 2**12  # bins of distances inside the bracket


@computed_in_torch()
def rbf_cka(
    x: Float[Array, "row dim_x"],
    y: Float[Array, "row dim_y"],
    *,
    fraction: float = 0.5,
    debiased: bool = False,
    device: str | None = None,
) -> Similarity:
    """Return CKA with Gaussian kernels ``exp(-|a - b|^2 / (2 s^2))``, ``s`` a fraction of the median distance.

    Takes tensors, NumPy arrays or lists.

    Each side has its own median distance. This CKA sees structure that linear CKA misses (small ``fraction``), and
    tends to it as ``fraction`` grows. It does not change with a rotation, a common scale or a shift of either side.

    Memory: the rows in float64, and blocks of kernel entries whatever ``n``. Cost: ``n^2 (dx + dy)``, half of it to
    find the medians.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), section 3. HSIC_1 as in ``linear_cka``.

    Args:
        x: rows of one representation, computed in float64.
        y: rows of the other, in the order of ``x``.
        fraction: fraction of the median distance between different examples.
        debiased: which form.
        device: where to compute. The rows' device if not given.

    Example:
        >>> x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
        >>> round(float(rbf_cka(x, 5 * x - 1)), 9)
        1.0
    """
    y = y.to(x.device)
    kernels = {"x": GaussianKernel(x, fraction, device=device), "y": GaussianKernel(y, fraction, device=device)}
    value, reason = rbf_cka_of_kernels(kernels, [("x", "y")])["x", "y"][debiased]
    return Similarity(value, len(x), (x.shape[1], y.shape[1]), reason)


def check_rbf_fraction(fraction: float) -> float:
    """Return ``fraction``, or raise an ``InputError`` if it is not above 0, or infinite."""
    if not 0 < fraction < math.inf:
        raise InputError(f"fraction is {fraction}; expected a number above 0, such as 0.5")
    return fraction


class GaussianKernel:
    """The kernel ``exp(-|a - b|^2 / (2 s^2)) - 1`` of the rows of one matrix, a block at a time.

    HSIC does not change with a constant, and subtracting 1 keeps the digits of a wide kernel.

    Args:
        x: rows.
        fraction: ``s`` as a fraction of their median distance.
        device: where to compute. The rows' device if not given.

    Attributes:
        undefined: why there is no such kernel. Empty if there is one.
        n: number of rows.

    Example:
        >>> kernel = GaussianKernel(torch.tensor([[0.0], [1.0]]), fraction=1.0)
        >>> kernel(slice(0, 2), slice(0, 2))  # exp(-1/2) - 1 between the two
        tensor([[-0.0000, -0.3935],
                [-0.3935, -0.0000]], dtype=torch.float64)
    """

    def __init__(
        self,
        x: Shaped[Tensor, "row dim"],
        fraction: float,
        device: str | None = None,
    ) -> None:
        check_rbf_fraction(fraction)
        self._distances = Distances(x, device)
        self.n = self._distances.n
        self.undefined = ""
        self._two_s2 = math.nan
        if not bool(self._distances.alike.any()):
            self.undefined = "all examples are the same"
            return
        median = _median(self._distances)
        if not median:
            self.undefined = "more than half of the distances between examples are 0"
            return
        self._two_s2 = 2 * (fraction * median) ** 2
        self._distances.resolve(median**2, min(median**2, self._two_s2 / 2))

    def __call__(self, rows: slice, columns: slice) -> Float[Tensor, "block_row block_column"]:
        """Return a block of the kernel."""
        return self._distances.squared(rows, columns).mul_(-1 / self._two_s2).expm1_()


_Names: TypeAlias = tuple[str, str]
ValueAndReason: TypeAlias = tuple[float, str]  # the reason says why the value is NaN. Empty if it is not


def rbf_cka_of_kernels(
    kernels: Mapping[str, GaussianKernel], pairs: Sequence[_Names]
) -> dict[_Names, tuple[ValueAndReason, ValueAndReason]]:
    """Return CKA of pairs of kernels of shared examples, biased and debiased, each with the reason for NaN.

    Every block of every kernel is computed once, however many pairs it is in.
    """
    names = dict.fromkeys(itertools.chain.from_iterable(pairs))
    defined = {name: kernels[name] for name in names if not kernels[name].undefined}
    with_itself = [(name, name) for name in defined]
    hsic = _hsic(defined, [*with_itself, *(pair for pair in pairs if defined.keys() >= set(pair))])
    cka = {}
    for x, y in pairs:
        reason = _undefined_side(kernels[x], kernels[y])
        if reason:
            cka[x, y] = ((math.nan, reason), (math.nan, reason))
        else:
            terms = (hsic[x, y], hsic[x, x], hsic[y, y])
            cka[x, y] = (cka_from_hsic(*terms), cka_from_hsic(*terms, debiased=True))
    return cka


def _undefined_side(x: GaussianKernel, y: GaussianKernel) -> str:
    """Return which side has no kernel, and why, or ``""`` if both have one."""
    if x.undefined:
        return f"x: {x.undefined}"
    return f"y: {y.undefined}" if y.undefined else ""


def _hsic(kernels: Mapping[str, GaussianKernel], pairs: Sequence[_Names]) -> dict[_Names, HSIC]:
    if not kernels:
        return {}
    any_kernel = next(iter(kernels.values()))
    products: dict[_Names, list[Float[Tensor, ""]]] = {pair: [] for pair in pairs}
    sums: dict[str, Float[Tensor, "row"]] = {}
    for rows, columns in upper_matrix_blocks(any_kernel.n, _block_rows(len(kernels))):
        is_diagonal = rows == columns
        blocks = {name: kernel(rows, columns) for name, kernel in kernels.items()}
        for (x, y), parts in products.items():
            product = torch.vdot(blocks[x].flatten(), blocks[y].flatten())
            parts.append(product if is_diagonal else 2 * product)
        for name, block in blocks.items():
            total = sums.setdefault(name, block.new_zeros(any_kernel.n))
            total[rows] += block.sum(1)
            if not is_diagonal:
                total[columns] += block.sum(0)
    zeros = torch.zeros_like(total)  # a kernel minus 1 has no diagonal
    return {
        (x, y): HSIC.of_sums(any_kernel.n, torch.stack(parts).sum(), sums[x], sums[y], (zeros, zeros))
        for (x, y), parts in products.items()
    }


def _block_rows(n_kernels: int) -> int:
    """Return the rows of a block if so many kernels are in memory at once."""
    return max(MIN_BLOCK_ROWS, min(MAX_BLOCK_ROWS, math.isqrt(_MAX_NUMBERS_AT_ONCE // (n_kernels + 2))))


def gaussian_kernel_bytes(n: int, kernels: int, d: int) -> int:
    """Return the memory, besides the rows, of so many kernels at once over ``n`` rows of up to ``d`` dimensions."""
    size = min(n, _block_rows(kernels))
    blocks = (kernels + 2) * size**2 + 2 * size * d
    return 8 * max(blocks, min(math.comb(n, 2), MAX_KEPT_DISTANCES))


def _median(distances: Distances) -> float:
    """Return the median distance between different rows, in the unit of ``distances``: ``np.median`` of all of them."""
    counts = torch.bincount(distances.alike)
    n_zero = int((counts * (counts - 1) // 2).sum())
    n_pairs = math.comb(distances.n, 2)
    ranks = [rank for rank in ((n_pairs - 1) // 2, n_pairs // 2) if rank >= n_zero]
    if not ranks:
        return 0.0
    median = _middle(distances, n_pairs, ranks)
    distances.resolve(median**2, 0.0)
    return _middle(distances, n_pairs, ranks) if distances.exact else median


def _middle(distances: Distances, n_pairs: int, ranks: Sequence[int]) -> float:
    bracket = (0.0, _upper_bound(distances)) if n_pairs <= MAX_KEPT_DISTANCES else _bracket(distances)
    return sum(map(math.sqrt, _at_ranks(distances, ranks, *bracket))) / 2


def _upper_bound(distances: Distances) -> float:
    """Return a bound that no squared distance exceeds."""
    return 4.01 * float(distances.norms.max())


def _at_ranks(distances: Distances, ranks: Sequence[int], low: float, high: float) -> list[float]:
    """Return squared distances of these ranks.

    Those below and inside of a bracket are counted, and the bracket is narrowed, until few are inside.
    """
    bound = _upper_bound(distances)
    while True:
        below, counts, inside = _counted(distances, low, high)
        places = [rank - below for rank in ranks]
        if places[0] < 0:
            low = 0.0
        elif places[-1] >= int(counts.sum()):
            high = bound
        elif inside is not None:
            return [float(x) for x in np.partition(inside.numpy(), places)[places]]
        elif high - low <= 1e-14 * high or high <= 1e-40 * bound:
            return [(low + high) / 2] * len(ranks)
        else:
            bins = torch.searchsorted(counts.cumsum(0), torch.tensor(places), right=True).tolist()
            width = (high - low) / BINS
            brackets = [(low + width * max(0, i - 1), low + width * (i + 2)) for i in bins]
            if len(set(brackets)) > 1:
                return [_at_ranks(distances, [rank], *part)[0] for rank, part in zip(ranks, brackets, strict=True)]
            low, high = brackets[0]


def _bracket(distances: Distances) -> tuple[float, float]:
    """Return squared distances between which the median of all is expected, from some pairs."""
    draw = torch.Generator().manual_seed(0)
    i = torch.randint(distances.n, (SAMPLED_PAIRS,), generator=draw)
    j = (i + 1 + torch.randint(distances.n - 1, (SAMPLED_PAIRS,), generator=draw)) % distances.n
    sample = distances.pairs(i, j).sort().values
    margin = round(2.5 * math.sqrt(SAMPLED_PAIRS))  # five standard errors of the median's rank
    return float(sample[SAMPLED_PAIRS // 2 - margin]), float(sample[SAMPLED_PAIRS // 2 + margin])


def _counted(
    distances: Distances, low: float, high: float
) -> tuple[int, Int[Tensor, "bin"], Float[Tensor, "inside"] | None]:
    """Return how many squared distances are below the bracket and in each bin, and the ones inside if few."""
    below = 0
    counts = torch.zeros(BINS, dtype=torch.int64)
    n_inside = 0
    # One tensor, not many small ones.
    inside = torch.empty(min(MAX_KEPT_DISTANCES, math.comb(distances.n, 2)), dtype=torch.float64)
    for rows, columns in upper_matrix_blocks(distances.n, MAX_BLOCK_ROWS):
        squared = distances.squared(rows, columns)
        if rows == columns:
            i, j = torch.triu_indices(len(squared), len(squared), offset=1, device=squared.device)
            squared = squared[i, j]
        below += int((squared < low).sum())
        part = squared[(squared >= low) & (squared <= high)]
        bins = ((part - low) * (BINS / max(high - low, 1e-300))).long().clamp_(max=BINS - 1)
        counts += bins.bincount(minlength=BINS).cpu()
        if n_inside + len(part) <= len(inside):
            inside[n_inside : n_inside + len(part)] = part.cpu()
        n_inside += len(part)
    return below, counts, inside[:n_inside] if n_inside <= len(inside) else None
