"""One measurement by many workers: each loads the model and measures shards of the data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast, overload

import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of

from mechclust.jobs.batch_tensors import batch_tensors_digest
from mechclust.jobs.data_shards import (
    DataShard,
    ShardedBatches,
    check_data_shards,
    count_data_shards,
    shards_of,
    tokenizer_of_data_shards,
)
from mechclust.jobs.mapping import imap_jobs
from mechclust.jobs.outcome import Outcome, error_naming_job, first_error
from mechclust.jobs.progress import progress_bar
from mechclust.jobs.ray_engine import Engine
from probes.engine.batch_items import count_batch_examples
from probes.engine.fingerprint import fingerprint
from probes.engine.hooked_model import HookedModels, hooked_models_by_name
from probes.engine.probe import Probe
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.run import check_same_models, probes_as_list, run_by_steps, run_results
from probes.engine.sites import Sites, residual
from probes.rows.kept_rows import KeptRows
from probes.rows.row_store import RowStore, write_store_header
from probes.rows.shards import next_shard, prepare_shard, publish_shard, shard_content
from probes.rows.stored_examples import StoredExamples
from probes.store.files import read_json, write_json
from probes.store.index_set import IndexSet
from probes.store.locks import locked_folder
from probes.store.safetensors_files import check_safetensors, read_safetensors, write_safetensors
from probes.store.temporary_files import is_temporary, remove_leftovers
from probes.store.versions import package_versions
from tasks import Batch, InputError
from tasks.text.bos_token import Bos

Load: TypeAlias = Callable[[], HookedModels]
_SavedStates: TypeAlias = Path | tuple[bytes, dict[str, str]]  # a file of safetensors, or its tensors and header

_FORMAT = "mechclust-shards-1"
_MAX_SHARDS_AHEAD = 4  # shards per worker whose states may wait for an earlier one's


@overload
def run_sharded(
    load: Load,
    batches: ShardedBatches,
    probes: Probe,
    *,
    engine: Engine = ...,
    workers: int | None = ...,
    tokenizer: Any = ...,
    bos: Bos = ...,
    tokens_per_batch: int = ...,
    shard_examples: int = ...,
    out: str | Path | None = ...,
    timeout: float | None = ...,
    progress: bool = ...,
) -> ProbeResult: ...
@overload
def run_sharded(
    load: Load,
    batches: ShardedBatches,
    probes: Sequence[Probe],
    *,
    engine: Engine = ...,
    workers: int | None = ...,
    tokenizer: Any = ...,
    bos: Bos = ...,
    tokens_per_batch: int = ...,
    shard_examples: int = ...,
    out: str | Path | None = ...,
    timeout: float | None = ...,
    progress: bool = ...,
) -> list[ProbeResult]: ...
def run_sharded(
    load: Load,
    batches: ShardedBatches,
    probes: Probe | Sequence[Probe],
    *,
    engine: Engine = "local",
    workers: int | None = None,
    tokenizer: Any = None,
    bos: Bos = "model",
    tokens_per_batch: int = 4096,
    shard_examples: int = 4096,
    out: str | Path | None = None,
    timeout: float | None = None,
    progress: bool = False,
) -> ProbeResult | list[ProbeResult]:
    """Measure as ``probes.run`` does, with several workers that each load the model and measure shards of the data.

    The states of the probes are merged in the order of the shards: equal shards give equal bits, whichever workers
    measured them. The result equals the result of ``run``, exactly if probes keep rows and integers, to rounding if
    they keep sums of real numbers. A shard whose worker was lost is measured again, and none is counted twice.

    Memory of this process: the probes' state and the states of a few shards (of two with ``out``), however many there
    are. Data is drawn as it is needed.

    Args:
        load: returns the model, or several by name, as ``run`` takes them. Every worker calls it once, and it must
            return equal weights each time. Give a function at the top level of a module, or a ``functools.partial`` of
            one.
        batches: as ``run`` takes them. Or a list of such functions, each of which returns the batches of one shard, so
            that no data passes through this process. Examples without an index are numbered from 2^32 times the shard's
            number.
        probes: one or several. They are reset first, and hold the merged state afterwards.
        engine: ``"local"`` processes, ``"ray"``, or a ``Ray`` with its settings.
        workers: number of workers. By default one per core, on Ray as many as the cluster has room for.
        tokenizer: Hugging Face's, for texts.
        bos: for texts, as in ``run``.
        tokens_per_batch: as in ``run``.
        shard_examples: fewest examples in a shard. Batches are not split.
        out: a folder to keep each shard's state in, on a file system that all workers see. Repeating the call resumes
            it after an interruption. Disk: one state per shard. ``None``: no states are kept.
        timeout: seconds that a shard may take.
        progress: show a progress bar.

    Returns:
        One result for one probe, a list for a sequence.

    Raises:
        InputError: as ``run``, with the shard's name. Also for workers whose models differ, a shard that lost its
            worker too often or took too long, and an ``out`` that holds shards of other examples, probes or models.

    Example:
        >>> from functools import partial
        >>> import torch
        >>> from mechclust import ModelConfig, build_model, run_sharded
        >>> from probes import NDims
        >>> model = ModelConfig(d_vocab=10, n_ctx=4, n_layers=1, d_model=8, n_heads=2)
        >>> tokens = torch.arange(80).reshape(20, 4) % 10
        >>> result = run_sharded(partial(build_model, model), tokens, NDims(), workers=1)
        >>> result.metadata["examples"][:2]
        '20'
    """
    check_data_shards(batches, shard_examples=shard_examples)
    several = probes_as_list(probes, least=1)
    reading = tokenizer_of_data_shards(tokenizer, bos)
    shards = shards_of(batches, shard_examples, reading=reading, tokens_per_batch=tokens_per_batch)
    total = _Total(several)
    folder = None if out is None else Path(out).absolute()
    with nullcontext() if folder is None else _folder_of_shards(folder, several):
        measure = partial(_measure, [probe.clone() for probe in several], folder)
        setup = partial(_Worker, load)
        outcomes = imap_jobs(
            measure, shards, workers, engine=engine, setup=setup, timeout=timeout, folder=folder, lead=_MAX_SHARDS_AHEAD
        )
        bar = progress_bar(total=count_data_shards(batches), desc="measuring", unit="shard", disable=not progress)
        with closing(outcomes), closing(bar):
            for states in _in_order(outcomes, kept=folder is not None):
                total.add(states)
                bar.update()
    results = run_results(several, total.states, total.fingerprints, tokenization=reading.tokenization)
    return results[0] if isinstance(probes, Probe) else results


def save_rows_sharded(
    load: Load,
    batches: ShardedBatches,
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

    The store holds the examples, rows and labels that ``save_rows`` would keep. Repeating the call resumes it after an
    interruption, and it refuses the inputs that ``save_rows`` refuses. A shard whose worker was lost is measured again.
    An interruption, including ``kill -9``, loses the shards that are being measured.

    Memory: each worker holds one shard, ``shard_rows x sites x d``. This process holds no rows.

    Args:
        load: returns the model. Every worker calls it once, and it must return equal weights each time. Give a function
            at the top level of a module, or a ``functools.partial`` of one.
        batches: as in ``run_sharded``.
        folder: a new or an unfinished store, on a file system that all workers see.
        at: where to measure.
        readout: which position.
        labels: labels to keep beside the rows, one value per example each.
        dtype: the dtype to keep rows in, such as ``torch.bfloat16``. By default the activations' dtype.
        shard_rows: fewest examples in a shard. Batches are not split.
        engine: ``"local"`` processes, ``"ray"``, or a ``Ray`` with its settings.
        workers: number of workers. By default one per core, on Ray as many as the cluster has room for.
        tokenizer: Hugging Face's, for texts.
        bos: for texts, as in ``run``.
        tokens_per_batch: as in ``run``.
        timeout: seconds that a shard may take.
        progress: show a progress bar.

    Raises:
        InputError: as ``save_rows``, with the shard's name. Also for workers whose models differ, and a shard that lost
            its worker too often or took too long.

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
    check_data_shards(batches, shard_rows=shard_rows)
    probe = KeptRows(at, readout, labels, dtype)
    folder = Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file; give a new folder")
    reading = tokenizer_of_data_shards(tokenizer, bos)
    shards = shards_of(batches, shard_rows, reading=reading, tokens_per_batch=tokens_per_batch)
    n_examples = None if count_data_shards(batches) else count_batch_examples(batches)
    setup = partial(_RowWorker, load, probe, folder, n_examples)
    with locked_folder(folder, way="give a new folder"):
        remove_leftovers(folder, even_if_alive=True)  # workers of an earlier driver, on whatever node
        store = _Store(StoredExamples.from_folder(folder, probe.settings))
        outcomes = imap_jobs(_measure_rows, shards, workers, engine=engine, setup=setup, timeout=timeout, folder=folder)
        bar = progress_bar(total=count_data_shards(batches), desc="saving rows", unit="shard", disable=not progress)
        with closing(outcomes), closing(bar):
            store.add_all(outcomes, bar)
        store.finish(reading.tokenization)
        return RowStore(folder)


class _Worker:
    """The model of a worker, or several by name, and their fingerprints."""

    def __init__(self, load: Load) -> None:
        self.model = load()
        self.models = hooked_models_by_name(self.model)
        self.fingerprints = {name: fingerprint(model) for name, model in self.models.items()}


def _measure(probes: Sequence[Probe], folder: Path | None, worker: _Worker, shard: DataShard) -> _SavedStates:
    """Measure a shard, and return the probes' states or their file, which is not made again if it is there."""
    header = {
        "format": _FORMAT,
        "probes": json.dumps(list(map(repr, probes))),
        "versions": json.dumps(package_versions()),
        "model": json.dumps(worker.fingerprints),
    }
    reading = shard.reading(worker.models)
    batches: Iterable[Batch] = shard.batches(worker.models, reading)
    path = None if folder is None else folder / f"shard-{shard.number:05d}.safetensors"
    if path is not None:
        batches = list(batches)
        header["data"] = batch_tensors_digest(batches)
        saved = None
        with suppress(InputError):  # missing, or damaged: it is made anew
            saved = check_safetensors(path)
        if saved is not None:
            _check_same(path, saved, header)
            return path
    with run_by_steps(worker.model, probes) as step:
        for batch in batches:
            step(batch)
    states = [probe.state_dict() for probe in probes]
    for probe in probes:
        probe.reset()
    header["measured"] = json.dumps({**step.state(), "tokenization": reading.tokenization})
    header["sites"] = json.dumps([state["sites"] for state in states])
    tensors = {}
    for i, state in enumerate(states):
        tensors[f"{i}/examples"] = state["examples"].contiguous()
        for name, values in state["tensors"].items():
            tensors[f"{i}/tensors/{name}"] = values.contiguous()
    if path is None:
        return bytes_of(tensors), header
    write_safetensors(path, tensors, header)
    return path


class _Total:
    """The merged states of all shards."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes
        self.states: list[Mapping[str, Any]] = []
        self.fingerprints: list[Mapping[str, str]] = []
        for probe in probes:  # whatever model it saw before
            probe.load_state_dict({"sites": [], "examples": IndexSet().tensor(), "tensors": {}})

    def add(self, states: _SavedStates) -> None:
        """Merge the states of a shard, from its file or as they came. Refuse those of other models than the first's."""
        tensors, header = read_safetensors(states) if isinstance(states, Path) else (tensors_of(states[0]), states[1])
        self.fingerprints.append(json.loads(header["model"]))
        check_same_models(len(self.fingerprints) - 1, self.fingerprints[-1], self.fingerprints[0])
        sites = json.loads(header["sites"])
        for i, probe in enumerate(self._probes):
            prefix = f"{i}/tensors/"
            values = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
            part = probe.clone()
            part.load_state_dict({"sites": sites[i], "examples": tensors[f"{i}/examples"], "tensors": values})
            probe.merge(part)
        self.states.append(json.loads(header["measured"]))


def _in_order(outcomes: Iterator[Outcome[Any]], *, kept: bool) -> Iterator[Any]:
    """Yield values in the order of their jobs. Values that come early wait.

    The first job's error in that order is raised: at once, or if shards are ``kept``, when the others are done.
    """
    early: dict[int, Outcome[Any]] = {}
    position = 0
    for outcome in outcomes:
        early[outcome.position] = outcome
        while position in early:
            ready = early.pop(position)
            if ready.error is not None:
                rest = [*early.values(), *outcomes] if kept else []
                raise first_error([ready.error, *(other.error for other in rest if other.error is not None)])
            yield ready.value
            position += 1


@contextmanager
def _folder_of_shards(folder: Path, probes: Sequence[Probe]) -> Iterator[None]:
    """Own a folder of shards of these probes, new or begun, for the block."""
    with locked_folder(folder):
        remove_leftovers(folder, even_if_alive=True)  # workers of an earlier driver, on whatever node
        path = folder / "shards.json"
        record = {"format": _FORMAT, "probes": list(map(repr, probes)), "versions": package_versions()}
        saved = None
        with suppress(InputError):  # missing, or damaged: it is written anew
            saved = read_json(path)
        if saved is not None:
            _check_record(path, saved, record)
        elif all(is_temporary(file) or file == path or file.match("shard-*.safetensors") for file in folder.iterdir()):
            write_json(path, record)  # also in each shard's header
        else:
            raise InputError(f"{str(folder)!r} has files but no shards of a measurement; give a new folder")
        yield


def _check_record(path: Path, saved: Any, wanted: Mapping[str, Any]) -> None:
    """Refuse a folder of another measurement."""
    folder = str(path.parent)
    if not isinstance(saved, dict) or saved.get("format") != _FORMAT:
        raise InputError(f"{str(path)!r} was not written by run_sharded; give a new folder")
    if saved.get("probes") != wanted["probes"]:
        raise InputError(
            f"{folder!r} holds shards of {', '.join(saved['probes'])}; give a new folder, or delete this one"
        )
    then = saved.get("versions") or {}
    now = wanted["versions"]
    differ = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if differ:
        before = " and ".join(f"{name} {then.get(name, 'none')}" for name in differ)
        after = " and ".join(f"{name} {now.get(name, 'none')}" for name in differ)
        way_out = "install the same versions, or give a new folder"
        raise InputError(f"{folder!r} was measured with {before}, but this process has {after}; {way_out}")


def _check_same(path: Path, saved: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse a shard's file of another measurement."""
    differences = {
        "probes": "other probes",
        "versions": "other versions of packages",
        "model": "another model",
        "data": "other examples, or of the same ones in other batches",
    }
    for key, other in differences.items():
        if saved.get(key) != wanted[key]:
            raise InputError(f"{str(path)!r} holds the state of {other}; give the same again, or a new folder as out")


@dataclass
class _SavedRows:
    """A shard whose rows are on disk."""

    header: Mapping[str, Any]  # of the store that its rows belong to
    index: list[int]  # of all its examples
    written: int = 0  # examples that were not there yet
    place: Path | None = None  # their path, a temporary name. None for none
    tokenization: dict[str, Any] | None = None  # how texts became tokens. None if the worker read no texts


class _RowWorker:
    """A worker's model, and the store that its rows belong to.

    Another model's rows, and too small a disk, are refused before the first shard.
    """

    def __init__(self, load: Load, probe: KeptRows, folder: Path, n_examples: int | None) -> None:
        model = load()
        if isinstance(model, Mapping):
            raise InputError(f"rows of one model are saved at a time, but load returns {len(model)}; save each alone")
        self.model = model
        self.header = probe.header(model)
        self.probe = probe
        self.stored = StoredExamples.from_folder(folder, self.header)
        self.n_unchecked = n_examples  # None if unknown, or once the disk has room for the rows of the first shard
        if n_examples is not None:
            probe.check_expected_space(folder, n_examples - len(self.stored), model)

    def check_space(self, measured: KeptRows) -> None:
        """Refuse too small a disk for the examples that the folder lacks now, once, by the first rows measured."""
        if self.n_unchecked is not None:
            kept = StoredExamples.from_folder(self.stored.folder, self.header)
            measured.check_space(kept.folder, self.n_unchecked - len(kept))
            self.n_unchecked = None


def _measure_rows(worker: _RowWorker, shard: DataShard) -> _SavedRows:
    """Measure the rows that are not there yet, and write them under a temporary name, which the driver changes."""
    stored = worker.stored
    probe = worker.probe.clone()
    saved = _SavedRows(worker.header, [])
    reading = shard.reading({"": worker.model})
    with run_by_steps(worker.model, [probe]) as step:
        for batch in shard.batches({"": worker.model}, reading):
            saved.index += batch.index.tolist()
            new = stored.new(batch)
            if len(new):
                step(new)
                saved.written += len(new)
    if saved.written:
        worker.check_space(probe)
        saved.place = prepare_shard(stored.folder / f"shard-{shard.number:05d}", *shard_content(probe.rows))
    saved.tokenization = reading.tokenization
    return saved


@dataclass
class _Store:
    """The driver's side: rows that workers have measured become part of the store."""

    stored: StoredExamples
    header: dict[str, Any] = field(default_factory=dict)
    tokenization: dict[str, Any] | None = None

    def add_all(self, outcomes: Iterable[Outcome[_SavedRows]], bar: Any) -> None:
        """Add all shards that succeed, and raise the first error in their order when all are done."""
        errors: dict[int, Exception] = {}
        for outcome in outcomes:
            error = outcome.error or self._add(outcome.position, cast(_SavedRows, outcome.value))
            if error is not None:
                errors[outcome.position] = error
            bar.update()
        if errors:
            raise first_error([errors[position] for position in sorted(errors)])

    def _add(self, number: int, saved: _SavedRows) -> Exception | None:
        """Add a shard, or return the error of one with an example that another worker's shard has too."""
        if not self.header:
            self.header = dict(saved.header)
        elif self.header != saved.header:
            raise InputError("load returned different models in two workers; make it return the same weights each time")
        try:
            self.stored.see(torch.tensor(saved.index, dtype=torch.int64))
        except InputError as error:
            if saved.place is not None:
                shutil.rmtree(saved.place, ignore_errors=True)
            return error_naming_job(error, f"job 'shard {number}'")
        self.tokenization = self.tokenization or saved.tokenization
        if saved.place is None:
            return None
        if not self.stored.written:
            write_store_header(self.stored.folder, self.header)  # a complete store becomes unfinished again
        publish_shard(saved.place, next_shard(self.stored.folder))
        self.stored.written += saved.written
        return None

    def finish(self, tokenization: dict[str, Any] | None) -> None:
        """Mark the store as complete. ``tokenization`` is how texts became tokens in the driver."""
        self.stored.finish(self.header, tokenization or self.tokenization)
