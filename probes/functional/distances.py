"""Euclidean distances between rows, a block at a time, by matrix products."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import xxhash
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.representations import float64
from tasks import InputError

_CHUNK, _CACHED = 2**22, 2**16  # numbers at once; of rows that are subtracted, so many as stay in a core's cache
_NEAR = 2.0**-20  # of |a|^2 + |b|^2: a squared distance below it has lost six digits or more to cancellation

_FAR = 1e3  # times what matters: where |a|^2 + |b|^2 is below it, rounding is below 1e-12 of it


def finite_matrix(rows: Any, name: str) -> Shaped[Tensor, "n d"]:
    """``rows`` as a matrix of at least one row in its own dtype.

    Raises:
        InputError: for another shape, no rows, or rows that are not finite.
    """
    x = torch.as_tensor(rows).detach()
    if x.ndim != 2 or not x.numel():
        raise InputError(f"{name} has shape {tuple(x.shape)}; expected [examples dimensions], at least one of each")
    for start, part in _parts(x):
        if bool((bad := ~torch.isfinite(part).all(dim=1)).any()):
            row = start + int(bad.nonzero()[0])
            raise InputError(f"{name} has NaN or infinity in row {row}; leave the example out")
    return x


def first_alike(x: Shaped[Tensor, "n d"]) -> Int[Tensor, "n"]:
    """Of each row the first that is the same, on the CPU.

    Example:
        >>> first_alike(torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0]])).tolist()
        [0, 1, 0]
    """
    first: dict[bytes, int] = {}
    found = torch.empty(len(x), dtype=torch.int64)
    for start, part in _parts(x):
        rows = (part + 0).contiguous().cpu().view(torch.uint8).numpy()  # -0 + 0 is 0
        for i, row in enumerate(rows, start):
            found[i] = first.setdefault(xxhash.xxh3_128_digest(row), i)
    return found


def centre_and_scale(x: Shaped[Tensor, "n d"]) -> tuple[Float[Tensor, "d"], float]:
    """About what to centre rows, and the power of two that brings their largest entry below 1 then.

    The mean of the half that is nearest to the mean of all: rows far off would draw it away from most of them.
    """
    middle = _mean(x, torch.ones(len(x), dtype=torch.bool))
    far = torch.cat([(float64(part) - middle).abs().amax(1).cpu() for _, part in _parts(x)])
    middle = _mean(x, far <= far.median())
    largest = max(float((float64(part) - middle).abs().max()) for _, part in _parts(x))
    return middle, 2.0 ** min(1000, -math.frexp(largest)[1])


def _mean(x: Tensor, which: Tensor) -> Tensor:
    first = float64(x[int(which.nonzero()[0])])
    total = torch.zeros_like(first)
    for start, part in _parts(x):
        total += (float64(part[which[start : start + len(part)].to(part.device)]) - first).sum(0)
    return first + total / which.sum().to(first.device)


def squared_differences(
    x: Shaped[Tensor, "n d"], i: Int[Tensor, "pairs"], j: Int[Tensor, "pairs"], scale: float = 1.0
) -> Float[Tensor, "pairs"]:
    """Squared distances of pairs of rows, ``scale`` times as large each way, by subtraction in float64.

    A pair's value does not depend on the other pairs.
    """
    found = torch.empty(len(i), dtype=torch.float64, device=float64(x[:1]).device)
    step = max(1, (_CACHED if found.device.type == "cpu" else _CHUNK) // x.shape[1])
    for start in range(0, len(i), step):
        pairs = slice(start, start + step)
        difference = float64(x[i[pairs]]).sub_(float64(x[j[pairs]])).mul_(scale)
        found[pairs] = difference.square_().sum(1)
    return found


class Distances:
    """Squared distances between the rows of one matrix, in float64, of whichever blocks are asked for.

    ``|a|^2 + |b|^2 - 2 a b`` of centred rows: exact zeros between rows that are the same. What it loses where rows are
    near each other and far from the mean is found again by subtraction, where it counts (``resolve``).

    Memory: the rows as they are, and the blocks asked for in float64.

    Args:
        x: rows, on any device, in any dtype.
        which: of these rows only, if given.
        device: where to multiply; that of the rows if not given.

    Attributes:
        scale: in which unit distances are given: a power of two times that of the rows.
        alike: the first row that is the same, of each.
        norms: ``|a|^2`` of each row.
    """

    def __init__(
        self, x: Shaped[Tensor, "n d"], which: Int[Tensor, "n"] | None = None, device: str | None = None
    ) -> None:
        self._x, self._which = finite_matrix(x, "x"), which
        self._device = torch.device(device) if device is not None else float64(self._x[:1]).device
        self._middle, self.scale = centre_and_scale(self._x if which is None else self._x[which])
        self.alike = first_alike(self._x if which is None else self._x[which])
        self.n = len(self.alike)
        self._repeated = len(torch.unique(self.alike)) < self.n
        self._exact = False
        norms = [self.block(slice(i, i + 1024)).square().sum(1) for i in range(0, self.n, 1024)]
        self.norms = torch.cat(norms)
        self._far = _FAR * float(self.norms.median())
        self._same = self.alike.to(self._device)

    def resolve(self, typical: float, smallest: float) -> None:
        """Say which distances count, in squares.

        Args:
            typical: squared distance of most pairs. Where it has lost digits, all are found by subtraction.
            smallest: difference that matters. Of pairs far from the mean, where rounding comes near it, those that are
                near each other are found by subtraction.
        """
        self._exact = typical < _NEAR * float(self.norms.median())
        self._far = _FAR * smallest

    @property
    def exact(self) -> bool:
        """Whether all distances are found by subtraction."""
        return self._exact

    def block(self, rows: slice) -> Float[Tensor, "rows d"]:
        """These rows, centred and scaled."""
        some = self._x[rows if self._which is None else self._which[rows]]
        return (float64(some).to(self._device) - self._middle.to(self._device)) * self.scale

    def pairs(self, i: Int[Tensor, "pairs"], j: Int[Tensor, "pairs"]) -> Float[Tensor, "pairs"]:
        """Squared distances of some pairs of rows, by subtraction."""
        a, b = (i, j) if self._which is None else (self._which[i], self._which[j])
        return squared_differences(self._x, a.to(self._x.device), b.to(self._x.device), self.scale)

    def tiles(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Blocks of rows and columns on and above the diagonal."""
        starts = range(0, self.n, size)
        for i in starts:
            for j in starts:
                if i <= j:
                    yield slice(i, min(self.n, i + size)), slice(j, min(self.n, j + size))

    def squared(self, rows: slice, columns: slice) -> Float[Tensor, "rows columns"]:
        """Squared distances of a block of rows and a block of columns."""
        a = self.block(rows)
        b = a if rows == columns else self.block(columns)
        if self._exact:
            return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()
        na, nb = self.norms[rows], self.norms[columns]
        found = torch.addmm(nb, a, b.T, alpha=-2).add_(na[:, None]).clamp_(min=0)  # rounding can go below 0
        if float(na.max() + nb.max()) > self._far:
            both = na[:, None] + nb
            near = ((found < _NEAR * both) & (both > self._far)).nonzero()
            i, j = near[:, 0], near[:, 1] + len(a)
            found[near[:, 0], near[:, 1]] = squared_differences(torch.cat([a, b]), i, j)
        if self._repeated:
            found.masked_fill_(self._same[rows, None] == self._same[columns], 0)
        elif rows == columns:
            found.fill_diagonal_(0)
        return found


def _parts(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Blocks of rows, and where they start."""
    step = max(1, _CHUNK // x.shape[1])
    for start in range(0, len(x), step):
        yield start, x[start : start + step]
