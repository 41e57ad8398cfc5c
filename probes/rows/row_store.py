"""The format of rows on disk, and what reads it.

A file ``rows.json`` (whose rows they are), and one folder per shard: ``shard.json`` with the checksum of each file
beside it, ``index.safetensors`` (``index``, ``tokens``, ``labels/<name>``), and one file per site, such as
``blocks.3.hook_resid_post.safetensors`` (``rows``). A shard is there whole or not at all.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

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
from tasks.errors import suggest

ROWS_FORMAT = "mechclust-rows-3"
_SHARD = "shard-"
_INDEX = "index.safetensors"
_HEADER = ("format", "model", "sites", "readout", "labels", "dtype", "hooks")


class RowStore:
    """Rows that ``save_rows`` wrote. ``run_stores`` measures them.

    A site's rows lie in files of their own, mapped into memory: what is not asked for is not read. The first time a
    file is read its checksum is compared, which costs reading it once.

    Args:
        folder: of a finished store.

    Attributes:
        index: ``[n]`` the examples, ascending.
        tokens: ``[n]`` a digest of each example's tokens.
        sites: hook names, in order.
        readout: the readout's ``repr``.
        labels: names of the labels kept.
        model: identifies the model.
        dtype: the dtype in which the rows are kept, if ``save_rows`` was given one; ``None`` for the model's own.
        source: its name in error messages, the folder.

    Raises:
        InputError: for a folder without a finished store, or a damaged one. A damaged file of a site is refused when
            that site is read.

    Example:
        >>> # store = RowStore("rows/base")
        >>> # store.take(store.index[:100], ["rows/hook_embed", "labels/task"])
    """

    label_way = "save the rows again with it: save_rows(..., labels=[%r])"

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.source = Path(folder), str(folder)
        header = read_header(self.folder)
        if header is None:
            raise InputError(f"no row store in {str(folder)!r}; write one with save_rows")
        if "examples" not in header:
            raise InputError(
                f"the row store in {str(folder)!r} is unfinished; call save_rows with the same arguments to finish it"
            )
        self.sites: list[str] = [name for name, _ in header["sites"]]
        self.readout: str = header["readout"]
        self.labels: list[str] = header["labels"]
        self.model: str = header["model"]
        self.tokenization: dict[str, Any] | None = header.get("tokenization")
        self.dtype: torch.dtype | None = header["dtype"] and getattr(torch, header["dtype"])
        self.hook_dict: dict[str, None] = dict.fromkeys(header["hooks"])  # what selectors resolve against
        self._shards = shards(self.folder)
        self._sums = [sums for _, sums in map(_read_marker, self._shards)]
        self._checked: set[Path] = set()  # shared with what select() gives
        parts = [read_index(path) for path in self._shards]
        if (found := sum(len(part["index"]) for part in parts)) != header["examples"]:
            raise InputError(
                f"{str(folder)!r} holds {found} of {header['examples']} examples, so a shard is missing; call "
                "save_rows with the same arguments to measure those examples again"
            )
        joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        shard = torch.cat([torch.full_like(part["index"], k) for k, part in enumerate(parts)])
        row = torch.cat([torch.arange(len(part["index"])) for part in parts])
        self.index, order = torch.sort(joined["index"])
        self.tokens = joined["tokens"][order]
        self._labels = {name: joined[f"labels/{name}"][order] for name in self.labels}
        self._shard, self._row = shard[order], row[order]

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"RowStore({self.source!r}, {len(self)} examples at {len(self.sites)} sites)"

    def blocks(self) -> Iterator[Tensor]:
        """The examples of one shard after another."""
        for k in torch.unique(self._shard).tolist():
            yield self.index[self._shard == k]

    def select(self, index: Tensor) -> RowStore:
        """The same store with these examples only. Nothing is read or copied."""
        keep, some = torch.isin(self.index, index), copy.copy(self)
        some.index, some.tokens = self.index[keep], self.tokens[keep]
        some._shard, some._row = self._shard[keep], self._row[keep]
        some._labels = {name: values[keep] for name, values in self._labels.items()}
        return some

    def take(self, index: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """``"rows/<site>"`` and ``"labels/<name>"`` of these examples, in their order. Reads these sites' rows only.

        Raises:
            InputError: for a site, a label or an example that is not there, and a missing or damaged file.
        """
        places = places_of(index, self.index, self.source)
        check_row_names(names, self.sites, self.labels, self.source)
        found = {name: self._labels[label][places] for name, label in _of("labels/", names)}
        shard, row = self._shard[places], self._row[places]
        wanted = torch.unique(shard).tolist() if len(places) else [0]
        for name, site in _of("rows/", names):
            for k in wanted:
                here = shard == k
                rows = self._rows(k, site)[row[here]]
                if len(wanted) > 1:
                    found.setdefault(name, rows.new_empty(len(index), *rows.shape[1:]))[here] = rows
                else:
                    found[name] = rows
        return {name: found[name] for name in names}

    def _rows(self, k: int, site: str) -> Tensor:
        """A site's rows in a shard, not yet read from the disk."""
        path = self._shards[k] / _site_file(site)
        if path not in self._checked:
            _check(path, self._sums[k])
            self._checked.add(path)
        return _open(path)["rows"]


def places_of(index: Tensor, among: Tensor, source: str) -> Tensor:
    """Where each example stands ``among`` those there are, which ascend.

    Raises:
        InputError: naming one that is not there.
    """
    places = torch.searchsorted(among, index)
    lacking = places == len(among)
    if len(among):
        lacking |= among[places.clamp(max=len(among) - 1)] != index
    if bool(lacking.any()):
        raise InputError(
            f"{source!r} has no rows of example index {int(index[lacking][0])} ({int(lacking.sum())} such); choose "
            "from its index"
        )
    return places


def check_row_names(names: Sequence[str], sites: Sequence[str], labels: Sequence[str], source: str) -> None:
    """Refuse names of rows and labels that are not there.

    Raises:
        InputError: naming the nearest.
    """
    for name in names:
        kind, _, what = name.partition("/")
        if kind == "rows" and what not in sites:
            raise InputError(f"{source!r} has no rows of {what!r}{suggest(what, sites)}")
        if kind == "labels" and what not in labels:
            raise InputError(f"{source!r} has no label {what!r}{suggest(what, labels or ['no labels'])}")
        if kind not in ("rows", "labels"):
            raise InputError(f"{name!r} is not a name in {source!r}; expected 'rows/<site>' or 'labels/<name>'")


def _of(kind: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((name, name.removeprefix(kind)) for name in names if name.startswith(kind))


# ---- one shard ----


def shards(folder: Path) -> list[Path]:
    """The shards of a store, in the order in which they were written."""
    return sorted(path for path in folder.glob(f"{_SHARD}*") if path.is_dir())


def next_shard(folder: Path) -> Path:
    """A place for one more."""
    last = max((int(path.name.removeprefix(_SHARD)) for path in shards(folder)), default=-1)
    return folder / f"{_SHARD}{last + 1:05d}"


def write_shard(shard: Path, index: Mapping[str, Tensor], rows: Iterator[tuple[str, Tensor]]) -> None:
    """A shard, whole or not at all.

    Args:
        shard: its folder, not there yet.
        index: ``index``, ``tokens`` and ``labels/<name>``, ``[n]`` each.
        rows: by site, ``[n d]`` each; taken one after another.

    Raises:
        InputError: where it cannot be written; its cause is the ``OSError``.
    """
    publish_shard(prepare_shard(shard, index, rows), shard)


def prepare_shard(shard: Path, index: Mapping[str, Tensor], rows: Iterator[tuple[str, Tensor]]) -> Path:
    """A shard in a temporary folder beside its own, see ``write_shard``."""
    temporary = temporary_of(shard)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with write_errors(shard):
            temporary.mkdir()
            sums = {_site_file(site): _write(temporary / _site_file(site), {"rows": x}) for site, x in rows}
            sums[_INDEX] = _write(temporary / _INDEX, index)
            write_json(temporary / "shard.json", {"examples": len(index["index"]), "files": sums})
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return temporary


def publish_shard(temporary: Path, shard: Path) -> None:
    """Give a shard that is ready its name."""
    try:
        with write_errors(shard):
            os.replace(temporary, shard)
            sync_folder(shard.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_index(shard: Path) -> dict[str, Tensor]:
    """``index``, ``tokens`` and ``labels/<name>`` of a shard, whose rows are not read."""
    _, sums = _read_marker(shard)
    _check(shard / _INDEX, sums)
    return _open(shard / _INDEX)


def check_shards(shard: Path) -> None:
    """Refuse a shard of which a file is missing, cut short or of other numbers. Only how each begins is read.

    Raises:
        InputError: naming the file.
    """
    examples, sums = _read_marker(shard)
    for path in (shard / name for name in sums):
        try:
            size = path.stat().st_size
            with safe_open(str(path), framework="pt") as file:  # compares the size with what its header says
                whole = size > 0 and all(file.get_slice(name).get_shape()[0] == examples for name in file.keys())  # noqa: SIM118
        except OSError as error:
            raise _damaged(path, f"cannot be read ({error.strerror or error})") from None
        except SafetensorError:
            whole = False
        if not whole:
            raise _damaged(path, "is damaged (its size or header does not match)")


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """A file of a shard, which is renamed as a whole; its checksum."""
    with open(path, "wb") as file:
        found = dump_tensors(file, tensors, {"format": ROWS_FORMAT})
        file.flush()
        os.fsync(file.fileno())
    return found


def _site_file(site: str) -> str:
    return f"{'%69ndex' if site == 'index' else file_name(site)}.safetensors"


def _read_marker(shard: Path) -> tuple[int, dict[str, str]]:
    path = shard / "shard.json"
    try:
        marker = read_json(path)
        return int(marker["examples"]), dict(marker["files"])
    except (InputError, ValueError, KeyError, TypeError):
        raise _damaged(path, "is missing or damaged") from None


def _check(path: Path, sums: Mapping[str, str]) -> None:
    try:
        same = check_safetensors(path).get("checksum") == sums.get(path.name)
    except DamagedError:
        same = False
    except InputError:
        what = "is damaged (it is not a safetensors file)" if path.exists() else "is missing"
        raise _damaged(path, what) from None
    if not same:
        raise _damaged(path, "is damaged (its checksum does not match)")


def _open(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    except (SafetensorError, OSError) as error:
        raise _damaged(path, f"cannot be read ({error})") from None


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"{str(path)!r} {what}; delete the folder {str(path.parent)!r} and call save_rows with the same arguments "
        "to measure its examples again"
    )


# ---- the store's header ----


def write_header(folder: Path, header: Mapping[str, Any]) -> None:
    """Whose rows the folder holds; with ``"examples"``, that they are all there."""
    write_json(folder / "rows.json", header)


def read_header(folder: Path) -> dict[str, Any] | None:
    """What ``write_header`` wrote, or ``None``.

    Raises:
        InputError: for something else, or what another version wrote.
    """
    path = folder / "rows.json"
    if folder.is_file():
        raise InputError(f"{str(folder)!r} is a file; give the folder that save_rows wrote")
    if not path.exists():
        return None
    try:
        header: dict[str, Any] = read_json(path, handwritten=True)  # another version's may have no checksum
        kind = str(header.get("format"))
        header = read_json(path) if kind == ROWS_FORMAT else header
    except (InputError, AttributeError):
        kind = ""
    if kind.startswith("mechclust-rows-") and kind != ROWS_FORMAT:
        raise InputError(
            f"{str(folder)!r} was written by another version ({kind}); save the rows again, in a new folder"
        )
    if kind != ROWS_FORMAT or not set(_HEADER) <= set(header):
        raise InputError(
            f"{str(path)!r} is damaged or not the header of a row store; expected a folder from save_rows: save the "
            "rows again, in a new folder"
        )
    return header
