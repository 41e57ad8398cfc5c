"""Shards of rows on disk.

A shard is a folder: ``shard.json`` with the checksum of each file beside it, ``index.safetensors`` (``index``,
``tokens``, ``labels/<name>``, and ``positions/<name>`` if the readout takes a position from the batch), and one file
per site, such as ``blocks.3.hook_resid_post.safetensors`` (``rows``). A shard is there whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from jaxtyping import Float, Integer, Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from probes.engine.state import RowsState
from probes.rows.row_source import Columns
from probes.store.file_names import file_name
from probes.store.files import DamagedError, read_json, sync_folder, write_errors, write_json
from probes.store.safetensors_files import check_safetensors, dump_tensors
from probes.store.temporary_files import temporary_file_of
from tasks import InputError

ROWS_FORMAT = "mechclust-rows-3"
_SHARD_PREFIX = "shard-"
_INDEX_FILE = "index.safetensors"


class StoredRowsError(InputError):
    """The rows in a folder are damaged, or others than those that are to be saved there."""


def store_shards(folder: Path) -> list[Shard]:
    """Return the shards of a store, in the order in which they were written."""
    return [Shard(path) for path in sorted(folder.glob(f"{_SHARD_PREFIX}*")) if path.is_dir()]


def next_shard(folder: Path) -> Path:
    """Return the path of the next shard."""
    last = max((int(shard.folder.name.removeprefix(_SHARD_PREFIX)) for shard in store_shards(folder)), default=-1)
    return folder / f"{_SHARD_PREFIX}{last + 1:05d}"


def shard_content(
    rows: RowsState,
) -> tuple[dict[str, Integer[Tensor, "example"]], Iterator[tuple[str, Float[Tensor, "example d"]]]]:
    """Return the arguments of ``write_shard``. A site's rows are released once they are taken."""
    index, tokens = rows.get("tokens")
    columns = {"index": index, "tokens": tokens}
    columns |= {key: rows.get(key)[1] for key in rows if key.startswith(("labels/", "positions/"))}
    sites = [key.removeprefix("rows/") for key in rows if key.startswith("rows/")]
    return columns, ((site, rows.pop(f"rows/{site}")[1]) for site in sites)


def write_shard(shard: Path, columns: Columns, rows: Iterator[tuple[str, Float[Tensor, "example d"]]]) -> None:
    """Write a shard, whole or not at all.

    Args:
        shard: its folder, not there yet.
        columns: the examples' ``index``, ``tokens``, ``labels/<name>`` and ``positions/<name>``.
        rows: by site, taken one after another.

    Raises:
        InputError: if it cannot be written. Its cause is the ``OSError``.
    """
    publish_shard(prepare_shard(shard, columns, rows), shard)


def prepare_shard(shard: Path, columns: Columns, rows: Iterator[tuple[str, Float[Tensor, "example d"]]]) -> Path:
    """Write a shard into a temporary folder next to its final one, and return it, see ``write_shard``."""
    temporary = temporary_file_of(shard)
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


class Shard:
    """A shard on disk, whose files are mapped into memory when they are read.

    At the first use of a file its checksum is compared, which reads it once. Every method raises ``InputError`` for a
    file that is missing, damaged or of another shard, with its name.

    Args:
        folder: its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._compared: set[str] = set()  # files whose checksums were compared

    def columns(self) -> dict[str, Integer[Tensor, "example"]]:
        """Return ``index``, ``tokens``, ``labels/<name>`` and ``positions/<name>``. No rows are read."""
        return self._read(_INDEX_FILE)

    def rows(self, site: str) -> Float[Tensor, "row d"]:
        """Return a site's rows, not yet read from the disk."""
        return self._read(_site_file(site))["rows"]

    def check_sizes(self) -> None:
        """Refuse a file that is missing, cut short or of other numbers. Only the start of each file is read."""
        examples, checksums = self._marker
        for name in checksums:
            _check_size(self.folder / name, examples)

    @cached_property
    def _marker(self) -> tuple[int, dict[str, str]]:
        """The number of examples, and the checksums of the other files by name, from ``shard.json``."""
        path = self.folder / "shard.json"
        try:
            content = read_json(path)
            return int(content["examples"]), dict(content["files"])
        except (InputError, ValueError, KeyError, TypeError):
            raise _damaged(path, "is missing or damaged") from None

    def _read(self, name: str) -> dict[str, Shaped[Tensor, "example ..."]]:
        path = self.folder / name
        _, checksums = self._marker
        if name not in self._compared:
            _check_checksum(path, checksums.get(name))
            self._compared.add(name)
        return _open(path)


def _check_size(path: Path, examples: int) -> None:
    try:
        path.stat()  # its error says why the file cannot be read
        with safe_open(str(path), framework="pt") as file:  # compares the size with the one in its header
            is_whole = all(file.get_slice(name).get_shape()[0] == examples for name in file.keys())  # noqa: SIM118
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror or error})") from None
    except SafetensorError:
        is_whole = False
    if not is_whole:
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


def _check_checksum(path: Path, checksum: str | None) -> None:
    """Refuse a file that is missing, damaged, or belongs to another shard."""
    try:
        is_same = check_safetensors(path).get("checksum") == checksum
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


def _damaged(path: Path, problem: str) -> StoredRowsError:
    return StoredRowsError(
        f"{str(path)!r} {problem}; delete the folder {str(path.parent)!r} and call save_rows with the same arguments "
        "to measure its examples again"
    )
