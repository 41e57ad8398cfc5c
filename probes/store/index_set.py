"""The examples that a state holds, so that none is counted twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor

from tasks import InputError

_GIVE_ONCE = "give every example an index of its own and every batch once (after reset() a probe may measure it again)"


class IndexSet:
    """Example indices. An index that it already has is refused.

    Cost: about 90 bytes per example, in each probe's state; in files, 16 bytes per range of consecutive indices.

    Attributes:
        end: one more than the largest index, at least 0.

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
        self._indices: set[int] = set()
        self.end = 0

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
        twice = new & self._indices
        if len(new) < len(numbers):
            twice |= {number for number, count in Counter(numbers).items() if count > 1}
        if twice:
            raise InputError(f"example index {min(twice)} was given twice; {way}")
        self._indices |= new
        self.end = max(self.end, max(new, default=-1) + 1)

    def update(self, other: IndexSet) -> None:
        """Add the examples of another set.

        Raises:
            InputError: if the sets share an index. None is added then.
        """
        shared = self._indices & other._indices
        if shared:
            raise InputError(
                f"example index {min(shared)} ({len(shared)} such) is in both states; merge each state once, and "
                "give every example an index of its own"
            )
        self._indices |= other._indices
        self.end = max(self.end, other.end)

    def tensor(self) -> Int64[Tensor, "range 2"]:
        """Return the first and last index of each range of consecutive indices, ascending."""
        numbers = np.sort(np.fromiter(self._indices, np.int64, len(self)))
        ends = np.flatnonzero(numbers[1:] - 1 != numbers[:-1])
        first = np.append(numbers[:1], numbers[ends + 1])
        last = np.append(numbers[ends], numbers[-1:])
        return torch.from_numpy(np.stack([first, last], axis=1))

    @classmethod
    def from_tensor(cls, ranges: Int64[Tensor, "range 2"]) -> IndexSet:
        """Return the set whose ``tensor`` this is.

        Raises:
            InputError: for anything else than ascending ranges.
        """
        if ranges.ndim != 2 or ranges.shape[1] != 2 or ranges.dtype != torch.int64:
            raise InputError(f"ranges of example indices are {ranges.dtype} {list(ranges.shape)}; expected int64 [k 2]")
        if bool((ranges[:, 0] > ranges[:, 1]).any() or (ranges[1:, 0] <= ranges[:-1, 1]).any()):
            raise InputError("ranges of example indices overlap or run backwards; give what tensor() returned")
        examples = cls()
        for first, last in ranges.tolist():
            examples._indices.update(range(first, last + 1))
            examples.end = max(examples.end, last + 1)
        return examples

    def __len__(self) -> int:
        return len(self._indices)

    def __contains__(self, index: int) -> bool:
        return index in self._indices

    def holds(self, index: Integer[Tensor, "example"]) -> Bool[Tensor, "example"]:
        """Return for each index whether it is in the set."""
        return torch.tensor([number in self._indices for number in index.tolist()], dtype=torch.bool)
