"""Rows of a store with the prompts' own labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from probes import RowStore


class Labelled:
    """A store whose labels are given: those of a file may have changed since the rows were written.

    Args:
        store: of the rows.
        index: ``[n]`` the store's examples, ascending.
        codes: by label ``[n]`` the class of each.
    """

    def __init__(self, store: RowStore, index: Tensor, codes: Mapping[str, Tensor]) -> None:
        self._store, self._index, self._codes = store, index, codes
        self.index, self.tokens, self.sites = store.index, store.tokens, store.sites
        self.readout, self.model, self.source = store.readout, store.model, store.source
        self.hook_dict = store.hook_dict
        self.labels = sorted(codes)

    def __len__(self) -> int:
        return len(self.index)

    def blocks(self) -> Iterator[Tensor]:
        """The examples of one shard after another."""
        return self._store.blocks()

    def take(self, index: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Rows from the store, labels as given."""
        places = torch.searchsorted(self._index, index)
        found = self._store.take(index, [name for name in names if name.startswith("rows/")])
        labels = [name for name in names if name.startswith("labels/")]
        return found | {name: self._codes[name.removeprefix("labels/")][places] for name in labels}
