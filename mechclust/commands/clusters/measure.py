"""What the hidden states of a user's own model cluster by on a user's own prompts, layer by layer."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from mechclust.commands.clusters.config import ClustersConfig
from mechclust.commands.clusters.estimate import Estimate, Statistics
from mechclust.commands.clusters.follow import what_clusters_follow
from mechclust.commands.clusters.inputs import Inputs, check_same_prompts, read_inputs
from mechclust.commands.clusters.parts import Parts
from mechclust.commands.clusters.report import results_of
from mechclust.commands.clusters.result import ClustersResult, MapContents, ModelCurves
from mechclust.commands.folder import own_folder
from mechclust.commands.parts import MeasurementPart, measured, shard_rows
from mechclust.commands.units import NONE
from mechclust.jobs import map_jobs, save_rows_sharded
from mechclust.models.pretrained import AnyModel
from mechclust.models.resolved import ResolvedModel
from mechclust.report.folder import check_command, rows_errors
from mechclust.report.page import save_results
from mechclust.report.resources import matmul_speed
from probes import ProbeResult, RowStore, residual, resolve, save_rows
from probes.engine.probe import Probe
from probes.engine.sites import Sites
from probes.engine.state import hashed
from probes.functional.planes import aligned_planes
from probes.store.digest import digest_of

_TRAINED = "trained"
_ProbeAt: TypeAlias = Callable[[Sites], Probe]


def measure_clusters(
    model: AnyModel,
    config: ClustersConfig,
    out: str | Path | None = None,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> ClustersResult:
    """What k-means clusters of hidden states follow, and how the task compares, at every layer.

    One model is in memory at a time: its hidden states are saved in ``out/rows`` and measured layer by layer. A second
    call with the same ``out`` does not run saved prompts again. With ``config.workers`` or a Ray cluster the
    prompts, the untrained models and the layers are spread over several processes; the results are the same.

    Args:
        model: hub name or local directory, or a loaded model: Hugging Face's, or one from ``load_pretrained``.
        config: what to measure.
        out: folder for the hidden states; ``None`` for a temporary one, which is deleted afterwards.
        tokenizer: tokenizer of a loaded Hugging Face model.
        progress: print an estimate of the cost first, and show progress bars.

    Raises:
        InputError: before any weights are loaded: for bad settings or prompts, a ``given`` label that determines the
            task, too little memory, a model in memory for several processes, and an ``out`` that another process uses
            or that holds measurements of another model or other prompts. Later: for a model that cannot be loaded, too
            little disk, and an ``out`` with hidden states of other weights.

    Example:
        >>> result = measure_clusters("gpt2", ClustersConfig(Path("prompts.jsonl")), "runs/clusters")  # doctest: +SKIP
        >>> result.lead, result.to_dataframe(), result.features  # doctest: +SKIP
    """
    if out is not None:
        check_command(Path(out), "clusters")
    resolved = config.resolve(model)
    inputs = read_inputs(resolved, config, tokenizer)
    config = replace(config, units=inputs.units.label or NONE)
    config.check_shared(resolved)
    estimate = Estimate.of(
        inputs.batches, inputs.sizes, 1 + config.untrained, getattr(torch, config.dtype), _statistics(inputs, config)
    )
    subject = {"model": resolved.portable.title, "texts": digest_of(inputs.texts)}
    with _folder(out) as rows, rows_errors("--max-rows"):
        estimate.check(config.max_memory, rows if out is None else Path(out), rows, config.at_once)
        with own_folder(out, "clusters", None if any(rows.glob("*/shard-*")) else subject):
            if out is not None:
                check_same_prompts(inputs, Path(out), rows)
            if progress:
                print(estimate.text(*_speeds(estimate, inputs, config), shared=not config.here), file=sys.stderr)
                print(inputs.units.sentence, file=sys.stderr)
            steps = _Steps(inputs, config, tokenizer, rows if config.here else rows.absolute(), progress)
            result = steps.measured(resolved)
            if out is not None:
                save_results(out, "clusters", results_of(result), subject)
    return result


@dataclass(frozen=True)
class _Steps:
    """What is measured, in a folder of our own."""

    inputs: Inputs
    config: ClustersConfig
    tokenizer: Any
    rows: Path
    progress: bool

    def measured(self, model: ResolvedModel) -> ClustersResult:
        """Everything."""
        inputs, config = self.inputs, self.config
        stores = self._saved(model)
        parts = {name: Parts(store, inputs.index, inputs.codes) for name, store in stores.items()}

        raw = self._by_layer(parts, {"raw": lambda at: config.clustering(at, config.labels, keep=True)})["raw"]
        own = raw[_TRAINED]
        layers = [own.layers[site] for site in own.coords["site"]]
        clusters, *untrained_clusters = (_of_first(raw[name], "cluster", "task") for name in stores)
        tested = {label: _of_first(own, "p_value", label).tolist() for label in config.labels}
        followed = what_clusters_follow(
            clusters, layers, inputs.labels, inputs.features, tested, inputs.units.codes, untrained_clusters
        )
        given = _given(config, inputs, followed.beside_the_task(config.labels))
        probes: dict[str, _ProbeAt] = {}
        if given is not None:
            left = inputs.left(given, config)
            testable = inputs.units.testable(inputs.labels["task"], inputs.values[given])
            given_config = config if testable else replace(config, units=NONE)
            probes["given"] = lambda at: given_config.clustering(at, left, given)
        folds = config.folds(inputs.labels)
        probes["linear"] = lambda at: config.classifier(at, config.labels, folds)
        found = self._by_layer(parts, probes)
        for each in parts.values():
            each.remove_others()
        within, linear = found.get("given", {}), found["linear"]
        trained, *untrained = (ModelCurves(raw[name], within.get(name), linear[name]) for name in stores)
        return ClustersResult(
            model=model.title,
            config=config,
            trained=trained,
            untrained=untrained,
            followed=followed,
            given=given,
            values={name: list(values) for name, values in inputs.values.items()},
            shown=_shown(stores[_TRAINED], inputs, clusters, layers, config),
            input_notes=inputs.notes,
        )

    def _saved(self, model: ResolvedModel) -> dict[str, RowStore]:
        """The rows of the model and of the untrained ones."""
        config = self.config
        source = model if config.here else model.portable
        jobs = [_Model(_TRAINED, partial(config.loaded, source, "prompts", **self.options), self)]
        for seed in range(config.untrained):
            fresh = {**self.options, "untrained": True, "seed": seed}
            jobs.append(_Model(f"untrained-seed{seed}", partial(config.loaded, source, "prompts", **fresh), self))
        if config.here:
            for job in jobs:
                _save(job, progress=self.progress)
        else:
            load = config.loader(source, "prompts", **self.options)
            rows = {**self.kept, **config.on}
            save_rows_sharded(load, self.inputs.batches, self.rows / _TRAINED, **rows, progress=self.progress)
            told = "untrained models" if self.progress else None
            map_jobs(_save, jobs[1:], **config.on, folder=self.rows, progress=told)
        return {job.name: RowStore(self.rows / job.name) for job in jobs}

    @property
    def options(self) -> dict[str, Any]:
        """How a model is loaded. Nobody reads attention here."""
        return {"tokenizer": self.tokenizer, "attention": "sdpa"}

    @property
    def kept(self) -> dict[str, Any]:
        """What is kept of each prompt, and in which shards."""
        return {"readout": self.config.readout, "shard_rows": shard_rows(len(self.inputs), shared=not self.config.here)}

    def _by_layer(
        self, parts: Mapping[str, Parts], probes: Mapping[str, _ProbeAt]
    ) -> dict[str, dict[str, ProbeResult]]:
        """By kind and model, probes at one layer after another, so that one layer's rows are in memory."""
        groups: dict[str, list[MeasurementPart]] = {}
        for model, each in parts.items():
            layers = [site.layer for site in resolve(each.store, residual())]
            for kind, probe in probes.items():
                groups[f"{model}: {kind}"] = [each.part(kind, probe(residual(layer)), layer) for layer in layers]
        found = measured(groups, self.config, self.rows, progress=self.progress)
        how = {"tokenization": dict(self.inputs.tokenization)}
        joined = {name: reduce(ProbeResult.merge, results) for name, results in found.items()}
        told = {name: replace(x, metadata={**x.metadata, **how}) for name, x in joined.items()}
        return {kind: {model: told[f"{model}: {kind}"] for model in parts} for kind in probes}


@dataclass(frozen=True)
class _Model:
    """Whose rows are saved, as a job."""

    name: str
    loaded: Callable[[], AbstractContextManager[tuple[Any, Any]]]
    steps: _Steps


def _save(job: _Model, *, progress: bool = False) -> None:
    """The rows of a model, which is gone again where it was loaded for it."""
    steps = job.steps
    with job.loaded() as (hooked, _):
        save_rows(hooked, steps.inputs.batches, steps.rows / job.name, **steps.kept, progress=progress)
    del hooked
    gc.collect()  # hooks are cycles: without this, two models would be in memory
    if torch.device(steps.config.device).type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    """Where rows are kept."""
    if out is not None:
        yield Path(out) / "rows"
        return
    with tempfile.TemporaryDirectory(prefix="mechclust-") as folder:
        yield Path(folder)


def _of_first(raw: ProbeResult, measure: str, label: str) -> np.ndarray:
    """``[layers ...]`` of a label, for its first number of clusters."""
    found = raw.sel(measure, label=label)
    if "n_clusters" in raw.axes[measure]:
        found = found.select(raw.axes[measure].index("n_clusters") - 1, 0)
    return found.numpy()


def _given(config: ClustersConfig, inputs: Inputs, followed: str | None) -> str | None:
    """What is taken out of the states."""
    if config.given == "none":
        return None
    if config.given != "auto":
        return config.given
    return followed if followed is not None and "task" in inputs.left(followed, config) else None


def _shown(
    store: RowStore, inputs: Inputs, clusters: np.ndarray, layers: Sequence[int], config: ClustersConfig
) -> MapContents | None:
    """What the map shows."""
    if not config.map_prompts:
        return None
    places = torch.arange(len(inputs))
    if len(places) > config.map_prompts:
        places = torch.sort(torch.sort(hashed(inputs.index), stable=True).indices[: config.map_prompts]).values
    sites = [str(site.name) for site in resolve(store, residual())]
    rows = (store.take(inputs.index[places], [f"rows/{site}"])[f"rows/{site}"] for site in sites)

    planes = aligned_planes(rows)
    return MapContents(
        layers=list(layers),
        places=places.tolist(),
        texts=[inputs.texts[i] for i in places.tolist()],
        planes=planes.xy,
        variance=planes.variance,
        clusters=clusters[:, places.numpy()],
    )


def _statistics(inputs: Inputs, config: ClustersConfig) -> Statistics:
    """What is measured of each layer."""
    classes = [len(set(inputs.labels[name])) for name in config.labels]
    clusters = [k for own in classes for k in (config.n_clusters or (own,))]
    return Statistics(
        clusters=clusters * (1 + (config.given != "none")),
        n_init=config.n_init,
        classes=classes,
        labelings=1 + config.n_shuffles,
        folds=config.folds(inputs.labels),
    )


def _speeds(estimate: Estimate, inputs: Inputs, config: ClustersConfig) -> tuple[float | None, float | None]:
    """Of the model's device and of that of the statistics, where an estimate of time needs them."""
    width, rows = inputs.sizes.d_model or 1, min(512, config.tokens_per_batch)
    model = statistics = None
    plain = config.quantize is None and config.device_map is None
    if estimate.operations is not None and plain and (config.device == "cpu" or config.engine == "local"):
        model = matmul_speed(config.device, getattr(torch, config.dtype), width, rows)
    if estimate.measuring is not None:
        statistics = matmul_speed(config.statistics or "cpu", torch.float64, width, 512)
    return model, statistics
