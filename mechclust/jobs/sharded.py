"""One measurement by many workers: each measures shards of the data, and the states of the probes are merged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, overload

from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from mechclust.jobs.engine import Engine
from mechclust.jobs.mapping import each_result
from mechclust.jobs.outcome import Outcome, first_of
from mechclust.jobs.progress import progress_bar
from mechclust.jobs.shards import (
    Given,
    Load,
    Loaded,
    Shard,
    batches_digest,
    check_sharded_inputs,
    count_shards,
    reading_of,
    shards_of,
)
from probes.engine.probe import Probe, each_probe
from probes.engine.result import ProbeResult
from probes.engine.run import finished, measuring
from probes.store.files import (
    check_safetensors,
    is_temporary,
    read_json,
    read_safetensors,
    remove_leftovers,
    versions,
    write_json,
    write_safetensors,
)
from probes.store.index_set import IndexSet
from probes.store.locks import locked
from tasks import InputError
from tasks.text.beginning import Bos

_FORMAT = "mechclust-shards-1"
_SHARD = "shard-*.safetensors"
_LEAD = 4  # shards per worker whose states may wait for an earlier one's


@overload
def run_sharded(
    load: Load,
    batches: Given,
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
    batches: Given,
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
    batches: Given,
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

    The states of the probes are merged in the order of the shards: the same shards give the same bits, whichever
    workers measured them. The result equals that of ``run``: exactly where probes keep rows and integers, to rounding
    where they keep sums of real numbers. A shard whose worker was lost is measured again, and none is counted twice.

    Memory of this process: the probes' state and that of a few shards (of two with ``out``), however many there are.
    Data is drawn as it is needed.

    Args:
        load: returns the model, or several by name, as ``run`` takes them. Every worker calls it once, and it must
            return the same weights each time; a function at the top level of a module, or a ``functools.partial`` of
            one.
        batches: as ``run`` takes them. Or a list of such functions, each of which returns the batches of one shard, so
            that no data passes through this process; examples without an index are numbered from 2^32 times the
            shard's number.
        probes: one or several. They are reset first, and hold the merged state afterwards.
        engine: ``"local"`` processes, ``"ray"``, or a ``Ray`` with its settings.
        workers: number of workers; one per core by default, on Ray as many as the cluster has room for.
        tokenizer: Hugging Face's, for texts.
        bos: for texts, as in ``run``.
        tokens_per_batch: as in ``run``.
        shard_examples: fewest examples in a shard. Batches are not split.
        out: a folder to keep each shard's state in, on a file system that all workers see: the same call resumes
            where it was interrupted. Disk: one state per shard. ``None``: nothing is kept.
        timeout: seconds that a shard may take.
        progress: show a progress bar.

    Returns:
        One result for one probe, a list for a sequence.

    Raises:
        InputError: where ``run`` raises it, with the shard's name; for workers whose models differ, a shard that lost
            its worker too often or took too long, and where ``out`` holds shards of other examples, probes or models.

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
    check_sharded_inputs(batches, shard_examples=shard_examples)
    several = each_probe(probes)
    reading = reading_of(tokenizer, bos)
    shards = shards_of(batches, shard_examples, reading=reading, tokens_per_batch=tokens_per_batch)
    total = _Total(several)
    folder = None if out is None else Path(out).absolute()
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(locked(folder))
            _begin(folder, several)
        measure = partial(_measure, [probe.clone() for probe in several], folder)
        outcomes = each_result(
            measure,
            shards,
            workers,
            engine=engine,
            setup=partial(Loaded.by, load),
            timeout=timeout,
            folder=folder,
            lead=_LEAD,
        )
        stack.enter_context(closing(outcomes))
        bar = progress_bar(total=count_shards(batches), desc="measuring", unit="shard", disable=not progress)
        stack.enter_context(closing(bar))
        for found in _in_order(outcomes, kept=folder is not None):
            total.add(found)
            bar.update()
    results = finished(several, total.states, total.fingerprints, tokenization=reading.tokenization)
    return results[0] if isinstance(probes, Probe) else results


def _in_order(outcomes: Iterator[Outcome[Any]], *, kept: bool) -> Iterator[Any]:
    """Values in the order of their jobs; those that come early wait.

    The first job's error in that order is raised: at once, or where shards are ``kept``, when the others are done.
    """
    early: dict[int, Outcome[Any]] = {}
    next_one = 0
    for outcome in outcomes:
        early[outcome.position] = outcome
        while next_one in early:
            found = early.pop(next_one)
            if found.error is not None:
                rest = [*early.values(), *outcomes] if kept else []
                raise first_of([found.error, *(other.error for other in rest if other.error is not None)])
            yield found.value
            next_one += 1


# ---- a shard's states ----


@dataclass(frozen=True)
class _States:
    """What a shard's probes hold, as a file of safetensors has it.

    Attributes:
        tensors: of the i-th probe under ``"i/"``.
        header: ``probes``, ``sites``, ``model`` and ``measured``, each as JSON, and ``data``, a digest.
    """

    tensors: Mapping[str, Tensor]
    header: dict[str, str]

    @classmethod
    def of(cls, probes: Sequence[Probe], header: dict[str, str]) -> _States:
        states = [probe.state_dict() for probe in probes]
        tensors = {f"{i}/examples": state["examples"] for i, state in enumerate(states)}
        tensors |= {f"{i}/tensors/{name}": x for i, state in enumerate(states) for name, x in state["tensors"].items()}
        return cls(tensors, {**header, "sites": json.dumps([state["sites"] for state in states])})

    def of_probe(self, i: int) -> dict[str, Any]:
        """What ``Probe.load_state_dict`` takes."""
        prefix = f"{i}/tensors/"
        tensors = {name.removeprefix(prefix): x for name, x in self.tensors.items() if name.startswith(prefix)}
        return {
            "sites": json.loads(self.header["sites"])[i],
            "examples": self.tensors[f"{i}/examples"],
            "tensors": tensors,
        }


class _Total:
    """The merged states."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes
        self.states: list[Mapping[str, Any]] = []
        self.fingerprints: list[Mapping[str, str]] = []
        for probe in probes:  # whatever model it saw before
            probe.load_state_dict({"sites": [], "examples": IndexSet().tensor(), "tensors": {}})

    def add(self, found: Path | tuple[bytes, dict[str, str]]) -> None:
        """A shard's, from its file or as it came."""
        states = (
            _States(*read_safetensors(found)) if isinstance(found, Path) else _States(tensors_of(found[0]), found[1])
        )
        for i, probe in enumerate(self._probes):
            part = probe.clone()
            part.load_state_dict(states.of_probe(i))
            probe.merge(part)
        self.states.append(json.loads(states.header["measured"]))
        self.fingerprints.append(json.loads(states.header["model"]))


def _measure(
    probes: Sequence[Probe], folder: Path | None, worker: Loaded, shard: Shard
) -> Path | tuple[bytes, dict[str, str]]:
    """What a worker does: its states, or the file of them, which is not made again where it is there."""
    header = {
        "format": _FORMAT,
        "probes": json.dumps(list(map(repr, probes))),
        "versions": json.dumps(versions()),
        "model": json.dumps(worker.fingerprints),
    }
    reading = shard.reading(worker.models)
    batches = shard.batches(worker.models, reading)
    path = folder and folder / f"shard-{shard.number:05d}.safetensors"
    if path is not None:
        batches = iter(kept := list(batches))
        header["data"] = batches_digest(kept)
        if (held := _held(path)) is not None:
            _check_same(path, held, header)
            return path
    with measuring(worker.model, probes) as step:
        for batch in batches:
            step(batch)
    header["measured"] = json.dumps({**step.state(), "tokenization": reading.tokenization})
    states = _States.of(probes, header)
    for probe in probes:
        probe.reset()
    if path is None:
        return bytes_of({name: x.contiguous() for name, x in states.tensors.items()}), states.header
    write_safetensors(path, states.tensors, states.header)
    return path


# ---- the folder ----


def _begin(folder: Path, probes: Sequence[Probe]) -> None:
    """A folder of shards of these probes, new or begun."""
    remove_leftovers(folder, everyones=True)  # workers of an earlier driver, on whatever node
    path = folder / "shards.json"
    mine = {"format": _FORMAT, "probes": list(map(repr, probes)), "versions": versions()}
    held = _description(path)
    if held is None:  # missing or damaged: the header of each shard says the same
        if any(not (is_temporary(file) or file == path or file.match(_SHARD)) for file in folder.iterdir()):
            raise InputError(f"{str(folder)!r} has files but no shards of a measurement; give a new folder")
        write_json(path, mine)
        return
    if not isinstance(held, dict) or held.get("format") != _FORMAT:
        raise InputError(f"{str(path)!r} was not written by run_sharded; give a new folder")
    if held.get("probes") != mine["probes"]:
        raise InputError(
            f"{str(folder)!r} holds shards of {', '.join(held['probes'])}; give a new folder, or delete this one"
        )
    then, now = held.get("versions") or {}, versions()
    if differ := [name for name in {**then, **now} if then.get(name) != now.get(name)]:
        theirs, ours = (" and ".join(f"{name} {of.get(name, 'none')}" for name in differ) for of in (then, now))
        way = "install the same versions, or give a new folder"
        raise InputError(f"{str(folder)!r} was measured with {theirs}, but this process has {ours}; {way}")


def _description(path: Path) -> Any:
    """What ``shards.json`` says; ``None`` where it is missing or damaged."""
    try:
        return read_json(path)
    except InputError:
        return None


def _held(path: Path) -> dict[str, str] | None:
    """The header of a shard's file; ``None`` where there is none, or a damaged one, which is made anew."""
    try:
        return check_safetensors(path)
    except InputError:
        return None


def _check_same(path: Path, held: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    words = {
        "probes": "other probes",
        "versions": "other versions of packages",
        "model": "another model",
        "data": "other examples, or of the same ones in other batches",
    }
    for key, what in words.items():
        if held.get(key) != wanted[key]:
            raise InputError(f"{str(path)!r} holds the state of {what}; give the same again, or a new folder as out")
