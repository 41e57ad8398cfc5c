"""CKA with Gaussian kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch
from probes.functional.cka import Similarity
from probes.functional.distances import Distances
from probes.functional.hsic import HSIC, cka_from_hsic
from probes.functional.representations import paired
from tasks import InputError

_BLOCK, _LEAST = 512, 128  # rows and columns of a block; fewer where many kernels are held at once
_HELD = 2**25  # numbers of all blocks together
_KEPT = 2**22  # distances kept to find a median among
_PAIRS, _BINS = 2**14, 2**12  # drawn to bracket it, and counted


@computed_in_torch("x", "y")
def rbf_cka(
    x: Float[Array, "n dx"],
    y: Float[Array, "n dy"],
    *,
    fraction: float = 0.5,
    debiased: bool = False,
    device: str | None = None,
) -> Similarity:
    """CKA with Gaussian kernels ``exp(-|a - b|^2 / (2 s^2))``, ``s`` a fraction of the median distance on each side.

    Takes tensors or NumPy arrays.

    Sees structure that linear CKA misses (small ``fraction``), and tends to it as ``fraction`` grows. Does not change
    with a rotation, a common scale or a shift of either side.

    Memory: the rows in float64, and blocks of kernel entries whatever ``n``. Cost: ``n^2 (dx + dy)``, half of it to
    find the medians.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), section 3; HSIC_1 as in ``linear_cka``.

    Args:
        x: rows of one representation; computed in float64.
        y: rows of the other, in the same order.
        fraction: of the median distance between different examples.
        debiased: which form.
        device: where to compute; that of the rows if not given.

    Example:
        >>> x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
        >>> round(float(rbf_cka(x, 5 * x - 1)), 9)
        1.0
    """
    x, y = paired(x, y)
    kernels = {name: GaussianKernel(rows, fraction, device=device) for name, rows in (("x", x), ("y", y))}
    value, why = cka_of_kernels(kernels, [("x", "y")])["x", "y"][debiased]
    return Similarity(value, len(x), (x.shape[1], y.shape[1]), why)


def check_fraction(fraction: float) -> float:
    """``fraction``, or an ``InputError`` where it is not above 0."""
    if not fraction > 0:
        raise InputError(f"fraction is {fraction}; expected a number above 0, such as 0.5")
    return fraction


class GaussianKernel:
    """``exp(-|a - b|^2 / (2 s^2)) - 1`` of the rows of one matrix, a block at a time.

    HSIC does not change with a constant, and a wide kernel keeps its digits so.

    Args:
        x: rows.
        fraction: ``s`` as a fraction of their median distance.
        which: of these rows only, if given.
        device: where to compute; that of the rows if not given.

    Attributes:
        undefined: why there is no such kernel; empty where there is.
        n: number of rows.
    """

    def __init__(
        self,
        x: Shaped[Tensor, "n d"],
        fraction: float,
        which: Int[Tensor, "n"] | None = None,
        device: str | None = None,
    ) -> None:
        self._distances = distances = Distances(x, which, device)
        self.n, self.undefined, self._two_s2 = distances.n, "", math.nan
        check_fraction(fraction)
        if not bool(distances.alike.any()):
            self.undefined = "all examples are the same"
        elif not (median := _median(distances)):
            self.undefined = "more than half of the distances between examples are 0"
        else:
            self._two_s2 = 2 * (fraction * median) ** 2
            distances.resolve(median**2, min(median**2, self._two_s2 / 2))

    def __call__(self, rows: slice, columns: slice) -> Float[Tensor, "rows columns"]:
        return self._distances.squared(rows, columns).mul_(-1 / self._two_s2).expm1_()

    def tiles(self, size: int) -> list[tuple[slice, slice]]:
        """Blocks of rows and columns on and above the diagonal."""
        return list(self._distances.tiles(size))


def cka_of_kernels(
    kernels: Mapping[str, GaussianKernel], pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[tuple[float, str], tuple[float, str]]]:
    """CKA of pairs of kernels of the same examples, biased and debiased, each with why it is NaN (empty where it is
    not). Every block of every kernel is computed once, however many pairs it is in."""
    names = [name for name in dict.fromkeys(name for pair in pairs for name in pair) if not kernels[name].undefined]
    terms = [pair for pair in pairs if set(pair) <= set(names)]
    hsic = _hsic({name: kernels[name] for name in names}, [*((name, name) for name in names), *terms])
    found = {}
    for x, y in pairs:
        undefined = [f"{side}: {why}" for side, name in (("x", x), ("y", y)) if (why := kernels[name].undefined)]
        if undefined:
            found[x, y] = ((math.nan, undefined[0]), (math.nan, undefined[0]))
        else:
            of = hsic[x, y], hsic[x, x], hsic[y, y]
            found[x, y] = (cka_from_hsic(*of), cka_from_hsic(*of, debiased=True))
    return found


def _hsic(kernels: Mapping[str, GaussianKernel], pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], HSIC]:
    if not kernels:
        return {}
    n = next(iter(kernels.values())).n
    products: dict[tuple[str, str], list[Tensor]] = {pair: [] for pair in pairs}
    sums: dict[str, Tensor] = {}
    for rows, columns in next(iter(kernels.values())).tiles(_size(len(kernels))):
        blocks = {name: kernel(rows, columns) for name, kernel in kernels.items()}
        twice = 1 if rows == columns else 2
        for (x, y), parts in products.items():
            parts.append(twice * torch.vdot(blocks[x].flatten(), blocks[y].flatten()))
        for name, block in blocks.items():
            total = sums.setdefault(name, block.new_zeros(n))
            total[rows] += block.sum(1)
            if twice == 2:
                total[columns] += block.sum(0)
    zeros = {name: torch.zeros_like(total) for name, total in sums.items()}
    return {
        (x, y): HSIC.of_sums(n, torch.stack(parts).sum(), sums[x], sums[y], (zeros[x], zeros[y]))
        for (x, y), parts in products.items()
    }


def _size(kernels: int) -> int:
    """Rows of a block, of so many kernels at once."""
    return max(_LEAST, min(_BLOCK, math.isqrt(_HELD // (kernels + 2))))


def working_bytes(n: int, kernels: int, d: int) -> int:
    """What is held beside the rows, of so many kernels at once over ``n`` rows of up to ``d`` dimensions."""
    size = min(n, _size(kernels))
    blocks = (kernels + 2) * size**2 + 2 * size * d
    return 8 * max(blocks, min(n * (n - 1) // 2, _KEPT))


def _median(distances: Distances) -> float:
    """The median distance between different rows, in the unit of ``distances``: ``np.median`` of all of them."""
    counts = torch.bincount(distances.alike)
    same, pairs = int((counts * (counts - 1) // 2).sum()), distances.n * (distances.n - 1) // 2
    ranks = [rank for rank in ((pairs - 1) // 2, pairs // 2) if rank >= same]  # the first `same` are 0
    if not ranks:
        return 0.0
    found = _middle(distances, pairs, ranks)
    distances.resolve(found**2, 0.0)
    return _middle(distances, pairs, ranks) if distances.exact else found


def _middle(distances: Distances, pairs: int, ranks: Sequence[int]) -> float:
    bracket = (0.0, _most(distances)) if pairs <= _KEPT else _bracket(distances)
    return sum(map(math.sqrt, _at(distances, ranks, *bracket))) / 2


def _most(distances: Distances) -> float:
    """No squared distance is larger."""
    return 4.01 * float(distances.norms.max())


def _at(distances: Distances, ranks: Sequence[int], low: float, high: float) -> list[float]:
    """Squared distances of these ranks: counts those below and inside of a bracket, closer and closer, until few are
    inside."""
    while True:
        below, counts, inside = _counted(distances, low, high)
        total = int(counts.sum())
        if below > ranks[0]:
            low = 0.0
        elif below + total <= ranks[-1]:
            high = _most(distances)
        elif inside is not None:
            places = [rank - below for rank in ranks]
            return [float(x) for x in np.partition(inside.numpy(), places)[places]]
        elif high - low <= 1e-14 * high or high <= 1e-40 * _most(distances):
            return [(low + high) / 2] * len(ranks)
        else:
            bins = torch.searchsorted(counts.cumsum(0), torch.tensor(ranks) - below, right=True).tolist()
            width = (high - low) / _BINS
            brackets = [(low + width * max(0, i - 1), low + width * (i + 2)) for i in bins]
            if len(set(brackets)) > 1:
                return [x for rank, part in zip(ranks, brackets, strict=True) for x in _at(distances, [rank], *part)]
            low, high = brackets[0]


def _bracket(distances: Distances) -> tuple[float, float]:
    """Squared distances between which the median of all is to be expected, from some pairs."""
    draw = torch.Generator().manual_seed(0)
    i = torch.randint(distances.n, (_PAIRS,), generator=draw)
    j = (i + 1 + torch.randint(distances.n - 1, (_PAIRS,), generator=draw)) % distances.n
    some = distances.pairs(i, j).sort().values
    near = round(2.5 * math.sqrt(_PAIRS))  # five standard errors of its rank
    return float(some[_PAIRS // 2 - near]), float(some[_PAIRS // 2 + near])


def _counted(distances: Distances, low: float, high: float) -> tuple[int, Tensor, Tensor | None]:
    """How many squared distances lie below the bracket, how many in each of ``_BINS`` parts of it, and, where they are
    few, these themselves."""
    below, counts, held = 0, torch.zeros(_BINS, dtype=torch.int64), 0
    inside = torch.empty(min(_KEPT, distances.n * (distances.n - 1) // 2), dtype=torch.float64)  # one, not many small
    for rows, columns in distances.tiles(_BLOCK):
        found = distances.squared(rows, columns)
        if rows == columns:
            above = torch.triu_indices(len(found), len(found), offset=1, device=found.device)
            found = found[above[0], above[1]]
        below += int((found < low).sum())
        part = found[(found >= low) & (found <= high)]
        bins = ((part - low) * (_BINS / max(high - low, 1e-300))).long().clamp_(max=_BINS - 1)
        counts += bins.bincount(minlength=_BINS).cpu()
        if held + len(part) <= len(inside):
            inside[held : held + len(part)] = part.cpu()
        held += len(part)
    return below, counts, inside[:held] if held <= len(inside) else None
