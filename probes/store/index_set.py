"""The examples that a state holds, so that none is counted twice."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor

from tasks import InputError

_Ranges: TypeAlias = Int64[np.ndarray, "range 2"]
"""First and last index of each range, ascending, with a gap between any two."""

_GIVE_ONCE = "give every example an index of its own and every batch once (after reset() a probe may measure it again)"
_MIN_RECENT = 4096  # examples


class IndexSet:
    """Example indices, kept as ranges. An index that it already has is refused.

    Cost: 16 bytes per range, so a handful for all examples of a data set, and at most 25 per example.

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
        self._ranges: _Ranges = np.empty((0, 2), dtype=np.int64)
        self._recent: set[int] = set()  # not yet in a range: joining ranges after every batch would be slow

    def __repr__(self) -> str:
        return f"IndexSet({len(self)} examples)"

    def add(self, index: Integer[Tensor, "example"], way: str = _GIVE_ONCE) -> None:
        """Add examples.

        Args:
            index: integers in any order.
            way: the way out, for the error.

        Raises:
            InputError: for an index that is given twice or is there already. None is added then.
        """
        numbers = index.tolist()
        new = set(numbers)
        twice = (new & self._recent) | self._in_ranges(new)
        if len(new) < len(numbers):
            twice |= {number for number, count in Counter(numbers).items() if count > 1}
        if twice:
            raise InputError(f"example index {min(twice)} was given twice; {way}")
        self._recent |= new
        if len(self._recent) >= max(_MIN_RECENT, len(self._ranges) // 8):
            self._settle()

    def update(self, other: IndexSet) -> None:
        """Add the examples of another set.

        Raises:
            InputError: if the sets share an index. None is added then.
        """
        self._settle()
        other._settle()
        shared = _intersection(self._ranges, other._ranges)
        if len(shared):
            raise InputError(
                f"example index {shared[0, 0]} ({_count(shared)} such) is in both states; merge each state once, and "
                "give every example an index of its own"
            )
        self._ranges = _union(self._ranges, other._ranges)

    def tensor(self) -> Int64[Tensor, "range 2"]:
        """Return the first and last index of each range, ascending."""
        self._settle()
        return torch.from_numpy(self._ranges.copy())

    @classmethod
    def from_tensor(cls, ranges: Int64[Tensor, "range 2"]) -> IndexSet:
        """Return the set whose ``tensor`` this is.

        Raises:
            InputError: for anything else than ascending ranges.
        """
        if ranges.ndim != 2 or ranges.shape[1] != 2 or ranges.dtype != torch.int64:
            raise InputError(f"ranges of example indices are {ranges.dtype} {list(ranges.shape)}; expected int64 [k 2]")
        array = ranges.cpu().numpy().copy()
        if (array[:, 0] > array[:, 1]).any() or (array[1:, 0] <= array[:-1, 1]).any():
            raise InputError("ranges of example indices overlap or run backwards; give what tensor() returned")
        examples = cls()
        examples._ranges = array
        return examples

    @property
    def end(self) -> int:
        """One more than the largest index, or 0 for an empty set."""
        self._settle()
        return int(self._ranges[-1, 1]) + 1 if len(self._ranges) else 0

    def __len__(self) -> int:
        return _count(self._ranges) + len(self._recent)

    def __contains__(self, index: int) -> bool:
        return index in self._recent or bool(self._in_ranges({index}))

    def holds(self, index: Integer[Tensor, "example"]) -> Bool[Tensor, "example"]:
        """Return for each index whether it is in the set."""
        self._settle()
        return torch.from_numpy(_are_in(self._ranges, index.cpu().numpy()))

    def _in_ranges(self, numbers: set[int]) -> set[int]:
        """Return which of the numbers are in one of the ranges."""
        ranges = self._ranges
        if not numbers or not len(ranges) or max(numbers) < ranges[0, 0] or ranges[-1, 1] < min(numbers):
            return set()
        array = np.fromiter(numbers, np.int64, len(numbers))
        return set(array[_are_in(ranges, array)].tolist())

    def _settle(self) -> None:
        """Move the recent examples into the ranges."""
        if self._recent:
            numbers = np.sort(np.fromiter(self._recent, np.int64, len(self._recent)))
            self._ranges = _union(self._ranges, np.stack([numbers, numbers], axis=1))
            self._recent = set()


def _count(ranges: _Ranges) -> int:
    return int((ranges[:, 1] - ranges[:, 0] + 1).sum())


def _are_in(ranges: _Ranges, numbers: Integer[np.ndarray, "number"]) -> Bool[np.ndarray, "number"]:
    """Return for each number whether it is in one of the ranges."""
    if not len(ranges):
        return np.zeros(len(numbers), dtype=bool)
    place = np.minimum(np.searchsorted(ranges[:, 1], numbers), len(ranges) - 1)
    return (ranges[place, 0] <= numbers) & (numbers <= ranges[place, 1])


def _by_first_index(one: Int64[np.ndarray, "a 2"], other: Int64[np.ndarray, "b 2"]) -> Int64[np.ndarray, "range 2"]:
    ranges = np.concatenate([one, other])
    return ranges[np.argsort(ranges[:, 0], kind="stable")]  # stable: fast for two sorted halves


def _union(one: Int64[np.ndarray, "a 2"], other: Int64[np.ndarray, "b 2"]) -> _Ranges:
    """Return the ranges of two sets that share no index, joining ranges without a gap between them."""
    ranges = _by_first_index(one, other)
    gaps = np.flatnonzero(ranges[1:, 0] - 1 != ranges[:-1, 1])
    first = np.append(ranges[:1, 0], ranges[gaps + 1, 0])
    last = np.append(ranges[gaps, 1], ranges[-1:, 1])
    return np.stack([first, last], axis=1)


def _intersection(one: Int64[np.ndarray, "a 2"], other: Int64[np.ndarray, "b 2"]) -> Int64[np.ndarray, "range 2"]:
    """Return the common ranges. Sorted, a range overlaps with at most one before it, which reaches furthest."""
    ranges = _by_first_index(one, other)
    first = ranges[1:, 0]
    last = np.minimum(ranges[1:, 1], np.maximum.accumulate(ranges[:-1, 1]))
    overlap = first <= last
    return np.stack([first[overlap], last[overlap]], axis=1)
