"""What a probe remembers between batches: ``Sum`` and ``Rows``, and what they share with ``Moments``.

All are additive, so that batches may come in any split and any order, from any number of
processes, and states of separate jobs may be merged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from tasks import InputError

ValueT = TypeVar("ValueT")
StateT = TypeVar("StateT", bound="Keyed[Any]")


class Declared(ABC, Generic[StateT]):
    """A class attribute that gives each probe instance its own state on first use."""

    name: str

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @abstractmethod
    def _make(self, probe: Any) -> StateT:
        """An empty state for ``probe``."""

    @overload
    def __get__(self, probe: None, owner: type) -> Declared[StateT]: ...
    @overload
    def __get__(self, probe: object, owner: type) -> StateT: ...
    def __get__(self, probe: Any, owner: type) -> Any:
        if probe is None:
            return self
        states: dict[str, StateT] = probe.__dict__.setdefault("_states", {})
        if self.name not in states:
            states[self.name] = self._make(probe)
        return states[self.name]


class Keyed(ABC, Generic[ValueT]):
    """What a state holds, by key."""

    def __init__(self) -> None:
        self._values: dict[str, ValueT] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add what another state of the same kind holds."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that is held, as named tensors on the CPU."""

    @abstractmethod
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Hold what ``tensors`` gave instead."""


class Sum(Declared["SumState"]):
    """Declares additive state: one float64 (or int64) tensor per key, usually a site.

    Memory: the size of the tensors added, independent of the number of examples. Integer sums do
    not depend on order at all; float64 sums up to rounding.

    Example:
        >>> class Norms:
        ...     total = Sum()
        >>> probe = Norms()
        >>> probe.total.add("hook_embed", torch.tensor(2.0))
        >>> probe.total.add("hook_embed", torch.tensor(3.0))
        >>> probe.total["hook_embed"]
        tensor(5., dtype=torch.float64)
    """

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        if dtype not in (torch.float64, torch.int64):
            raise InputError(f"Sum({dtype}) would round; use torch.float64 or torch.int64")
        self.dtype = dtype

    def _make(self, probe: Any) -> SumState:
        return SumState(self.dtype)


class Rows(Declared["RowsState"]):
    """Declares examples kept by their index, one row each.

    Memory: ``cap`` rows per key (all of them where ``cap`` is ``None``). With a cap, which rows stay
    depends on their index alone (a hash), not on order, batch size or process.

    Args:
        cap: most rows to keep: a number, the name of the probe parameter that holds it, or ``None``.
    """

    def __init__(self, cap: int | str | None = None) -> None:
        self.cap = cap

    def _make(self, probe: Any) -> RowsState:
        return RowsState(getattr(probe, self.cap) if isinstance(self.cap, str) else self.cap)


class SumState(Keyed[Tensor]):
    """Running sums by key. See ``Sum``."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def add(self, key: str, value: Tensor | float | int) -> None:
        """Add to the sum at ``key``; the first addition sets its shape."""
        tensor = self._exact(key, torch.as_tensor(value))
        old = self._values.get(key)
        if old is not None:
            self._check_shape(key, old, tensor.shape)
        self._values[key] = tensor.clone() if old is None else old + tensor.to(old.device)

    def add_rows(self, key: str, index: Tensor, rows: Tensor, size: int) -> None:
        """Add each of ``rows`` ``[n ...]`` to row ``index`` ``[n]`` of the sum ``[size ...]`` at ``key``, in place.

        Nothing of the sum's size is made but the sum itself. The same bits on every run, also on a GPU.

        Example:
            >>> state = SumState(torch.float64)
            >>> state.add_rows("a", torch.tensor([2, 0, 2]), torch.tensor([[1.0], [2.0], [3.0]]), size=3)
            >>> state["a"].flatten().tolist()
            [2.0, 0.0, 4.0]
        """
        if len(index) != len(rows):
            raise InputError(f"{len(rows)} rows at {key!r} for {len(index)} places; give one place per row")
        rows = self._exact(key, rows)
        shape = (size, *rows.shape[1:])
        with torch.inference_mode(False), torch.no_grad():  # what is made in inference mode cannot be added to outside
            old = self._values.get(key)
            if old is None:
                old = self._values[key] = rows.new_zeros(shape)
            self._check_shape(key, old, shape)
            place, which = torch.unique(index.to(old.device), return_inverse=True)
            if len(place) and not 0 <= int(place[0]) <= int(place[-1]) < size:
                raise InputError(f"places from {int(place[0])} to {int(place[-1])} in a Sum of {size} rows at {key!r}")
            parts, rows = old.new_zeros(len(place), *shape[1:]), rows.to(old.device)
            if old.device.type == "cpu":
                parts.index_add_(0, which, rows)
            else:  # there index_add_ takes rows of one place in any order
                parts.index_put_((which,), rows, accumulate=True)
            old.index_add_(0, place, parts)

    def _exact(self, key: str, tensor: Tensor) -> Tensor:
        """In our dtype, where it was computed; MPS has no float64."""
        if self.dtype is torch.int64 and tensor.is_floating_point():
            raise InputError(f"an int64 Sum was given {tensor.dtype} at {key!r}; declare Sum() for real numbers")
        return tensor.detach().to("cpu" if tensor.device.type == "mps" else tensor.device, self.dtype)

    @staticmethod
    def _check_shape(key: str, old: Tensor, shape: tuple[int, ...]) -> None:
        if old.shape != shape:
            raise InputError(
                f"a Sum of shape {tuple(old.shape)} at {key!r} was given {tuple(shape)}; "
                "add the same shape for every batch (sum over the batch first)"
            )

    def __getitem__(self, key: str) -> Tensor:
        return self._values[key]

    def merge(self, other: SumState) -> None:
        for key, value in other._values.items():
            self.add(key, value)

    def tensors(self) -> dict[str, Tensor]:
        return {key: value.to("cpu", copy=True) for key, value in self._values.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self._values = {key: value.clone() for key, value in tensors.items()}


class RowsState(Keyed[list[tuple[Tensor, Tensor]]]):
    """Rows by key and example index. See ``Rows``."""

    def __init__(self, cap: int | None) -> None:
        super().__init__()
        if cap is not None and cap < 1:
            raise InputError(f"the cap on rows is {cap}; expected at least 1, or None for no cap")
        self.cap = cap

    def add(self, key: str, index: Tensor, rows: Tensor) -> None:
        """Keep ``rows`` ``[batch ...]`` of the examples ``index`` ``[batch]``."""
        if len(index) != len(rows):
            raise InputError(f"{len(rows)} rows at {key!r} for {len(index)} examples; give one row per example")
        # clone: a slice or view would keep the whole activation alive
        index, rows = index.detach().to("cpu", copy=True), rows.detach().to("cpu", copy=True).contiguous()
        chunks = self._values.setdefault(key, [])
        chunks.append((index, rows))
        if self.cap is not None and sum(len(i) for i, _ in chunks) > 2 * self.cap:
            self._values[key] = [self._capped(*self._joined(key))]

    def _in_order(self, index: Tensor, rows: Tensor) -> bool:
        return (self.cap is None or len(index) <= self.cap) and bool((index[1:] > index[:-1]).all())

    def _joined(self, key: str) -> tuple[Tensor, Tensor]:
        chunks = self._values[key]
        return torch.cat([i for i, _ in chunks]), torch.cat([r for _, r in chunks])

    def _capped(self, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.cap is None or len(index) <= self.cap:
            return index, rows
        keep = torch.sort(hashed(index), stable=True).indices[: self.cap]
        return index[keep], rows[keep]

    def get(self, key: str) -> tuple[Tensor, Tensor]:
        """``(index [n], rows [n ...])`` in the order of the index.

        Raises:
            InputError: when an index was given twice.
        """
        if len(self._values[key]) == 1 and self._in_order(*self._values[key][0]):
            return self._values[key][0]
        index, rows = self._joined(key)
        index, order = torch.sort(index, stable=True)
        if bool((index[1:] == index[:-1]).any()):
            twice = int(index[1:][index[1:] == index[:-1]][0])
            raise InputError(
                f"example index {twice} was given twice at {key!r}; give every example an index of its own "
                "(Batch.index) and every batch once"
            )
        index, rows = self._capped(index, rows[order])
        order = torch.argsort(index)
        self._values[key] = [(index[order], rows[order])]
        return self._values[key][0]

    def pop(self, key: str) -> tuple[Tensor, Tensor]:
        """``get``, and hold it no longer."""
        found = self.get(key)
        del self._values[key]
        return found

    def chunks(self, key: str) -> list[tuple[Tensor, Tensor]]:
        """Index and rows as they were given."""
        return self._values[key]

    def merge(self, other: RowsState) -> None:
        for key in other:
            self.add(key, *other._joined(key))

    def tensors(self) -> dict[str, Tensor]:
        return {f"{key}/{part}": t for key in self for part, t in zip(("index", "rows"), self.get(key), strict=True)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self._values = {
            name.removesuffix("/index"): [(index, tensors[name.removesuffix("index") + "rows"])]
            for name, index in tensors.items()
            if name.endswith("/index")
        }


def hashed(index: Tensor) -> Tensor:
    """splitmix64 of each index: a fixed pseudo-random order of the integers."""
    x = index.to(torch.int64) + -7046029254386353131
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> by) & ((1 << (64 - by)) - 1)
