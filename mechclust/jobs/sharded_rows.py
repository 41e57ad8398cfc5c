"""Rows on disk, measured and written by many workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechclust.jobs.engine import Engine
from mechclust.jobs.mapping import each_result
from mechclust.jobs.outcome import first_of
from mechclust.jobs.progress import progress_bar
from mechclust.jobs.shards import Given, Load, Shard, check_sharded_inputs, count_shards, reading_of, shards_of
from probes.engine.hooks import HookedModel
from probes.engine.readout import Readout, last_token
from probes.engine.run import measuring
from probes.engine.sites import Sites, residual
from probes.rows.kept_rows import Keeping, Stored, check_space, count_given, files_of, kept_shards
from probes.rows.row_store import (
    RowStore,
    next_shard,
    prepare_shard,
    publish_shard,
    write_header,
)
from probes.store.files import remove_leftovers
from probes.store.locks import locked
from tasks import InputError
from tasks.text.beginning import Bos


def save_rows_sharded(
    load: Load,
    batches: Given,
    folder: str | Path,
    *,
    at: Sites = residual(),
    readout: Readout = last_token(),
    labels: Sequence[str] = (),
    dtype: torch.dtype | None = None,
    shard_rows: int = 4096,
    engine: Engine = "local",
    workers: int | None = None,
    tokenizer: Any = None,
    bos: Bos = "model",
    tokens_per_batch: int = 4096,
    timeout: float | None = None,
    progress: bool = False,
) -> RowStore:
    """Save rows as ``probes.save_rows`` does, with several workers that each load the model.

    The store holds the same examples, rows and labels. After an interruption the same call resumes, as with
    ``save_rows``, and what is refused there is refused here. A shard whose worker was lost is measured again. An
    interruption, including ``kill -9``, loses the shards that are being measured, one or two per worker.

    Memory: each worker holds one shard, ``shard_rows x sites x d``; this process holds no rows.

    Args:
        load: returns the model. Every worker calls it once, and it must return the same weights each time; a function
            at the top level of a module, or a ``functools.partial`` of one.
        batches: as in ``run_sharded``.
        folder: a new or an unfinished store, on a file system that all workers see.
        at: where to measure.
        readout: which position.
        labels: labels to keep beside the rows, one value per example each.
        dtype: the dtype to keep rows in, such as ``torch.bfloat16``; that of the model's activations by default.
        shard_rows: fewest examples in a shard. Batches are not split.
        engine: ``"local"`` processes, ``"ray"``, or a ``Ray`` with its settings.
        workers: number of workers; one per core by default, on Ray as many as the cluster has room for.
        tokenizer: Hugging Face's, for texts.
        bos: for texts, as in ``run``.
        tokens_per_batch: as in ``run``.
        timeout: seconds that a shard may take.
        progress: show a progress bar.

    Raises:
        InputError: where ``save_rows`` raises it, with the shard's name; for workers whose models differ, and a shard
            that lost its worker too often or took too long.

    Example:
        >>> import tempfile
        >>> from functools import partial
        >>> import torch
        >>> from mechclust import ModelConfig, build_model, save_rows_sharded
        >>> model = ModelConfig(d_vocab=10, n_ctx=4, n_layers=1, d_model=8, n_heads=2)
        >>> tokens = torch.arange(80).reshape(20, 4) % 10
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = save_rows_sharded(partial(build_model, model), tokens, folder, workers=1)
        ...     len(store), store.sites
        (20, ['hook_embed', 'blocks.0.hook_resid_post'])
    """
    check_sharded_inputs(batches, shard_rows=shard_rows)
    keeping, folder = Keeping(at, readout, labels, dtype), Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; give a new folder")
    reading = reading_of(tokenizer, bos)
    shards = shards_of(batches, shard_rows, reading=reading, tokens_per_batch=tokens_per_batch)
    known = None if count_shards(batches) else count_given(batches)
    with locked(folder, way="give a new folder"):
        remove_leftovers(folder, everyones=True)  # workers of an earlier driver, on whatever node
        store = _Store(folder, Stored.from_shards(folder, keeping.labels, kept_shards(folder, keeping.settings)))
        results = each_result(
            _measure,
            shards,
            workers,
            engine=engine,
            setup=partial(_Worker.of, load, keeping, folder, known),
            timeout=timeout,
            folder=folder,
        )
        bar = progress_bar(total=count_shards(batches), desc="saving rows", unit="shard", disable=not progress)
        errors: dict[int, Exception] = {}
        with closing(results), closing(bar):
            for outcome in results:
                if outcome.error is not None:
                    errors[outcome.position] = outcome.error
                else:
                    store.add(outcome.value)  # type: ignore[arg-type] # without an error it is what _measure returned
                bar.update()
        if errors:
            raise first_of([errors[position] for position in sorted(errors)])
        store.finish(reading.tokenization)
        return RowStore(folder)


@dataclass
class _Found:
    """What came of a shard.

    Attributes:
        header: of the store that its rows belong to.
        index: ``[n]`` all its examples.
        written: how many of them were not there yet.
        place: where these are, under a temporary name; ``None`` for none.
        tokenization: how the shard's texts became tokens; ``None`` if the worker read no texts.
    """

    header: Mapping[str, Any]
    index: list[int]
    written: int = 0
    place: Path | None = None
    tokenization: dict[str, Any] | None = None


@dataclass
class _Worker:
    """What a worker holds."""

    model: HookedModel
    header: Mapping[str, Any]
    keeping: Keeping
    stored: Stored
    known: int | None

    @classmethod
    def of(cls, load: Load, keeping: Keeping, folder: Path, known: int | None) -> _Worker:
        """Before its first shard, it refuses another model's rows and too small a disk."""
        model = load()
        if isinstance(model, Mapping):
            raise InputError(f"rows of one model are saved at a time, but load returns {len(model)}; save each alone")
        header = keeping.header(model)
        stored = Stored.from_shards(folder, keeping.labels, kept_shards(folder, header))
        if known is not None:
            keeping.check_space(folder, known - len(stored), model)
        return cls(model, header, keeping, stored, known)


def _measure(worker: _Worker, shard: Shard) -> _Found:
    """Measure what is not there yet, and write it under a temporary name: the driver gives it its own."""
    stored, probe = worker.stored, worker.keeping.probe()
    found = _Found(worker.header, [])
    reading = shard.reading({"": worker.model})
    with measuring(worker.model, [probe]) as step:
        for batch in shard.batches({"": worker.model}, reading):
            found.index += batch.index.tolist()
            if len(new := stored.new(batch)):
                step(batch if len(new) == len(batch) else batch.select(new.to(batch.index.device)))
                found.written += len(new)
    if found.written:
        if worker.known is not None:
            check_space(stored.folder, worker.known - len(stored), len(probe.sites), *probe.size())
        name = stored.folder / f"shard-{shard.number:05d}"
        found.place = prepare_shard(name, *files_of(probe.rows))
    found.tokenization = reading.tokenization
    return found


class _Store:
    """The driver's side: what workers have measured becomes part of the store."""

    def __init__(self, folder: Path, stored: Stored) -> None:
        self._folder, self._stored = folder, stored
        self._header: dict[str, Any] = {}
        self._tokenization: dict[str, Any] | None = None

    def add(self, found: _Found) -> None:
        """A shard's."""
        if not self._header:
            self._header = dict(found.header)
        elif self._header != found.header:
            raise InputError("load returned different models in two workers; make it return the same weights each time")
        self._stored.see(torch.tensor(found.index, dtype=torch.int64))
        self._tokenization = self._tokenization or found.tokenization
        if found.place is None:
            return
        if not self._stored.written:
            write_header(self._folder, self._header)  # unfinished again, where it was complete
        publish_shard(found.place, next_shard(self._folder))
        self._stored.written += found.written

    def finish(self, tokenization: dict[str, Any] | None) -> None:
        """All were given; ``tokenization`` is how texts became tokens in the driver."""
        self._stored.check_all_given()
        how = tokenization or self._tokenization
        write_header(self._folder, {**self._header, "examples": self._stored.given, "tokenization": how})
