"""A model's rows written to disk, for models that cannot be in memory together."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probes.batches import Batches, each_batch
from probes.files import is_temporary, remove_leftovers
from probes.hooks import HookedModel
from probes.identity import fingerprint, token_digests
from probes.readout import Readout, last_token
from probes.row_store import (
    FORMAT,
    RowStore,
    check_files,
    next_shard,
    read_header,
    read_index,
    shards,
    write_header,
    write_shard,
)
from probes.rows import Gather
from probes.run import measuring
from probes.sites import Sites, residual, resolve
from probes.state import RowsState
from tasks import Batch, InputError
from tasks.errors import check_count

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SECONDS = 30.0  # after which a shard is written, however few examples it has


def save_rows(
    model: HookedModel,
    batches: Batches,
    folder: str | Path,
    *,
    at: Sites = residual(),
    readout: Readout = last_token(),
    labels: Sequence[str] = (),
    dtype: torch.dtype | None = None,
    shard_rows: int = 4096,
    tokenizer: Any = None,
    tokens_per_batch: int = 4096,
    progress: bool = False,
) -> RowStore:
    """Measure a model as ``run`` does, and keep every example's rows in ``folder``.

    Written in shards, each whole or not at all, one file a site: every ``shard_rows`` examples, and whenever 30 seconds
    have passed since the last one. After an interruption the same call goes on where it stopped; examples that are
    there are not run again. Ctrl-C and a failing forward pass or iterator cost no batch that was measured (an
    ``InputError``, after which something else will be given, those since the last shard); ``kill -9`` costs about 30
    seconds of work beside the shard that is being written. A finished store whose files are missing or of another size
    is refused. A folder with rows of another model (any other weight), other
    sites, another readout or dtype, or other tokens or labels under the same index is refused.

    A shard is written while the next one is measured. Memory: two shards, ``shard_rows x sites x d`` each. Disk: every
    example's rows, in ``dtype``; where the number of examples is known beforehand (anything with a length), too little
    free space is refused before work starts.

    Args:
        model: anything with TransformerLens's hook protocol.
        batches: as ``run`` takes them; every example with an index of its own, the same in the next call.
        folder: a new or an unfinished store.
        at: where to measure.
        readout: which position.
        labels: labels to keep beside the rows, one value per example each.
        dtype: in which rows are kept, ``torch.bfloat16`` say; that of the model's activations by default.
        shard_rows: examples a shard, where they take less than 30 seconds.
        tokenizer: for texts, as in ``run``.
        tokens_per_batch: as in ``run``.
        progress: show a progress bar.

    Raises:
        InputError: see above, where ``run`` raises it, for values that ``dtype`` cannot hold, and where a file cannot
            be written (whole shards are kept).

    Example:
        >>> # a = save_rows(tuned, batches, "rows/tuned", labels=["task"])
        >>> # b = save_rows(base, batches, "rows/base", labels=["task"])
        >>> # run_stores({"tuned": a, "base": b}, CKA(label="task"))
    """
    if isinstance(labels, str):
        raise InputError(f"labels is the string {labels!r}; expected a sequence of label names such as ({labels!r},)")
    check_count(shard_rows=(shard_rows, 1))
    if dtype not in (None, *_DTYPES):
        raise InputError(f"dtype is {dtype!r}; expected {', '.join(map(str, _DTYPES))}, or None for the model's own")
    folder, labels = Path(folder), sorted(labels)
    probe = _Kept(at, readout, labels, dtype)
    header = {
        "format": FORMAT,
        "model": fingerprint(model),
        "sites": [list(site) for site in resolve(model, at)],
        "readout": repr(readout),
        "labels": labels,
        "dtype": dtype and str(dtype).removeprefix("torch."),
        "hooks": list(model.hook_dict),
    }
    stored = _Stored.of(folder, labels, _begun(folder, header))
    known = _count(batches)
    if known is not None and (numbers := _numbers(model, probe.bind(model))):
        size = (dtype or _dtype_of(model)).itemsize
        _check_space(folder, known - len(stored), len(probe.sites), numbers, numbers * size, dtype)
    source = each_batch(
        batches,
        {"": model},
        tokenizer=tokenizer,
        tokens_per_batch=tokens_per_batch,
        progress="saving rows" if progress else None,
    )
    waiting, first = 0, True
    with _Writer(folder, header, stored, probe) as writer, measuring(model, [probe]) as step:
        for batch in source:
            new = stored.new(batch)
            if not len(new):
                continue
            step(batch if len(new) == len(batch) else batch.select(new.to(batch.index.device)))
            waiting += len(new)
            if first and known is not None:
                numbers, size = probe.size()
                _check_space(folder, known - len(stored), len(probe.sites), numbers, size, dtype)
            first = False
            if waiting >= shard_rows or writer.is_due():
                writer.write()
                waiting = 0
        if waiting:
            writer.write()
    stored.check_all_given()
    with _writing(folder, stored):
        write_header(folder, {**header, "examples": stored.given})
    return RowStore(folder)


class _Kept(Gather):
    """Rows in the dtype in which they are kept."""

    def __init__(self, at: Sites, readout: Readout, labels: Sequence[str], dtype: torch.dtype | None) -> None:
        super().__init__(at, readout, labels)
        self.dtype = dtype

    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        if self.dtype is not None:
            activations = {site: self._converted(site, x, batch) for site, x in activations.items()}
        super().update(activations, batch)

    def _converted(self, site: str, x: Tensor, batch: Batch) -> Tensor:
        found = x.to(self.dtype)
        if found.dtype != x.dtype and found.element_size() <= x.element_size():
            over = ~torch.isfinite(found).flatten(1).all(dim=1)
            if bool(over.any()):
                largest = float(x[over][0].abs().max())
                other = "bfloat16 or float32" if self.dtype == torch.float16 else "the model's own dtype (dtype=None)"
                raise InputError(
                    f"{self.dtype} cannot hold the activations at {site!r} for example index "
                    f"{int(batch.index.to(over.device)[over][0])} (up to {largest:.3g}, and its largest number is "
                    f"{torch.finfo(found.dtype).max:.3g}); keep them in {other}"
                )
        return found

    def size(self) -> tuple[int, int]:
        """Numbers and bytes of one example at all sites."""
        rows = [self.rows.get(f"rows/{site}")[1][0] for site in self.site_names]
        return sum(x.numel() for x in rows), sum(x.numel() * x.element_size() for x in rows)


@dataclass
class _Stored:
    """What the folder holds, and what was given so far: whether they are the same examples."""

    folder: Path
    labels: Sequence[str]
    known: dict[str, Tensor]  # by index, ascending
    seen: set[int] = field(default_factory=set)
    written: int = 0

    @classmethod
    def of(cls, folder: Path, labels: Sequence[str], found: Sequence[Path]) -> _Stored:
        """What these shards hold, of which every file must be there."""
        parts = [read_index(path) for path in found]
        for path in found:
            check_files(path)
        if not parts:
            return cls(folder, labels, {"index": torch.zeros(0, dtype=torch.int64)})
        joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        order = torch.argsort(joined["index"])
        return cls(folder, labels, {key: values[order] for key, values in joined.items()})

    def __len__(self) -> int:
        return len(self.known["index"])

    @property
    def given(self) -> int:
        return len(self.seen)

    def new(self, batch: Batch) -> Tensor:
        """Which rows of a batch are not there yet.

        Raises:
            InputError: for an example given twice, and one that is there with other tokens or labels.
        """
        for i in batch.index.tolist():
            if i in self.seen:
                raise InputError(f"example index {i} was given twice; give every example an index of its own")
            self.seen.add(i)
        index, mine = batch.index.cpu(), self.known["index"]
        there = torch.isin(index, mine)
        if bool(there.any()):
            self._check_same(batch.select(there.to(batch.index.device)), torch.searchsorted(mine, index[there]))
        return (~there).nonzero()[:, 0]

    def _check_same(self, batch: Batch, places: Tensor) -> None:
        """Refuse examples with other tokens or labels than those kept at ``places``."""
        given = {"tokens": token_digests(batch)}
        given |= {f"labels/{name}": batch.label(name, per="example") for name in self.labels}
        for key, values in given.items():
            now, before = values.cpu(), self.known[key][places]
            if not len(other := (now != before).nonzero()):
                continue
            i, label = int(other[0, 0]), key.removeprefix("labels/")
            what, same = "other tokens than", "prompts"
            if key != "tokens":
                what, same = f"{now[i].item()} as its label {label!r}, and {before[i].item()}", "labels"
            raise InputError(
                f"example index {int(batch.index[i])} has {what} in {str(self.folder)!r}; give the same {same}, or a "
                "new folder"
            )

    def check_all_given(self) -> None:
        """Refuse a folder that holds more than was given, and nothing at all."""
        if not self.seen:
            raise InputError("there are no examples to measure; give at least one non-empty batch")
        if missing := sorted(set(self.known["index"].tolist()) - self.seen):
            raise InputError(
                f"{str(self.folder)!r} holds example index {missing[0]}, which is not in these batches "
                f"({len(missing)} such); give all the examples it was begun with, or a new folder"
            )


class _Writer:
    """Writes one shard while the next one is measured; on the way out also what is left after an exception."""

    def __init__(self, folder: Path, header: Mapping[str, Any], stored: _Stored, probe: _Kept) -> None:
        self._folder, self._header, self._stored, self._probe = folder, header, stored, probe
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mechclust-rows")
        self._pending: Future[None] | None = None
        self._last: RowsState | None = None  # handed over last, in the pool's thread
        self._failed = False
        self._since = time.monotonic()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._wait()
            elif not issubclass(kind, InputError):  # after which something else is given, that must not be mixed with
                self._pool.submit(self._write, self._probe.rows)
        finally:
            self._pool.shutdown(wait=True)  # what is being written is finished, also after an exception

    def is_due(self) -> bool:
        """Whether the last shard was some time ago."""
        return time.monotonic() - self._since >= _SECONDS

    def write(self) -> None:
        """Take all that the probe holds, and empty it; raises what befell the shard before."""
        self._wait()
        self._pending = self._pool.submit(self._write, self._probe.rows)
        self._probe.reset()
        self._since = time.monotonic()

    def _wait(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def _write(self, rows: RowsState) -> None:
        """In a thread of its own, which Ctrl-C does not reach: rows handed over twice are written once."""
        if rows is self._last or self._failed or not _drop_unfinished(rows):
            return
        self._last, self._failed = rows, True
        self._write_shard(rows)
        self._failed = False

    def _write_shard(self, rows: RowsState) -> None:
        index, tokens = rows.get("tokens")
        beside = {"index": index, "tokens": tokens}
        beside |= {key: rows.get(key)[1] for key in rows if key.startswith("labels/")}
        sites = [key.removeprefix("rows/") for key in rows if key.startswith("rows/")]
        with _writing(self._folder, self._stored):
            if not self._stored.written:
                write_header(self._folder, self._header)  # unfinished again, where it was complete
            write_shard(next_shard(self._folder), beside, ((site, rows.pop(f"rows/{site}")[1]) for site in sites))
        self._stored.written += len(index)


def _drop_unfinished(rows: RowsState) -> int:
    """Forgets a batch that was not kept whole, whose tokens come last; how many are left."""
    whole = len(rows.chunks("tokens")) if "tokens" in rows else 0
    for key in rows:
        del rows.chunks(key)[whole:]
    return whole


@contextmanager
def _writing(folder: Path, stored: _Stored) -> Iterator[None]:
    """An error of the disk, in a sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the rows could not be written to {str(folder)!r} ({error.strerror or error}); the "
            f"{len(stored) + stored.written} examples written before are kept: make room there, and call save_rows "
            "with the same arguments to go on"
        ) from error


def _begun(folder: Path, header: Mapping[str, Any]) -> list[Path]:
    """The shards of a store of these rows; begins one where there is none."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; give a new folder")
    if folder.exists():
        remove_leftovers(folder)
    old, found = read_header(folder), shards(folder)
    if old is None and folder.exists() and any(not is_temporary(path) for path in folder.iterdir()):
        raise InputError(f"{str(folder)!r} has files and is not a row store; give a new folder")
    if old is None or not found:  # nothing is kept yet, so nothing can be mixed
        try:
            write_header(folder, header)
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"nothing can be written to {str(folder)!r} ({why}); give another folder") from error
        return found
    words = {
        "sites": "other sites",
        "readout": "another readout",
        "labels": "other labels",
        "dtype": f"dtype {old.get('dtype') or 'of the model'}",
    }
    for key, value in header.items():
        if old.get(key) != value:
            raise InputError(
                f"{str(folder)!r} holds rows of {words.get(key, 'another model')}; "
                "give a new folder, or delete this one"
            )
    return found


# ---- what it will take ----


def _count(given: Any) -> int | None:
    """How many examples there are at least, where that can be told without drawing them."""
    if isinstance(given, (Batch, Tensor)):
        return len(given)
    if isinstance(given, Mapping):
        main = given["input_ids"] if "input_ids" in given else given.get("text", ())
        many = not isinstance(main, str) and len(main) > 0 and (isinstance(main[0], str) or np.ndim(main[0]) > 0)
        return len(main) if many else 1
    if isinstance(given, (list, tuple)):
        return sum(1 if isinstance(item, str) else _count(item) or 0 for item in given)
    return len(given) if hasattr(given, "__len__") else None


def _numbers(model: HookedModel, sites: Sequence[Any]) -> int | None:
    """Of one example at these sites, where the model's configuration tells."""
    width = getattr(getattr(model, "cfg", None), "d_model", None)
    known = all(name == "hook_embed" or ".hook_resid_" in name for name, _ in sites)
    return width * len(sites) if isinstance(width, int) and known else None


def _dtype_of(model: HookedModel) -> torch.dtype:
    """That of its activations, as far as can be told."""
    given = getattr(getattr(model, "cfg", None), "dtype", None)
    if isinstance(given, torch.dtype):
        return given
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _check_space(folder: Path, examples: int, sites: int, numbers: int, size: int, dtype: torch.dtype | None) -> None:
    """Refuse what the disk has no room for, before it is measured."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if examples * size > free:
        each = size // numbers
        smaller = "dtype=torch.bfloat16, " if each > 2 else ""
        raise InputError(
            f"the rows of {examples:,} examples take {_bytes(examples * size)} on disk ({sites} hook points, "
            f"{numbers:,} numbers of {each} bytes an example) and {str(folder)!r} has {_bytes(free)} free; give fewer "
            f"prompts or layers, {smaller}or another folder"
        )


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError  # pragma: no cover
