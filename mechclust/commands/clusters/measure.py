"""What the hidden states of a user's own model cluster by on a user's own prompts, layer by layer."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechclust.commands.clusters.config import ClustersConfig
from mechclust.commands.clusters.estimate import Estimate, Statistics, matmul_speed
from mechclust.commands.clusters.follow import what_clusters_follow
from mechclust.commands.clusters.inputs import Inputs, check_same_prompts, read_inputs
from mechclust.commands.clusters.parts import Parts
from mechclust.commands.clusters.result import ClustersResult, Curves, Shown
from mechclust.jobs import progress_bar
from mechclust.models.pretrained import AnyModel
from mechclust.report.folder import check_command, record_command, rows_errors
from probes import ProbeResult, RowStore, residual, resolve, save_rows
from probes.functional.planes import aligned_planes
from probes.probe import Probe
from probes.sites import Sites
from probes.state import hashed

_SHARD_ROWS, _SHARDS = 128, 64  # of which an interruption costs two: prompts at least, and how many at most


def measure_clusters(
    model: AnyModel,
    config: ClustersConfig,
    out: str | Path | None = None,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> ClustersResult:
    """What k-means clusters of hidden states follow, and where the task is beside it, at every layer.

    One model is in memory at a time: its hidden states go to ``out/rows``, whence they are measured layer by layer. A
    second call with the same ``out`` runs no prompt again that is there.

    Args:
        model: hub name or local directory, or a loaded model: Hugging Face's, or one that ``load_pretrained`` gave.
        config: what to measure.
        out: folder for the hidden states; ``None`` for a temporary one, which is gone afterwards.
        tokenizer: of a loaded Hugging Face model.
        progress: say beforehand what it will take, and show progress bars.

    Raises:
        InputError: before any weights are loaded: for bad settings or prompts, a ``given`` label that tells the task,
            or too little memory. Later: for a model that cannot be loaded, too little disk, and an ``out`` that holds
            hidden states of another model or other prompts.

    Example:
        >>> # result = measure_clusters("gpt2", ClustersConfig(Path("prompts.jsonl")), "runs/clusters")
        >>> # result.lead, result.to_dataframe(), result.features
    """
    if out is not None:
        check_command(Path(out), "clusters")
    inputs = read_inputs(model, config, tokenizer)
    estimate = Estimate.of(
        inputs.batches, inputs.sizes, 1 + config.untrained, getattr(torch, config.dtype), _statistics(inputs, config)
    )
    steps = _Steps(inputs, config, tokenizer, progress)
    with _folder(out) as rows, rows_errors("--max-rows"):
        estimate.check(config.max_memory, rows if out is None else Path(out), rows)
        if out is not None:
            check_same_prompts(inputs, Path(out), rows)
            record_command(Path(out), "clusters")
        if progress:
            print(estimate.text(*_speeds(estimate, inputs, config)), file=sys.stderr)
        store = steps.saved(model, rows / "trained")
        raw = steps.clusters(store, "clusters", keep=True)
        layers, clusters = [raw.layers[site] for site in raw.coords["site"]], _of_first(raw, "cluster", "task")
        tested = {label: _of_first(raw, "p_value", label).tolist() for label in config.labels}
        followed = what_clusters_follow(clusters, layers, inputs.labels, inputs.features, tested)
        given = _given(config, inputs, followed.beside_the_task(config.labels))
        trained = steps.curves(store, raw, given, "this model")
        shown = _shown(store, inputs, clusters, layers, config)
        untrained = []
        for seed in range(config.untrained):
            name = f"untrained-seed{seed}"
            fresh = steps.saved(model, rows / name, untrained=True, seed=seed)
            untrained.append(steps.curves(fresh, steps.clusters(fresh, f"{name}: clusters"), given, name))
        steps.remove_others()
    return ClustersResult(
        model=config.title(model),
        config=config,
        trained=trained,
        untrained=untrained,
        followed=followed,
        given=given,
        values={name: list(values) for name, values in inputs.values.items()},
        shown=shown,
        input_notes=inputs.notes,
    )


@dataclass(frozen=True)
class _Steps:
    """What is done with each model."""

    inputs: Inputs
    config: ClustersConfig
    tokenizer: Any
    progress: bool
    _parts: dict[Path, Parts] = field(default_factory=dict)

    def saved(self, model: Any, folder: Path, **options: Any) -> RowStore:
        """The rows of a model, which is gone again where it was loaded for it."""
        store = self._rows(model, folder, **options)
        gc.collect()  # hooks are cycles: without this, two models would be in memory
        if torch.device(self.config.device).type == "cuda":
            torch.cuda.empty_cache()
        return store

    def _rows(self, model: Any, folder: Path, **options: Any) -> RowStore:
        loaded = self.config.loaded(model, "prompts", tokenizer=self.tokenizer, attention="sdpa", **options)
        with loaded as (hooked, _):
            return save_rows(
                hooked,
                self.inputs.batches,
                folder,
                readout=self.config.readout,
                shard_rows=max(_SHARD_ROWS, len(self.inputs) // _SHARDS),
                progress=self.progress,
            )

    def clusters(self, store: RowStore, what: str, *, keep: bool = False) -> ProbeResult:
        """The states as they are, against each label."""
        config = self.config
        return self._by_layer(store, "raw", what, lambda at: config.clustering(at, config.labels, keep=keep))

    def curves(self, store: RowStore, raw: ProbeResult, given: str | None, what: str) -> Curves:
        """All that is measured of one model."""
        config = self.config
        within = None
        if given is not None:
            left = self.inputs.left(given, config)
            within = self._by_layer(store, "given", f"{what}: given", lambda at: config.clustering(at, left, given))
        folds = config.folds(self.inputs.labels)
        linear = self._by_layer(
            store, "linear", f"{what}: linear", lambda at: config.classifier(at, config.labels, folds)
        )
        return Curves(raw, within, linear)

    def remove_others(self) -> None:
        """Remove what was kept of measurements with other settings."""
        for parts in self._parts.values():
            parts.remove_others()

    def _by_layer(self, store: RowStore, name: str, what: str, probe: Callable[[Sites], Probe]) -> ProbeResult:
        """A probe at one layer after another, so that one layer's rows are in memory."""
        layers = [site.layer for site in resolve(store, residual())]
        parts = self._parts.setdefault(store.folder, Parts(store, self.inputs.index, self.inputs.codes))
        each = [
            parts.measured(name, probe(residual(layer)))
            for layer in (progress_bar(layers, desc=what, unit="layer") if self.progress else layers)
        ]
        found = reduce(ProbeResult.merge, each)
        how = {"tokenization": dict(self.inputs.tokenization)}
        return replace(found, metadata={**found.metadata, **how})


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
) -> Shown | None:
    """What the map shows."""
    if not config.map_prompts:
        return None
    places = torch.arange(len(inputs))
    if len(places) > config.map_prompts:
        places = torch.sort(torch.sort(hashed(inputs.index), stable=True).indices[: config.map_prompts]).values
    sites = [str(site.name) for site in resolve(store, residual())]
    rows = (store.take(inputs.index[places], [f"rows/{site}"])[f"rows/{site}"] for site in sites)

    planes = aligned_planes(rows)
    return Shown(
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
    if estimate.operations is not None and config.quantize is None and config.device_map is None:
        model = matmul_speed(config.device, getattr(torch, config.dtype), width, rows)
    if estimate.measuring is not None:
        statistics = matmul_speed(config.statistics or "cpu", torch.float64, width, 512)
    return model, statistics
