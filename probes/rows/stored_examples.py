"""The examples that an unfinished row store holds, so that only the others are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64, Integer, Shaped
from torch import Tensor

from probes.engine.examples_digest import token_digests
from probes.engine.readout import position_from_first_token
from probes.rows.row_store import read_store_header, write_store_header
from probes.rows.shards import Shard, StoredRowsError, store_shards
from probes.store.index_set import IndexSet
from probes.store.temporary_files import is_temporary
from tasks import Batch, InputError


@dataclass
class StoredExamples:
    """The examples that a folder holds, and the examples given so far, which must be equal.

    Attributes:
        folder: folder of the store.
        labels: names of the labels kept.
        position: name of the batch's position that the readout reads (``token_at``), or ``None``.
        known: index, tokens, labels and positions of the examples that the folder held at the start, by index,
            ascending.
        seen: the examples given so far.
        written: number of examples written since.
    """

    folder: Path
    labels: Sequence[str]
    position: str | None
    known: dict[str, Integer[Tensor, "example"]]
    seen: IndexSet = field(default_factory=IndexSet)
    written: int = 0

    @classmethod
    def from_folder(cls, folder: Path, header: Mapping[str, Any]) -> StoredExamples:
        """Read which examples a folder holds of these rows, without writing.

        Raises:
            StoredRowsError: for a folder that is not a row store, or holds other rows, and for a shard of which a file
                is missing.
        """
        shards = _kept_shards(folder, header)
        parts = [shard.columns() for shard in shards]
        for shard in shards:
            shard.check_sizes()
        labels = header["labels"]
        position = header.get("position")
        if not parts:
            return cls(folder, labels, position, {"index": torch.zeros(0, dtype=torch.int64)})
        joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        order = torch.argsort(joined["index"])
        return cls(folder, labels, position, {key: values[order] for key, values in joined.items()})

    def __len__(self) -> int:
        return len(self.known["index"])

    def see(self, index: Integer[Tensor, "example"]) -> None:
        """Note that these examples were given.

        Raises:
            InputError: for one that was given before.
        """
        self.seen.add(index, "give every example an index of its own")

    def new(self, batch: Batch) -> Batch:
        """Return the examples of a batch that are not there yet.

        Raises:
            InputError: for an example given twice, and one that is there with other tokens, labels or positions.
        """
        self.see(batch.index)
        held = self.known["index"]
        index = batch.index.cpu()
        if not len(held):
            return batch
        places = torch.searchsorted(held, index).clamp(max=len(held) - 1)  # isin takes time linear in all held
        is_held = held[places] == index
        if not bool(is_held.any()):
            return batch
        self._check_same(batch.select(is_held.to(batch.index.device)), places[is_held])
        return batch.select((~is_held).to(batch.index.device))

    def _check_same(self, batch: Batch, places: Int64[Tensor, "example"]) -> None:
        """Refuse examples whose tokens, labels or positions differ from the kept ones at ``places``."""
        example = _first_difference(token_digests(batch), self.known["tokens"][places])
        if example is not None:
            raise StoredRowsError(
                f"example index {int(batch.index[example])} has different tokens in {str(self.folder)!r}; give the "
                "same prompts, or a new folder"
            )
        for name in self.labels:
            given = batch.label(name, per="example")
            self._check_column(f"labels/{name}", given, batch, places, "labels", ("", f" as its label {name!r}"))
        if self.position is not None:
            given = position_from_first_token(self.position, batch)
            words = ("position ", f" for {self.position!r}")
            self._check_column(f"positions/{self.position}", given, batch, places, "positions", words)

    def _check_column(
        self,
        column: str,
        given: Shaped[Tensor, "example"],
        batch: Batch,
        places: Int64[Tensor, "example"],
        kind: str,
        words: tuple[str, str],
    ) -> None:
        """Refuse examples whose value differs from the kept one. An error puts the value between the two words."""
        kept = self.known[column][places]
        example = _first_difference(given, kept)
        if example is not None:
            before, after = words
            raise StoredRowsError(
                f"example index {int(batch.index[example])} has {before}{given[example].item()}{after}, not "
                f"{kept[example].item()} as in {str(self.folder)!r}; give the same {kind}, or a new folder"
            )

    def finish(self, header: Mapping[str, Any], tokenization: Mapping[str, Any] | None) -> None:
        """Mark the store as complete.

        Args:
            header: header of the store.
            tokenization: how texts became tokens. ``None`` if no texts were given.

        Raises:
            InputError: for a folder that holds more examples than were given, and for no examples at all.
        """
        self._check_all_given()
        write_store_header(self.folder, {**header, "examples": len(self.seen), "tokenization": tokenization})

    def _check_all_given(self) -> None:
        if not len(self.seen):
            raise InputError("there are no examples to measure; give at least one non-empty batch")
        missing = self.known["index"][~self.seen.holds(self.known["index"])]
        if len(missing):
            raise StoredRowsError(
                f"{str(self.folder)!r} holds example index {int(missing[0])}, which is not in these batches "
                f"({len(missing)} such); give all the examples it was started with, or a new folder"
            )


def _kept_shards(folder: Path, header: Mapping[str, Any]) -> list[Shard]:
    """Return the shards that a folder holds of these rows. Refuse other folders and other rows."""
    # Another process may begin the store now. It writes the header first, so the header is read last.
    has_files = folder.is_dir() and any(not is_temporary(path) for path in folder.iterdir())
    kept = store_shards(folder)
    old = read_store_header(folder)
    if old is None and kept:
        raise StoredRowsError(
            f"{str(folder)!r} has shards of rows but no rows.json, which says which model they are of; put it "
            "back, delete the folder, or give a new one"
        )
    if old is None and has_files:
        raise StoredRowsError(f"{str(folder)!r} has files but is not a row store; give a new folder")
    if old is None or not kept:  # no rows are kept yet, so none can be mixed
        return kept
    names = {
        "sites": "other sites",
        "readout": "another readout",
        "labels": "other labels",
        "position": "examples whose positions it does not record",
        "dtype": f"dtype {old.get('dtype') or 'of the model'}",
    }
    for key, value in header.items():
        if old.get(key) != value:
            raise StoredRowsError(
                f"{str(folder)!r} holds rows of {names.get(key, 'another model or dtype')}; "
                "give a new folder, or delete this one"
            )
    return kept


def _first_difference(one: Shaped[Tensor, "example"], other: Shaped[Tensor, "example"]) -> int | None:
    """Return the first place at which two tensors differ."""
    places = (one.cpu() != other).nonzero()
    return int(places[0, 0]) if len(places) else None
