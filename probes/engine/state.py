"""Keep a probe's state between batches: ``Sum`` and ``Rows``, and the base classes that ``Moments`` shares.

All are additive, so batches may come in any split and any order, from any number of processes, and states of separate
jobs may be merged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeAlias, TypeVar, overload

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from probes.store.splitmix64 import splitmix64
from tasks import InputError

ValueT = TypeVar("ValueT")
StateT = TypeVar("StateT", bound="KeyedState[Any]")
AnyTensor: TypeAlias = Shaped[Tensor, "..."]
IndexedRows: TypeAlias = tuple[Int[Tensor, "row"], Shaped[Tensor, "row ..."]]  # example indices, and a row for each


class DeclaredState(ABC, Generic[StateT]):
    """A class attribute that gives each probe instance its own state on first use."""

    name: str

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @abstractmethod
    def _make(self, probe: Any) -> StateT:
        """Return an empty state for ``probe``."""

    @overload
    def __get__(self, probe: None, owner: type) -> DeclaredState[StateT]: ...
    @overload
    def __get__(self, probe: object, owner: type) -> StateT: ...
    def __get__(self, probe: Any, owner: type) -> Any:
        if probe is None:
            return self
        states: dict[str, StateT] = probe.__dict__.setdefault("_states", {})
        if self.name not in states:
            states[self.name] = self._make(probe)
        return states[self.name]


class KeyedState(ABC, Generic[ValueT]):
    """Base class of states: values by key, usually a site."""

    def __init__(self) -> None:
        self._values: dict[str, ValueT] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _at(self, key: str) -> ValueT:
        """Return the value at a key.

        Raises:
            InputError: before the first batch.
        """
        if not self._values:
            raise InputError("no batch was measured yet; give the probe to run() or attach()")
        return self._values[key]

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add the values of another state of this kind, which has equal ``shapes()`` at the keys of both."""

    @abstractmethod
    def shapes(self) -> dict[str, Any]:
        """Return the shape of what is kept at each key, without the number of examples."""

    @abstractmethod
    def tensors(self) -> dict[str, AnyTensor]:
        """Return all values as named tensors on the CPU."""

    @abstractmethod
    def load(self, tensors: dict[str, AnyTensor]) -> None:
        """Replace all values by the ``tensors()`` of another state."""


class Sum(DeclaredState["SumState"]):
    """Additive state: one float64 (or int64) tensor per key, usually a site.

    Memory: the size of the tensors added, independent of the number of examples. Integer sums do not depend on order at
    all, and float64 sums only by rounding.

    Args:
        dtype: ``torch.float64`` or ``torch.int64``.

    Raises:
        InputError: for another dtype, which would round.

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


class Rows(DeclaredState["RowsState"]):
    """State that keeps examples by their index, one row each.

    Memory: up to twice ``cap`` rows per key until they are read, or all rows if ``cap`` is ``None``. With a cap, which
    rows stay depends on their index alone (a hash), not on order, batch size or process.

    Args:
        cap: most rows to keep: a number, the name of the probe parameter that holds it, or ``None``.

    Example:
        >>> class States:
        ...     rows = Rows()
        >>> probe = States()
        >>> probe.rows.add("hook_embed", torch.tensor([7, 3]), torch.tensor([[0.7], [0.3]]))
        >>> index, rows = probe.rows.get("hook_embed")
        >>> index.tolist(), rows.flatten().tolist()
        ([3, 7], [0.30000001192092896, 0.699999988079071])
    """

    def __init__(self, cap: int | str | None = None) -> None:
        self.cap = cap

    def _make(self, probe: Any) -> RowsState:
        cap = getattr(probe, self.cap) if isinstance(self.cap, str) else self.cap
        return RowsState(cap)


class SumState(KeyedState[Tensor]):
    """Running sums by key. See ``Sum``."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def add(self, key: str, value: AnyTensor | float | int) -> None:
        """Add ``value`` to the sum at ``key``.

        Raises:
            InputError: for a shape other than the first value's, and for a real number in an int64 sum.
        """
        tensor = self._exact(key, torch.as_tensor(value))
        old = self._values.get(key)
        if old is not None:
            self._check_shape(key, old, tensor.shape)
        self._values[key] = tensor.clone() if old is None else old + tensor.to(old.device)

    def add_rows(self, key: str, index: Int[Tensor, "place"], rows: Shaped[Tensor, "row ..."], size: int) -> None:
        """Add rows to some of the rows of the sum at ``key``, in place.

        No other tensor of the sum's size is made. Repeated runs give equal bits, also on a GPU.

        Args:
            key: key of the sum.
            index: the row of the sum to which each of ``rows`` is added. Rows may be named more than once.
            rows: rows to be added.
            size: number of rows of the sum.

        Raises:
            InputError: for another number of places than rows, a place outside the sum, and as ``add``.

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
        with torch.inference_mode(False), torch.no_grad():  # tensors made in inference mode cannot be added to outside
            old = self._values.get(key)
            if old is None:
                old = self._values[key] = rows.new_zeros(shape)
            self._check_shape(key, old, shape)
            place, place_of_row = torch.unique(index.to(old.device), return_inverse=True)
            if len(place) and not 0 <= int(place[0]) <= int(place[-1]) < size:
                raise InputError(f"places from {int(place[0])} to {int(place[-1])} in a Sum of {size} rows at {key!r}")
            rows = rows.to(old.device)
            sums = old.new_zeros(len(place), *shape[1:])
            if old.device.type == "cpu":
                sums.index_add_(0, place_of_row, rows)
            else:  # on a GPU, index_add_ takes rows of one place in any order
                sums.index_put_((place_of_row,), rows, accumulate=True)
            old.index_add_(0, place, sums)

    def _exact(self, key: str, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        """Return the tensor in the sum's dtype, on its device if possible. MPS has no float64."""
        if self.dtype is torch.int64 and tensor.is_floating_point():
            raise InputError(f"an int64 Sum was given {tensor.dtype} at {key!r}; declare Sum() for real numbers")
        return tensor.detach().to("cpu" if tensor.device.type == "mps" else tensor.device, self.dtype)

    @staticmethod
    def _check_shape(key: str, old: AnyTensor, shape: tuple[int, ...]) -> None:
        if old.shape != shape:
            raise InputError(
                f"a Sum of shape {tuple(old.shape)} at {key!r} was given {tuple(shape)}; "
                "add the same shape for every batch (sum over the batch first)"
            )

    def __getitem__(self, key: str) -> AnyTensor:
        return self._at(key)

    def merge(self, other: SumState) -> None:
        """Add the sums of another state."""
        for key, value in other._values.items():
            self.add(key, value)

    def shapes(self) -> dict[str, Any]:
        """Return each sum's shape."""
        return {key: tuple(value.shape) for key, value in self._values.items()}

    def tensors(self) -> dict[str, AnyTensor]:
        """Return a copy of each sum on the CPU."""
        return {key: value.to("cpu", copy=True) for key, value in self._values.items()}

    def load(self, tensors: dict[str, AnyTensor]) -> None:
        """Replace all sums by copies of these."""
        self._values = {key: value.clone() for key, value in tensors.items()}


class RowsState(KeyedState[list[IndexedRows]]):
    """Rows by key and example index, as a list of the parts in which they were added. See ``Rows``."""

    def __init__(self, cap: int | None) -> None:
        super().__init__()
        if cap is not None and cap < 1:
            raise InputError(f"the cap on rows is {cap}; expected at least 1, or None for no cap")
        self.cap = cap

    def add(self, key: str, index: Int[Tensor, "batch"], rows: Shaped[Tensor, "row ..."]) -> None:
        """Keep a copy of the rows of a batch of examples.

        Raises:
            InputError: for another number of rows than examples.
        """
        if len(index) != len(rows):
            raise InputError(f"{len(rows)} rows at {key!r} for {len(index)} examples; give one row per example")
        # copies: a slice or view would keep the whole activation alive
        index = index.detach().to("cpu", copy=True)
        rows = rows.detach().to("cpu", copy=True).contiguous()
        chunks = self._values.setdefault(key, [])
        chunks.append((index, rows))
        if self.cap is not None and sum(len(index) for index, _ in chunks) > 2 * self.cap:
            self._values[key] = [self._capped(*self._joined(key))]

    def _in_order(self, index: Int[Tensor, "row"]) -> bool:
        return (self.cap is None or len(index) <= self.cap) and bool((index[1:] > index[:-1]).all())

    def _joined(self, key: str) -> IndexedRows:
        chunks = self._at(key)
        return torch.cat([index for index, _ in chunks]), torch.cat([rows for _, rows in chunks])

    def _capped(self, index: Int[Tensor, "example"], rows: Shaped[Tensor, "example ..."]) -> IndexedRows:
        """Return the rows that stay, in the order given."""
        if self.cap is None or len(index) <= self.cap:
            return index, rows
        keep = torch.sort(splitmix64(index), stable=True).indices[: self.cap].sort().values
        return index[keep], rows[keep]

    def get(self, key: str) -> IndexedRows:
        """Return the indices of the examples in ascending order, and the row of each.

        Raises:
            InputError: when an index was given twice.
        """
        chunks = self._at(key)
        if len(chunks) == 1 and self._in_order(chunks[0][0]):
            return chunks[0]
        index, rows = self._joined(key)
        index, order = torch.sort(index, stable=True)
        repeats = index[1:][index[1:] == index[:-1]]
        if len(repeats):
            raise InputError(
                f"example index {int(repeats[0])} was given twice at {key!r}; give every example an index of its own "
                "(Batch.index) and every batch once"
            )
        self._values[key] = [self._capped(index, rows[order])]
        return self._values[key][0]

    def pop(self, key: str) -> IndexedRows:
        """Return the result of ``get``, and forget it."""
        index_and_rows = self.get(key)
        del self._values[key]
        return index_and_rows

    def chunks(self, key: str) -> list[IndexedRows]:
        """Return indices and rows in the parts in which they are kept."""
        return self._at(key)

    def merge(self, other: RowsState) -> None:
        """Add the rows of another state."""
        for key in other:
            self.add(key, *other._joined(key))

    def shapes(self) -> dict[str, Any]:
        """Return the shape of a row at each key."""
        return {key: tuple(chunks[0][1].shape[1:]) for key, chunks in self._values.items() if chunks}

    def tensors(self) -> dict[str, AnyTensor]:
        """Return ``key/index`` and ``key/rows`` for every key."""
        tensors = {}
        for key in self:
            index, rows = self.get(key)
            tensors[f"{key}/index"] = index
            tensors[f"{key}/rows"] = rows
        return tensors

    def load(self, tensors: dict[str, AnyTensor]) -> None:
        """Replace all rows by the ``tensors()`` of another state."""
        self._values = {}
        for name, index in tensors.items():
            key, _, part = name.rpartition("/")
            if part == "index":
                self._values[key] = [(index, tensors[f"{key}/rows"])]
