"""Which examples a state holds: so that none is counted twice."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from tasks import InputError

Ranges: TypeAlias = NDArray[np.int64]  # [k 2]: first and last index of each, ascending, with a gap between any two

_AGAIN = "give every example an index of its own and every batch once (after reset() a probe may measure it again)"
_RECENT = 4096


class IndexSet:
    """Example indices, kept as ranges; an index that it already has is refused.

    Cost: 16 bytes per range, so at most 16 per example, and a handful for all examples of a data set.

    Example:
        >>> held = IndexSet()
        >>> held.add(torch.tensor([7, 5, 6]))
        >>> held.tensor().tolist(), len(held), 6 in held
        ([[5, 7]], 3, True)
        >>> held.add(torch.tensor([6]))
        Traceback (most recent call last):
        tasks.errors.InputError: example index 6 was given twice; give every example an index of its own and every \
batch once (after reset() a probe may measure it again)
    """

    def __init__(self) -> None:
        # Disjoint parts, each less than half as long as the one before: an addition in any order costs little then.
        self._parts: list[Ranges] = []
        self._recent: set[int] = set()  # in none of the parts yet: for so few a batch, Python is faster than numpy

    def __repr__(self) -> str:
        return f"IndexSet({len(self)} examples)"

    def add(self, index: Int[Tensor, "n"], way: str = _AGAIN) -> None:
        """Also these.

        Args:
            index: ``[n]`` integers in any order.
            way: out of it, for the error.

        Raises:
            InputError: for an index that is given twice or is there already. Nothing is added then.
        """
        given = index.tolist()
        new = set(given)
        twice = new & self._recent
        if len(new) < len(given):
            twice |= {i for i, count in Counter(given).items() if count > 1}
        for part in self._parts:
            if new and part[0, 0] <= max(new) and min(new) <= part[-1, 1]:
                numbers = np.fromiter(new, np.int64, len(new))
                twice |= set(numbers[_holds(part, numbers)].tolist())
        if twice:
            raise InputError(f"example index {min(twice)} was given twice; {way}")
        self._recent |= new
        if len(self._recent) >= _RECENT:
            self._settle()

    def update(self, other: IndexSet) -> None:
        """Also those of another set.

        Raises:
            InputError: where the sets share an index. Nothing is added then.
        """
        self._settle()
        new = other._joined()
        if len(twice := self._shared(new)):
            both = len(self) + len(other) - len(IndexSet._of(_union(self._joined(), new)))
            raise InputError(
                f"example index {int(twice[0])} ({both} such) is in both states; merge each state once, and give "
                "every example an index of its own"
            )
        self._put(new)

    def tensor(self) -> Int[Tensor, "k 2"]:
        """``[k 2]`` the first and last index of each range, ascending."""
        return torch.from_numpy(self._joined().copy())

    @classmethod
    def from_tensor(cls, ranges: Int[Tensor, "k 2"]) -> IndexSet:
        """What ``tensor`` gave.

        Raises:
            InputError: for anything else than ascending ranges.
        """
        if ranges.ndim != 2 or ranges.shape[1] != 2 or ranges.dtype != torch.int64:
            raise InputError(f"ranges of example indices are {ranges.dtype} {list(ranges.shape)}; expected int64 [k 2]")
        found = ranges.cpu().numpy().copy()
        if (found[:, 0] > found[:, 1]).any() or (found[1:, 0] <= found[:-1, 1]).any():
            raise InputError("ranges of example indices overlap or run backwards; give what tensor() returned")
        return cls._of(found)

    @classmethod
    def _of(cls, ranges: Ranges) -> IndexSet:
        new = cls()
        new._put(ranges)
        return new

    @property
    def end(self) -> int:
        """One more than the largest index; 0 where there is none."""
        self._settle()
        return max((int(part[-1, 1]) + 1 for part in self._parts), default=0)

    def __len__(self) -> int:
        return sum(int((part[:, 1] - part[:, 0] + 1).sum()) for part in self._parts) + len(self._recent)

    def __contains__(self, index: int) -> bool:
        return bool(self.holds(torch.tensor([index]))[0])

    def holds(self, index: Int[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Which of these are there."""
        self._settle()
        numbers, found = index.cpu().numpy(), np.zeros(len(index), dtype=bool)
        for part in self._parts:
            found |= _holds(part, numbers)
        return torch.from_numpy(found)

    def _shared(self, new: Ranges) -> NDArray[np.int64]:
        """Of each range that overlaps one of ours an index that both have; ascending, lowest first."""
        found = []
        for part in self._parts:
            place = np.searchsorted(part[:, 1], new[:, 0])
            first = part[np.minimum(place, len(part) - 1), 0]
            hit = (place < len(part)) & (first <= new[:, 1])
            found.append(np.maximum(first, new[:, 0])[hit])
        return np.sort(np.concatenate(found)) if found else new[:0, 0]

    def _settle(self) -> None:
        """Everything in parts."""
        if self._recent:
            numbers = np.sort(np.fromiter(self._recent, np.int64, len(self._recent)))
            ends = np.flatnonzero(numbers[1:] != numbers[:-1] + 1)
            self._put(np.stack([numbers[np.append(0, ends + 1)], numbers[np.append(ends, len(numbers) - 1)]], axis=1))
            self._recent = set()

    def _put(self, new: Ranges) -> None:
        """``new``, which shares nothing with ours."""
        while self._parts and len(self._parts[-1]) < 2 * len(new):
            new = _union(self._parts.pop(), new)
        if len(new):
            self._parts.append(new)

    def _joined(self) -> Ranges:
        self._settle()
        found = np.empty((0, 2), dtype=np.int64)
        for part in reversed(self._parts):
            found = _union(part, found)
        self._parts = [found] if len(found) else []
        return found


def _holds(part: Ranges, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these are in one of the ranges."""
    place = np.minimum(np.searchsorted(part[:, 1], numbers), len(part) - 1)
    return (part[place, 0] <= numbers) & (numbers <= part[place, 1])


def _union(one: Ranges, other: Ranges) -> Ranges:
    """What either holds; they may overlap."""
    if not len(one) or not len(other):
        return one if len(one) else other
    joined = np.concatenate([one, other])
    joined = joined[np.argsort(joined[:, 0], kind="stable")]  # by runs that are sorted already
    reach, begin = np.maximum.accumulate(joined[:, 1]), joined[1:, 0]
    ends = np.flatnonzero((begin > reach[:-1]) & (begin - 1 != reach[:-1]))  # so that the largest integer does not wrap
    return np.stack([joined[np.append(0, ends + 1), 0], reach[np.append(ends, len(joined) - 1)]], axis=1)
