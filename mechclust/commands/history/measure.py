"""Probes at every checkpoint of a training: one model in memory at a time, each checkpoint and comparison a job."""

from __future__ import annotations

import gc
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechclust.commands.folder import own_folder
from mechclust.commands.history.config import AGAINST, Against, HistoryConfig
from mechclust.commands.history.inputs import Inputs, own_tokenizer, read_inputs, tokenizer_digest, tokens_of
from mechclust.commands.history.integrity import Identity
from mechclust.commands.history.random_copy import RandomCopy
from mechclust.commands.history.result import HistoryResult, measured_history
from mechclust.commands.history.series import Checkpoint, find_series
from mechclust.commands.parts import MeasurementPart, measured, part_path, shard_rows
from mechclust.commands.settings import stamps_of
from mechclust.commands.units import NONE
from mechclust.jobs import map_jobs, progress_bar
from mechclust.models.adapters import plain_model
from mechclust.models.sketch import WeightSketch, named_weights, weight_sketch
from mechclust.report.folder import check_command, rows_errors
from mechclust.report.page import save_results
from probes import (
    ProbeResult,
    RowStore,
    TopicAttention,
    attention_pattern,
    load_result,
    record,
    residual,
    resolve,
    run,
    run_stores,
    save_rows,
)
from probes.engine.hooks import device_of, evaluation_mode, forward
from probes.engine.identity import settings_of
from probes.engine.probe import Probe
from probes.store.digest import digest_of
from probes.store.files import file_name, is_whole, read_json, read_safetensors, versions, write_json, write_safetensors
from tasks import Batch, InputError
from tasks.text.visible import quoted

_MOST_TOKENS = 32  # of a prompt whose attention is shown


def measure_history(
    model: str | Path,
    config: HistoryConfig,
    out: str | Path | None = None,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> HistoryResult:
    """Run probes at every checkpoint of a training run, and check that the checkpoints are what their names say.

    Prompts and corpus are tokenized once, with the last checkpoint's tokenizer. Each checkpoint is loaded once, and
    only one is in memory at a time. Hidden states are saved in ``out/checkpoints``; clusters and CKA are computed from
    there. A second call with the same ``out`` does not reload checkpoints that are already measured.

    Args:
        model: the hub name whose revisions ``config.revisions`` are, or a folder of ``checkpoint-*`` folders. Its
            tokenizer is used if no checkpoint has one.
        config: what to measure.
        out: folder for hidden states and results; ``None`` for a temporary one, which is deleted afterwards.
        tokenizer: used instead of the checkpoints' own.
        progress: show progress bars.

    Raises:
        InputError: before any weights are loaded, for invalid settings, prompts or checkpoints; later, for a
            checkpoint that cannot be loaded or a full disk.

    Example:
        >>> config = HistoryConfig(Path("prompts.jsonl"), revisions=("step0", "step1000"))  # doctest: +SKIP
        >>> result = measure_history("EleutherAI/pythia-70m", config, "runs/pythia")  # doctest: +SKIP
        >>> result.findings, result.crossings, result.to_dataframe()  # doctest: +SKIP
    """
    config.check()
    if out is not None:
        check_command(Path(out), "history")
    series = find_series(model, config)
    inputs = read_inputs(model, series, config, tokenizer)
    config = replace(config, units=inputs.units.label or NONE)
    subject = {
        "model": str(model),
        "texts": inputs.prompts_digest,
        "corpus": inputs.corpus_digest,
        "position": config.position,
    }
    with _folder(out) as folder, rows_errors("a shorter file"), own_folder(out, "history", subject):
        if progress:
            print(inputs.units.sentence, file=sys.stderr)
        steps = _Steps(series, inputs, config, folder / "checkpoints", progress, tokenizer is None)
        result = steps.measured(str(model))
        if out is not None:
            save_results(out, "history", result.results, subject)
    return result


@dataclass(frozen=True)
class _Steps:
    """What is measured, in a folder of our own."""

    series: Sequence[Checkpoint]
    inputs: Inputs
    config: HistoryConfig
    folder: Path
    progress: bool
    own_tokenizers: bool

    def measured(self, model: str) -> HistoryResult:
        """Everything."""
        jobs = [self._job(checkpoint) for checkpoint in self.series]
        random = RandomCopy(self.series[-1].model, self.folder.absolute(), self.inputs.tokenizer, self.config)
        models: list[_Job | RandomCopy] = [*jobs, random]
        told = "checkpoints" if self.progress else None
        if self.config.here:
            for model_job in progress_bar(models, desc=told, unit="model") if told else models:
                _measure(model_job)
        else:
            map_jobs(_measure, models, **self.config.on, folder=self.folder, progress=told)
        stores = [RowStore(job.folder / "rows") for job in jobs]
        parts = self._parts(stores)
        found = measured(parts, self.config, self.folder, progress=self.progress)
        results = {name: dict(zip(self._places(name, stores), own, strict=True)) for name, own in found.items()}
        results["clusters"] = self._joined(results.pop("clusters", {}))
        for kind in ("heads", "topics", *self.config.others):
            if kind in self.config.measured:
                results[kind] = {i: load_result(job.result(kind)) for i, job in enumerate(jobs)}
        return measured_history(
            model=model,
            config=self.config,
            series=self.series,
            inputs=self.inputs,
            identities=[job.identity for job in jobs],
            stores=stores,
            results={name: own for name, own in results.items() if own},
            attention=[job.attention for job in jobs],
            random=random.weights,
        )

    def _job(self, checkpoint: Checkpoint) -> _Job:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", checkpoint.name)[:60]
        tag = digest_of([checkpoint.model.source])[:8]
        return _Job(checkpoint, self.folder.absolute() / f"{name}-{tag}", self.inputs, self.config, self.own_tokenizers)

    def _parts(self, stores: Sequence[RowStore]) -> dict[str, list[MeasurementPart]]:
        config, parts = self.config, dict[str, list[MeasurementPart]]()
        if "clusters" in config.measured:
            parts["clusters"] = [
                self._part(f"clusters-{layer}", config.clustering(residual(layer)), [stores[i]])
                for i, layer in self._places("clusters", stores)
            ]
        if "cka" in config.measured:
            for against in AGAINST:
                parts[f"cka_{against}"] = [
                    self._part(f"cka_{against}", config.cka, [stores[i], stores[_other(against, i, len(stores))]])
                    for i in self._places(f"cka_{against}", stores)
                ]
        return parts

    def _part(self, name: str, probe: Probe, stores: Sequence[RowStore]) -> MeasurementPart:
        arrays: list[Tensor] = [array for store in stores for array in (store.index, store.tokens)]
        settings = [repr(probe), self.inputs.prompts_digest, *(store.model for store in stores)]  # with their tasks
        path = part_path(stores[0].folder.parent / "measured", name, settings, arrays)
        return MeasurementPart(path, f"{stores[0].folder.parent.name}: {name}", partial(_of_stores, stores, probe))

    def _places(self, name: str, stores: Sequence[RowStore]) -> list[Any]:
        """What a group of parts is of: (checkpoint, layer), or checkpoints that have another to be compared with."""
        if name == "clusters":
            return [(i, site.layer) for i, store in enumerate(stores) for site in resolve(store, residual())]
        against: Any = name.removeprefix("cka_")
        n = len(stores)
        others = {i: _other(against, i, n) for i in range(n)}
        return [i for i, other in others.items() if other >= 0 and stores[i].sites == stores[other].sites]

    def _joined(self, layers: Mapping[tuple[int, int], ProbeResult]) -> dict[int, ProbeResult]:
        """By checkpoint, all layers together."""
        places = dict.fromkeys(i for i, _ in layers)
        return {i: reduce(ProbeResult.merge, [own for (j, _), own in layers.items() if j == i]) for i in places}


def _other(against: Against, i: int, n: int) -> int:
    """The checkpoint to compare with; -1 for none."""
    return {"last": n - 1, "first": 0, "previous": i - 1}[against]


def _of_stores(stores: Sequence[RowStore], probe: Probe) -> ProbeResult:
    if len(stores) == 1:
        return run_stores(stores[0], probe)
    return run_stores({"checkpoint": stores[0], "other": stores[1]}, probe)


@dataclass(frozen=True)
class _Job:
    """One checkpoint, whose model is loaded once for all that needs it."""

    checkpoint: Checkpoint
    folder: Path
    inputs: Inputs
    config: HistoryConfig
    own_tokenizer: bool

    @property
    def name(self) -> str:
        """In errors."""
        return self.checkpoint.name

    @cached_property
    def key(self) -> str:
        """Of all that the files here depend on, the checkpoint's files included."""
        config = self.config
        settings: list[Any] = [config.dtype, config.quantize, config.adapter, config.readout, sorted(self.inputs.words)]
        settings += [config.heads] if "heads" in config.measured else []
        settings += [config.n_permutations, config.seed] if "topics" in config.measured else []
        settings += [repr(config.registered(name)) for name in config.others]
        model = self.checkpoint.model
        stamps = [stamps_of(folder) for folder in model.folders]
        return digest_of([json.dumps([model.source, settings, versions(), stamps], default=str), self.inputs.digest])

    def result(self, name: str) -> Path:
        """The file of what a probe found in the model."""
        return self.folder / f"{file_name(name)}.safetensors"

    @property
    def identity(self) -> Identity:
        """What the job found of the checkpoint's weights, configuration and tokenizer."""
        facts = read_json(self.folder / "facts.json")
        values = read_safetensors(self.folder / "sketch.safetensors")[0]["values"]
        sketch = WeightSketch(facts["weights"], facts["shapes"], values)
        return Identity(self.name, sketch, facts["config"], facts["tokenizer"])

    @property
    def attention(self) -> dict[int, Tensor]:
        """``[layer head query key]`` patterns of the prompts that are shown, by their place in the file."""
        if not (self.folder / "attention.safetensors").exists():
            return {}
        found = read_safetensors(self.folder / "attention.safetensors")[0]
        return {int(place): pattern for place, pattern in found.items()}

    @property
    def done(self) -> bool:
        """Whether all is there; ``facts.json`` is written last."""
        facts = self.folder / "facts.json"
        if not facts.exists() or not is_whole(facts):
            return False
        return bool(read_json(facts).get("key") == self.key)


def _measure(job: _Job | RandomCopy) -> None:
    """Load a checkpoint and write all that needs it, or make the copy with random weights."""
    if isinstance(job, RandomCopy):
        job.make()
        return
    if job.done:
        return
    (job.folder / "facts.json").unlink(missing_ok=True)
    config = job.config
    model = config.load(job.checkpoint.model, "prompts", tokenizer=job.inputs.tokenizer)
    _check_finite(model, job.name)
    with _named_if_not_finite(job.name):
        _measure_loaded(model, job)
    del model
    gc.collect()  # hooks are cycles: without this, two models would be in memory
    if torch.device(config.device).type == "cuda":
        torch.cuda.empty_cache()


def _check_finite(model: Any, name: str) -> None:
    """Refuse a checkpoint whose weights are not numbers."""
    for weight_name, weight in named_weights(model):
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise InputError(
                f"checkpoint {quoted(name)} has NaN or infinity in the weight {weight_name!r}; leave this checkpoint "
                "out"
            )


@contextmanager
def _named_if_not_finite(name: str) -> Iterator[None]:
    """Name the checkpoint in an error about activations, which otherwise says to leave the example out."""
    try:
        yield
    except InputError as error:
        where, _, _ = str(error).partition(";")
        if not where.startswith("NaN or infinity"):
            raise
        raise InputError(
            f"checkpoint {quoted(name)}: {where}; give --dtype float32, or leave this checkpoint out"
        ) from error


def _measure_loaded(model: Any, job: _Job) -> None:
    inputs, config = job.inputs, job.config
    _save_rows(model, job)
    probes: list[tuple[str, Probe, Any]] = [(n, config.registered(n), inputs.batches) for n in config.others]
    if "heads" in config.measured:
        probes.append(("heads", config.heads, inputs.batches))
    if inputs.corpus is not None and inputs.topics is not None:
        options: dict[str, Any] = {
            "words": "word",
            "n_permutations": config.n_permutations,
            "seed": config.seed,
        }
        topics = TopicAttention(inputs.topics, attention_pattern(), **options)
        probes.append(("topics", topics, inputs.corpus.batches(config.tokens_per_batch)))
    for name, probe, batches in probes:
        run(model, batches, probe).save(job.result(name))
    if inputs.words:
        patterns = {str(place): _patterns(model, tokens_of(inputs.batches, place)) for place in inputs.words}
        write_safetensors(job.folder / "attention.safetensors", patterns, {})
    sketch = weight_sketch(model)
    write_safetensors(job.folder / "sketch.safetensors", {"values": sketch.values}, {})
    own = own_tokenizer(job.checkpoint, config) if job.own_tokenizer else None
    facts = {
        "key": job.key,
        "weights": sketch.digest,
        "shapes": sketch.shapes,
        "config": json.loads(json.dumps(settings_of(plain_model(model).config), default=str)),
        "tokenizer": own and tokenizer_digest(own, inputs.prompts.prompts, config),
    }
    write_json(job.folder / "facts.json", facts)


def _save_rows(model: Any, job: _Job) -> None:
    """The hidden states; those of other weights or prompts that stand in the place are removed."""
    inputs = job.inputs
    kept: dict[str, Any] = {
        "readout": job.config.readout,
        "labels": job.config.kept_labels,
        "shard_rows": shard_rows(len(inputs.prompts)),
    }
    try:
        save_rows(model, inputs.batches, job.folder / "rows", **kept)
    except InputError:
        if not (job.folder / "rows").is_dir():
            raise
        shutil.rmtree(job.folder / "rows")
        save_rows(model, inputs.batches, job.folder / "rows", **kept)


def _patterns(model: Any, tokens: Tensor) -> Tensor:
    """``[layer head query key]`` attention in the first tokens of a prompt, in bytes: 255 is 1."""
    sites = [site.name for site in resolve(model, attention_pattern())]
    batch = Batch(tokens[None, :_MOST_TOKENS])
    with evaluation_mode(model), torch.inference_mode(), record(model, sites) as seen:
        forward(model, batch.to(device_of(model)))
    patterns = torch.stack([seen[site][0][0].float().cpu() for site in sites])
    return (patterns * 255).round().clamp(0, 255).to(torch.uint8)


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="mechclust-") as folder:
        yield Path(folder)
