"""Rows on disk, in shards. A file ``rows.json`` names the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor

from probes.rows.row_source import RowSource
from probes.rows.shards import ROWS_FORMAT, StoredRowsError, store_shards
from probes.store.files import read_json, write_json
from tasks import InputError

_HEADER_FIELDS = ("format", "model", "sites", "readout", "labels", "dtype", "hooks")


class RowStore(RowSource):
    """Rows that ``save_rows`` wrote. ``run_stores`` measures them.

    ``take(index, names)`` returns rows and labels of some examples, ``select(index)`` a store of these examples only.

    Each site has its own files, mapped into memory: only the rows that are needed are read. At the first use of a file
    its checksum is compared, which reads it once.

    Args:
        folder: folder of a finished store.

    Attributes:
        index: the examples, ascending.
        tokens: a digest of each example's tokens.
        sites: hook names, in order.
        readout: the readout's ``repr``.
        labels: names of the labels kept.
        model: identifies the model.
        dtype: the dtype in which the rows are kept, if ``save_rows`` was given one, otherwise ``None``.
        source: its name in error messages, the folder.

    Raises:
        InputError: for a folder without a finished store, or a damaged one. A damaged file of a site is refused when
            that site is read.

    Example:
        >>> # store = RowStore("rows/base")
        >>> # store.take(store.index[:100], ["rows/hook_embed", "labels/task"])
    """

    tokens: Int64[Tensor, "example"]
    label_way = "save the rows again with it: save_rows(..., labels=[%r])"

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        header = read_store_header(self.folder)
        if header is None:
            raise InputError(f"no row store in {str(folder)!r}; write one with save_rows")
        if "examples" not in header:
            raise InputError(
                f"the row store in {str(folder)!r} is unfinished; call save_rows with the same arguments to finish it"
            )
        self.readout: str = header["readout"]
        self.model: str = header["model"]
        self.tokenization = header.get("tokenization")
        self.dtype: torch.dtype | None = header["dtype"] and getattr(torch, header["dtype"])
        self.hook_dict: dict[str, None] = dict.fromkeys(header["hooks"])  # selectors resolve against these
        self._shards = store_shards(self.folder)
        parts = [shard.columns() for shard in self._shards]
        counts = [len(part["index"]) for part in parts]
        self._check_held_once([part["index"] for part in parts])
        if sum(counts) != header["examples"]:
            raise InputError(
                f"{str(folder)!r} holds {sum(counts)} of {header['examples']} examples, so a shard is missing; call "
                "save_rows with the same arguments to measure those examples again"
            )
        self._ends = torch.tensor(counts).cumsum(0)  # end of each shard among the rows of all shards
        columns = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        super().__init__(columns, [site for site, _ in header["sites"]], str(folder))

    def __repr__(self) -> str:
        return f"RowStore({self.source!r}, {len(self)} examples at {len(self.sites)} sites)"

    def _check_held_once(self, indices: Sequence[Int64[Tensor, "_"]]) -> None:
        """Refuse an example in two shards, such as in a copy of one."""
        index = torch.cat([torch.zeros(0, dtype=torch.int64), *indices]).sort().values
        repeats = index[1:][index[1:] == index[:-1]]
        if len(repeats):
            example = int(repeats[0])
            pairs = zip(self._shards, indices, strict=True)
            names = [repr(shard.folder.name) for shard, held in pairs if bool((held == example).any())]
            raise InputError(
                f"{str(self.folder)!r} holds example index {example} in {' and '.join(names)}; delete one of these "
                "folders and call save_rows with the same arguments"
            )

    def blocks(self) -> Iterator[Integer[Tensor, "block"]]:
        """Yield the examples of one shard after another."""
        for _, in_shard in self._by_shard(self._places):
            yield self.index[in_shard]

    def _by_shard(self, places: Int64[Tensor, "some"]) -> Iterator[tuple[int, Bool[Tensor, "some"]]]:
        """Yield the number of each shard that has rows at these places, and at which of the places."""
        shard = torch.searchsorted(self._ends, places, right=True)
        for number in torch.unique(shard).tolist():
            yield number, shard == number

    def _read(self, sites: Sequence[str], places: Int64[Tensor, "some"]) -> dict[str, Float[Tensor, "some _"]]:
        return {site: self._rows(site, places) for site in sites}

    def _rows(self, site: str, places: Int64[Tensor, "some"]) -> Float[Tensor, "some d"]:
        rows = None
        for number, in_shard in self._by_shard(places):
            start = int(self._ends[number - 1]) if number else 0
            part = self._shards[number].rows(site)[places[in_shard] - start]
            if len(part) == len(places):
                return part
            if rows is None:
                rows = part.new_empty(len(places), part.shape[1])
            rows[in_shard] = part
        return self._shards[0].rows(site)[:0] if rows is None else rows


# ---- the store's header ----


def write_store_header(folder: Path, header: Mapping[str, Any]) -> None:
    """Write whose rows the folder holds. With ``"examples"``, the store is finished."""
    write_json(folder / "rows.json", header)


def read_store_header(folder: Path) -> dict[str, Any] | None:
    """Return the header from ``write_store_header``, or ``None`` if there is none.

    Raises:
        StoredRowsError: for another file, or the header of another version.
        InputError: for a folder that is a file.
    """
    path = folder / "rows.json"
    if folder.is_file():
        raise InputError(f"{str(folder)!r} is a file; give the folder that save_rows wrote")
    if not path.exists():
        return None
    try:
        header: dict[str, Any] = read_json(path, handwritten=True)  # another version's may have no checksum
        version = str(header.get("format"))
        header = read_json(path) if version == ROWS_FORMAT else header
    except (InputError, AttributeError):
        version = ""
    if version.startswith("mechclust-rows-") and version != ROWS_FORMAT:
        raise StoredRowsError(
            f"{str(folder)!r} was written by another version ({version}); save the rows again, in a new folder"
        )
    if version != ROWS_FORMAT or not set(_HEADER_FIELDS) <= set(header):
        raise StoredRowsError(
            f"{str(path)!r} is damaged or not the header of a row store; save the rows again, in a new folder"
        )
    return header
