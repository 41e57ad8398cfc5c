"""Rows on disk: their format, and the store that reads them.

A file ``rows.json`` names the model, and each shard is a folder: ``shard.json`` with the checksum of each file beside
it, ``index.safetensors`` (``index``, ``tokens``, ``labels/<name>``), and one file per site, such as
``blocks.3.hook_resid_post.safetensors`` (``rows``). A shard is there whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Integer, Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from probes.rows.aligned_rows import AlignedRows, Columns
from probes.store.files import (
    DamagedError,
    check_safetensors,
    dump_tensors,
    file_name,
    read_json,
    sync_folder,
    temporary_of,
    write_errors,
    write_json,
)
from tasks import InputError

ROWS_FORMAT = "mechclust-rows-3"
_SHARD_PREFIX = "shard-"
_INDEX_FILE = "index.safetensors"
_HEADER_FIELDS = ("format", "model", "sites", "readout", "labels", "dtype", "hooks")


class RowStore(AlignedRows):
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
        header = read_header(self.folder)
        if header is None:
            raise InputError(f"no row store in {str(folder)!r}; write one with save_rows")
        if "examples" not in header:
            raise InputError(
                f"the row store in {str(folder)!r} is unfinished; call save_rows with the same arguments to finish it"
            )
        self.readout: str = header["readout"]
        self.model: str = header["model"]
        self.tokenization: dict[str, Any] | None = header.get("tokenization")
        self.dtype: torch.dtype | None = header["dtype"] and getattr(torch, header["dtype"])
        self.hook_dict: dict[str, None] = dict.fromkeys(header["hooks"])  # selectors resolve against these
        self._shards = store_shards(self.folder)
        self._checksums = [_read_marker(shard).checksums for shard in self._shards]
        self._checked: set[Path] = set()  # shared with the stores that select() returns
        parts = [read_index(path) for path in self._shards]
        counts = [len(part["index"]) for part in parts]
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

    def blocks(self) -> Iterator[Integer[Tensor, "block"]]:
        """Yield the examples of one shard after another."""
        for _, in_shard in self._by_shard(self._places):
            yield self.index[in_shard]

    def _by_shard(self, places: Int64[Tensor, "some"]) -> Iterator[tuple[int, Bool[Tensor, "some"]]]:
        """Yield the number of each shard that has rows at these places, and at which of the places."""
        shard = torch.searchsorted(self._ends, places, right=True)
        for number in torch.unique(shard).tolist():
            yield number, shard == number

    def _read(
        self, sites: Sequence[str], places: Int64[Tensor, "some"], index: Integer[Tensor, "some"]
    ) -> dict[str, Float[Tensor, "some _"]]:
        return {site: self._rows(site, places) for site in sites}

    def _rows(self, site: str, places: Int64[Tensor, "some"]) -> Float[Tensor, "some d"]:
        rows = None
        for number, in_shard in self._by_shard(places):
            start = int(self._ends[number - 1]) if number else 0
            part = self._rows_of_shard(number, site)[places[in_shard] - start]
            if len(part) == len(places):
                return part
            if rows is None:
                rows = part.new_empty(len(places), part.shape[1])
            rows[in_shard] = part
        return self._rows_of_shard(0, site)[:0] if rows is None else rows

    def _rows_of_shard(self, number: int, site: str) -> Float[Tensor, "row d"]:
        """Return a site's rows in a shard, mapped into memory: not yet read from the disk."""
        path = self._shards[number] / _site_file(site)
        if path not in self._checked:
            _check(path, self._checksums[number])
            self._checked.add(path)
        return _open(path)["rows"]


# ---- one shard ----


def store_shards(folder: Path) -> list[Path]:
    """Return the shards of a store, in the order in which they were written."""
    return sorted(path for path in folder.glob(f"{_SHARD_PREFIX}*") if path.is_dir())


def next_shard(folder: Path) -> Path:
    """Return the path of the next shard."""
    last = max((int(path.name.removeprefix(_SHARD_PREFIX)) for path in store_shards(folder)), default=-1)
    return folder / f"{_SHARD_PREFIX}{last + 1:05d}"


def write_shard(shard: Path, columns: Columns, rows: Iterator[tuple[str, Float[Tensor, "example d"]]]) -> None:
    """Write a shard, whole or not at all.

    Args:
        shard: its folder, not there yet.
        columns: the examples' ``index``, ``tokens`` and ``labels/<name>``.
        rows: by site, taken one after another.

    Raises:
        InputError: if it cannot be written. Its cause is the ``OSError``.
    """
    publish_shard(prepare_shard(shard, columns, rows), shard)


def prepare_shard(shard: Path, columns: Columns, rows: Iterator[tuple[str, Float[Tensor, "example d"]]]) -> Path:
    """Write a shard into a temporary folder next to its final one, and return it, see ``write_shard``."""
    temporary = temporary_of(shard)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with write_errors(shard):
            temporary.mkdir()
            checksums = {_site_file(site): _write(temporary / _site_file(site), {"rows": x}) for site, x in rows}
            checksums[_INDEX_FILE] = _write(temporary / _INDEX_FILE, columns)
            write_json(temporary / "shard.json", {"examples": len(columns["index"]), "files": checksums})
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return temporary


def publish_shard(temporary: Path, shard: Path) -> None:
    """Give a prepared shard its own name."""
    try:
        with write_errors(shard):
            os.replace(temporary, shard)
            sync_folder(shard.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_index(shard: Path) -> dict[str, Integer[Tensor, "example"]]:
    """Return ``index``, ``tokens`` and ``labels/<name>`` of a shard, whose rows are not read."""
    _check(shard / _INDEX_FILE, _read_marker(shard).checksums)
    return _open(shard / _INDEX_FILE)


def check_shards(shard: Path) -> None:
    """Refuse a shard of which a file is missing, cut short or of other numbers. Only the start of each file is read.

    Raises:
        InputError: naming the file.
    """
    marker = _read_marker(shard)
    for name in marker.checksums:
        _check_size(shard / name, marker.examples)


def _check_size(path: Path, examples: int) -> None:
    try:
        is_empty = path.stat().st_size == 0
        with safe_open(str(path), framework="pt") as file:  # compares the size with the one in its header
            is_whole = all(file.get_slice(name).get_shape()[0] == examples for name in file.keys())  # noqa: SIM118
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror or error})") from None
    except SafetensorError:
        is_whole = False
    if is_empty or not is_whole:
        raise _damaged(path, "is damaged (its size or header does not match)")


def _write(path: Path, tensors: Mapping[str, Shaped[Tensor, "example ..."]]) -> str:
    """Write a file of a shard, whose folder is renamed as a whole. Return its checksum."""
    with open(path, "wb") as file:
        checksum = dump_tensors(file, tensors, {"format": ROWS_FORMAT})
        file.flush()
        os.fsync(file.fileno())
    return checksum


def _site_file(site: str) -> str:
    return f"{'%69ndex' if site == 'index' else file_name(site)}.safetensors"


class _Marker(NamedTuple):
    """The content of ``shard.json``.

    Attributes:
        examples: number of examples of the shard.
        checksums: by name, of the shard's files.
    """

    examples: int
    checksums: dict[str, str]


def _read_marker(shard: Path) -> _Marker:
    path = shard / "shard.json"
    try:
        content = read_json(path)
        return _Marker(int(content["examples"]), dict(content["files"]))
    except (InputError, ValueError, KeyError, TypeError):
        raise _damaged(path, "is missing or damaged") from None


def _check(path: Path, checksums: Mapping[str, str]) -> None:
    """Refuse a file that is missing, damaged, or belongs to another shard."""
    try:
        is_same = check_safetensors(path).get("checksum") == checksums.get(path.name)
    except DamagedError:
        is_same = False
    except InputError:
        problem = "is damaged (it is not a safetensors file)" if path.exists() else "is missing"
        raise _damaged(path, problem) from None
    if not is_same:
        raise _damaged(path, "is damaged (its checksum does not match)")


def _open(path: Path) -> dict[str, Shaped[Tensor, "example ..."]]:
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    except (SafetensorError, OSError) as error:
        raise _damaged(path, f"cannot be read ({error})") from None


def _damaged(path: Path, problem: str) -> InputError:
    return InputError(
        f"{str(path)!r} {problem}; delete the folder {str(path.parent)!r} and call save_rows with the same arguments "
        "to measure its examples again"
    )


# ---- the store's header ----


def write_header(folder: Path, header: Mapping[str, Any]) -> None:
    """Write whose rows the folder holds. With ``"examples"``, the store is finished."""
    write_json(folder / "rows.json", header)


def read_header(folder: Path) -> dict[str, Any] | None:
    """Return the header from ``write_header``, or ``None`` if there is none.

    Raises:
        InputError: for another file, or the header of another version.
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
        raise InputError(
            f"{str(folder)!r} was written by another version ({version}); save the rows again, in a new folder"
        )
    if version != ROWS_FORMAT or not set(_HEADER_FIELDS) <= set(header):
        raise InputError(
            f"{str(path)!r} is damaged or not the header of a row store; expected a folder from save_rows: save the "
            "rows again, in a new folder"
        )
    return header
