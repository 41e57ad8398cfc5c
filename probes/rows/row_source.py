"""Rows that can be measured without their model, in the order of their examples' index."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import torch
from jaxtyping import Float, Int64, Integer, Shaped
from torch import Tensor

from tasks import InputError
from tasks.errors import error_suggestion

Columns: TypeAlias = Mapping[str, Integer[Tensor, "example"]]
"""``index``, ``tokens`` where they are known, ``labels/<name>`` and ``positions/<name>`` of some examples."""


class RowSource(ABC):
    """Rows that ``run_stores`` can measure: a ``RowStore``, or the result of ``rows_from``.

    A subclass reads the rows themselves.

    Args:
        columns: columns of the examples, in the order in which the subclass has their rows.
        sites: hook names.
        source: the name of these rows in error messages.

    Attributes:
        sites: hook names.
        source: the name of these rows in error messages.
        readout: the readout's ``repr``.
        model: a text that identifies the model.
        hook_dict: the hook points that selectors resolve against.
        label_way: advice for a label that is not there, such as ``"give it as labels=[%r]"``.
        tokenization: how texts became tokens, or ``None`` if that is not known.
        classes: names of the classes by their number, for labels given as strings.

    Example:
        >>> from probes import rows_from
        >>> rows_from({"blocks.0.hook_resid_post": torch.zeros(3, 8)}).index.tolist()
        [0, 1, 2]
    """

    readout: str
    model: str
    hook_dict: Mapping[str, Any]
    label_way = "give rows that have it, labels=[%r]"
    tokenization: Mapping[str, Any] | None = None
    classes: Mapping[str, list[str]] = MappingProxyType({})

    def __init__(self, columns: Columns, sites: Sequence[str], source: str) -> None:
        self._places = torch.argsort(columns["index"])  # where the subclass has each row
        self._columns = {key: values[self._places] for key, values in columns.items()}
        self.sites = list(sites)
        self.source = source

    def __len__(self) -> int:
        return len(self.index)

    @property
    def index(self) -> Integer[Tensor, "example"]:
        """The examples, ascending."""
        return self._columns["index"]

    @property
    def tokens(self) -> Int64[Tensor, "example"] | None:
        """A digest of each example's tokens, or ``None`` if they are not known."""
        return self._columns.get("tokens")

    @property
    def positions(self) -> Integer[Tensor, "example"] | None:
        """The position of ``token_at`` in each example, from its first token, or ``None`` if it is not known."""
        return next((values for key, values in self._columns.items() if key.startswith("positions/")), None)

    @property
    def labels(self) -> list[str]:
        """Names of the labels."""
        return sorted(key.removeprefix("labels/") for key in self._columns if key.startswith("labels/"))

    def select(self, index: Integer[Tensor, "some"]) -> Self:
        """Return only the rows of these examples, without reading or copying."""
        keep = torch.isin(self.index, index)
        selected = copy.copy(self)
        selected._places = self._places[keep]
        selected._columns = {key: values[keep] for key, values in self._columns.items()}
        return selected

    def with_labels(self, labels: Mapping[str, Integer[Tensor, "example"]]) -> Self:
        """Return the rows with these labels, by name and in the order of ``index``, in place of those they have.

        Raises:
            InputError: for a label with another number of values than there are examples.
        """
        for name, values in labels.items():
            if len(values) != len(self):
                raise InputError(
                    f"label {name!r} has {len(values)} values for {len(self)} examples; give one per example of index"
                )
        labelled = copy.copy(self)
        labelled._columns = {key: values for key, values in self._columns.items() if not key.startswith("labels/")}
        labelled._columns |= {f"labels/{name}": values for name, values in labels.items()}
        return labelled

    def take(self, index: Integer[Tensor, "some"], names: Sequence[str]) -> dict[str, Shaped[Tensor, "some ..."]]:
        """Return ``"rows/<site>"`` and ``"labels/<name>"`` of these examples, in their order.

        Reads the rows of these sites only.

        Raises:
            InputError: for a site, a label or an example that is not there, and a file that cannot be read.
        """
        examples = self._find(index)
        self._check_names(names)
        sites = [name.removeprefix("rows/") for name in names if name.startswith("rows/")]
        rows = self._read(sites, self._places[examples]) if sites else {}
        values = {f"rows/{site}": x for site, x in rows.items()}
        values |= {key: self._columns[key][examples] for key in names if key.startswith("labels/")}
        return {name: values[name] for name in names}

    @abstractmethod
    def blocks(self) -> Iterator[Integer[Tensor, "block"]]:
        """Yield the examples that are best read together, block by block."""

    @abstractmethod
    def _read(self, sites: Sequence[str], places: Int64[Tensor, "some"]) -> dict[str, Float[Tensor, "some _"]]:
        """Return the rows of some examples, which were at these places in the columns, by site."""

    def _find(self, index: Integer[Tensor, "some"]) -> Int64[Tensor, "some"]:
        """Return where examples are in our index. Refuse unknown examples."""
        if index.is_floating_point():
            raise InputError(f"the index of examples is {index.dtype}; give integers")
        index = index.long()
        places = torch.searchsorted(self.index, index)
        missing = places == len(self)
        if len(self):
            missing |= self.index[places.clamp(max=len(self) - 1)] != index
        if bool(missing.any()):
            raise InputError(
                f"{self.source!r} has no rows of example index {int(index[missing][0])} ({int(missing.sum())} such); "
                "choose from its index"
            )
        return places

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            kind, _, key = name.partition("/")
            if kind == "rows" and key not in self.sites:
                raise InputError(f"{self.source!r} has no rows of {key!r}{error_suggestion(key, self.sites)}")
            if kind == "labels" and key not in self.labels:
                raise InputError(
                    f"{self.source!r} has no label {key!r}{error_suggestion(key, self.labels or ['no labels'])}"
                )
            if kind not in ("rows", "labels"):
                raise InputError(
                    f"{name!r} is not a name in {self.source!r}; expected 'rows/<site>' or 'labels/<name>'"
                )
