"""Write a model's rows to disk, for models that cannot be in memory together."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from probes.engine.batch_items import count_batch_examples
from probes.engine.batches import Batches, each_batch
from probes.engine.hooked_model import HookedModel
from probes.engine.readout import Readout, last_token
from probes.engine.run import run_by_steps
from probes.engine.sites import Sites, residual
from probes.engine.state import RowsState
from probes.engine.text_tokenizer import TextTokenizer
from probes.rows.kept_rows import KeptRows
from probes.rows.row_store import RowStore, write_store_header
from probes.rows.shards import next_shard, shard_content, write_shard
from probes.rows.stored_examples import StoredExamples
from probes.store.locks import locked_folder
from probes.store.temporary_files import remove_leftovers
from tasks import Batch, InputError
from tasks.settings import check_count
from tasks.text.bos_token import Bos

_SHARD_TIME_S = 30.0  # a shard is written after this time, however few examples it has


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
    bos: Bos = "model",
    tokens_per_batch: int = 4096,
    progress: bool = False,
) -> RowStore:
    """Measure a model as ``run`` does, and keep every example's rows in ``folder``.

    Rows are written in shards, each whole or not at all, one file per site. A shard is written every ``shard_rows``
    examples, and 30 seconds after the last one. After an interruption, repeat the call to resume. Stored examples are
    not run again. Ctrl-C and a failing forward pass or iterator lose no measured batch. An ``InputError``, after which
    the input will change, loses the batches since the last shard. ``kill -9`` loses about 30 seconds of work besides
    the shard that is being written.

    A finished store is refused if files are missing or have the wrong size. A folder is refused if it has rows of a
    different model (any differing weight), different sites, readout or dtype, or different tokens, labels or positions
    (of ``token_at``) under the same index, or if another process is writing to it.

    A shard is written while the next one is measured. Memory: two shards, ``shard_rows x sites x d`` each. Disk: every
    example's rows, in ``dtype``. If the number of examples is known beforehand (anything with a length), too little
    free space is refused before work starts.

    Args:
        model: anything with TransformerLens's hook protocol.
        batches: as ``run`` takes them, with a different index for every example, unchanged in the next call.
        folder: a new or an unfinished store.
        at: where to measure.
        readout: which position.
        labels: labels to keep with the rows, one value per example each.
        dtype: the dtype to keep rows in, such as ``torch.bfloat16``. By default the activations' dtype.
        shard_rows: examples per shard, if they take less than 30 seconds.
        tokenizer: for texts, as in ``run``.
        bos: for texts, as in ``run``.
        tokens_per_batch: as in ``run``.
        progress: show a progress bar.

    Raises:
        InputError: for the folders above, for input that ``run`` refuses, for values that ``dtype`` cannot hold, and if
            a file cannot be written (whole shards are kept).

    Example:
        >>> # a = save_rows(tuned, batches, "rows/tuned", labels=["task"])
        >>> # b = save_rows(base, batches, "rows/base", labels=["task"])
        >>> # run_stores({"tuned": a, "base": b}, CKA(label="task"))
    """
    check_count(shard_rows=(shard_rows, 1))
    probe = KeptRows(at, readout, labels, dtype)
    folder = Path(folder)
    header = probe.header(model)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; give a new folder")
    with locked_folder(folder, way="give a new folder"):
        remove_leftovers(folder)
        stored = StoredExamples.from_folder(folder, header)
        if not len(stored):
            write_store_header(folder, header)
        known = count_batch_examples(batches)
        if known is not None:
            probe.check_expected_space(folder, known - len(stored), model)
        reading = TextTokenizer({"": model}, tokenizer, bos)
        title = "saving rows" if progress else None
        source = each_batch(batches, {"": model}, reading=reading, tokens_per_batch=tokens_per_batch, progress=title)
        _write_shards(model, source, probe, header, stored, known, shard_rows)
        with _writing(stored):
            stored.finish(header, reading.tokenization)
        return RowStore(folder)


def _write_shards(
    model: HookedModel,
    batches: Iterable[Batch],
    probe: KeptRows,
    header: Mapping[str, Any],
    stored: StoredExamples,
    known: int | None,
    shard_rows: int,
) -> None:
    """Measure the examples that are not stored yet, and write them.

    Args:
        model: model to be measured.
        batches: all examples.
        probe: keeps the rows of each.
        header: header of the store.
        stored: the examples that the store has already.
        known: the number of all examples, if it is known.
        shard_rows: examples per shard, if they take less than 30 seconds.
    """
    waiting = 0
    size_checked = False
    with _Writer(header, stored, probe) as writer, run_by_steps(model, [probe]) as step:
        for batch in batches:
            new = stored.new(batch)
            if not len(new):
                continue
            step(new)
            waiting += len(new)
            if known is not None and not size_checked:
                probe.check_space(stored.folder, known - len(stored))
                size_checked = True
            if waiting >= shard_rows or writer.is_due():
                writer.write()
                waiting = 0
        if waiting:
            writer.write()


class _Writer:
    """Writer of one shard while the next one is measured. After an exception it writes the remaining rows."""

    def __init__(self, header: Mapping[str, Any], stored: StoredExamples, probe: KeptRows) -> None:
        self._header = header
        self._stored = stored
        self._probe = probe
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mechclust-rows")
        self._pending: Future[None] | None = None
        self._last: RowsState | None = None  # the rows that the pool's thread was given last
        self._failed = False
        self._since = time.monotonic()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._wait()
            elif not issubclass(kind, InputError):  # after an InputError, changed input must not be mixed with this
                self._pool.submit(self._write, self._probe.rows)
        finally:
            self._pool.shutdown(wait=True)  # the current write is finished, also after an exception

    def is_due(self) -> bool:
        """Return whether a shard is due, however few examples it has."""
        return time.monotonic() - self._since >= _SHARD_TIME_S

    def write(self) -> None:
        """Take all rows of the probe, and empty it. Raises the error of the shard before."""
        self._wait()
        self._pending = self._pool.submit(self._write, self._probe.rows)
        self._probe.reset()
        self._since = time.monotonic()

    def _wait(self) -> None:
        pending = self._pending
        self._pending = None
        if pending is not None:
            pending.result()

    def _write(self, rows: RowsState) -> None:
        """Write rows, in a thread that Ctrl-C does not reach. Rows that are handed over twice are written once."""
        if rows is self._last or self._failed or not _drop_unfinished(rows):
            return
        self._last = rows
        self._failed = True
        self._write_shard(rows)
        self._failed = False

    def _write_shard(self, rows: RowsState) -> None:
        columns, sites = shard_content(rows)
        with _writing(self._stored):
            if not self._stored.written:
                write_store_header(self._stored.folder, self._header)  # unfinished again, if it was complete
            write_shard(next_shard(self._stored.folder), columns, sites)
        self._stored.written += len(columns["index"])


def _drop_unfinished(rows: RowsState) -> int:
    """Forget a batch that was not kept whole: its tokens come last. Return how many batches are left."""
    whole = len(rows.chunks("tokens")) if "tokens" in rows else 0
    for key in rows:
        del rows.chunks(key)[whole:]
    return whole


@contextmanager
def _writing(stored: StoredExamples) -> Iterator[None]:
    """Turn an error of the disk into a sentence that says which rows are kept."""
    try:
        yield
    except InputError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError):
            raise
        way_out = "free space there" if cause.errno in (errno.ENOSPC, errno.EDQUOT) else "make the folder writable"
        raise InputError(
            f"the rows could not be written to {str(stored.folder)!r} ({cause.strerror or cause}); the "
            f"{len(stored) + stored.written} examples already written are kept: {way_out}, and call save_rows with "
            "the same arguments to continue"
        ) from cause
