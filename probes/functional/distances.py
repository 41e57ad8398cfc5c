"""Euclidean distances between rows, a block at a time, by matrix products."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import xxhash
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import ROW_MATRIX, checked_tensor, in_float64

_MAX_NUMBERS_AT_ONCE = 2**22
MAX_NUMBERS_IN_CACHE = 2**16  # rows that are subtracted on the CPU stay in a core's cache
_CANCELLATION = 2.0**-20  # share of |a|^2 + |b|^2: a squared distance below it has lost six digits or more
_ROUNDING_MATTERS = 1e3  # if |a|^2 + |b|^2 is below this multiple of a difference, rounding is below 1e-12 of it


def float64_device(device: str) -> torch.device:
    """Return the device, but the CPU for MPS, which has no float64."""
    return torch.device("cpu" if torch.device(device).type == "mps" else device)


def first_at_distance_zero(x: Shaped[Tensor, "row dim"]) -> Int[Tensor, "row"]:
    """Return for each row the first row equal to it, on the CPU.

    Example:
        >>> first_at_distance_zero(torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0]])).tolist()
        [0, 1, 0]
    """
    first_of_digest: dict[bytes, int] = {}
    first = torch.empty(len(x), dtype=torch.int64)
    for start, part in _parts(x):
        rows = (part + 0).contiguous().cpu().view(torch.uint8).numpy()  # -0 + 0 is 0
        for i, row in enumerate(rows, start):
            first[i] = first_of_digest.setdefault(xxhash.xxh3_128_digest(row), i)
    return first


def centre_for_distances(x: Shaped[Tensor, "row dim"]) -> tuple[Float[Tensor, "dim"], float]:
    """Return a centre for rows, and the power of two that brings their largest entry, centred, below 1.

    The centre is the mean of the half that is nearest to the mean of all: rows far off would draw it away from most.
    """
    middle = _mean(x, torch.ones(len(x), dtype=torch.bool))
    far = torch.cat([(in_float64(part) - middle).abs().amax(1).cpu() for _, part in _parts(x)])
    middle = _mean(x, far <= far.median())
    largest = max(float((in_float64(part) - middle).abs().max()) for _, part in _parts(x))
    return middle, 2.0 ** min(1000, -math.frexp(largest)[1])


def _mean(x: Shaped[Tensor, "row dim"], is_chosen: Bool[Tensor, "row"]) -> Float[Tensor, "dim"]:
    first = in_float64(x[int(is_chosen.nonzero()[0])])
    total = torch.zeros_like(first)
    for start, part in _parts(x):
        chosen = is_chosen[start : start + len(part)].to(part.device)
        total += (in_float64(part[chosen]) - first).sum(0)
    return first + total / is_chosen.sum().to(first.device)


def squared_differences(
    x: Shaped[Tensor, "row dim"], i: Int[Tensor, "pair"], j: Int[Tensor, "pair"], scale: float = 1.0
) -> Float[Tensor, "pair"]:
    """Return squared distances of pairs of rows, ``scale`` times as large each way, by subtraction in float64.

    A pair's value does not depend on the other pairs.
    """
    squared = torch.empty(len(i), dtype=torch.float64, device=in_float64(x[:1]).device)
    at_once = MAX_NUMBERS_IN_CACHE if squared.device.type == "cpu" else _MAX_NUMBERS_AT_ONCE
    step = max(1, at_once // x.shape[1])
    for start in range(0, len(i), step):
        pairs = slice(start, start + step)
        difference = in_float64(x[i[pairs]]).sub_(in_float64(x[j[pairs]])).mul_(scale)
        squared[pairs] = difference.square_().sum(1)
    return squared


class Distances:
    """Squared distances between the rows of one matrix, in float64, a block at a time.

    ``|a|^2 + |b|^2 - 2 a b`` of centred rows: exact zeros between equal rows. It loses digits between rows near each
    other and far from the mean. These distances are found by subtraction if they matter (``resolve``).

    Memory: the rows as they are, and the blocks in float64.

    Args:
        x: rows, on any device, in any dtype.
        device: where to multiply. The rows' device if not given.

    Attributes:
        scale: unit of the distances: a power of two times the rows' unit.
        alike: for each row the first row equal to it.
        norms: ``|a|^2`` of each row.
        n: number of rows.
        exact: whether all distances are found by subtraction.

    Example:
        >>> distances = Distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
        >>> (distances.squared(slice(0, 2), slice(0, 2)) / distances.scale**2).tolist()
        [[0.0, 25.0], [25.0, 0.0]]
    """

    def __init__(self, x: Shaped[Tensor, "row dim"], device: str | None = None) -> None:
        self._x = checked_tensor(x, "x", ROW_MATRIX).detach()
        self._device = in_float64(self._x[:1]).device if device is None else float64_device(device)
        self._middle, self.scale = centre_for_distances(self._x)
        self.alike = first_at_distance_zero(self._x)
        self.n = len(self.alike)
        self.exact = False
        norms = [self.block(slice(i, i + 1024)).square().sum(1) for i in range(0, self.n, 1024)]
        self.norms = torch.cat(norms)
        self._repeated = len(torch.unique(self.alike)) < self.n
        self._far = _ROUNDING_MATTERS * float(self.norms.median())
        self._same = self.alike.to(self._device)

    def resolve(self, typical: float, smallest: float) -> None:
        """Set which distances count, in squares.

        Args:
            typical: squared distance of most pairs. If it has lost digits, all are found by subtraction.
            smallest: difference that matters. If rows are so far from the mean that rounding comes near it, distances
                of near pairs are found by subtraction.
        """
        self.exact = typical < _CANCELLATION * float(self.norms.median())
        self._far = _ROUNDING_MATTERS * smallest

    def block(self, rows: slice) -> Float[Tensor, "block dim"]:
        """Return a block of rows, centred and scaled."""
        return (in_float64(self._x[rows]).to(self._device) - self._middle.to(self._device)) * self.scale

    def pairs(self, i: Int[Tensor, "pair"], j: Int[Tensor, "pair"]) -> Float[Tensor, "pair"]:
        """Return squared distances of some pairs of rows, by subtraction."""
        return squared_differences(self._x, i.to(self._x.device), j.to(self._x.device), self.scale)

    def squared(self, rows: slice, columns: slice) -> Float[Tensor, "block_row block_column"]:
        """Return squared distances of a block of rows and a block of columns."""
        a = self.block(rows)
        b = a if rows == columns else self.block(columns)
        if self.exact:
            return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()
        norms_a = self.norms[rows]
        norms_b = self.norms[columns]
        squared = torch.addmm(norms_b, a, b.T, alpha=-2).add_(norms_a[:, None])
        squared.clamp_(min=0)  # rounding can go below 0
        if float(norms_a.max() + norms_b.max()) > self._far:
            norms = norms_a[:, None] + norms_b
            is_near = (squared < _CANCELLATION * norms) & (norms > self._far)
            i, j = is_near.nonzero().T
            squared[i, j] = squared_differences(torch.cat([a, b]), i, j + len(a))
        if self._repeated:
            squared.masked_fill_(self._same[rows, None] == self._same[columns], 0)
        elif rows == columns:
            squared.fill_diagonal_(0)
        return squared


def _parts(x: Shaped[Tensor, "row dim"]) -> Iterator[tuple[int, Shaped[Tensor, "_ dim"]]]:
    """Yield blocks of rows, each after its first place."""
    step = max(1, _MAX_NUMBERS_AT_ONCE // x.shape[1])
    for start in range(0, len(x), step):
        yield start, x[start : start + step]
