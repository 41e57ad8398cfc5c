"""What the hidden states of a user's own model cluster by on a user's own prompts, layer by layer."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechclust.commands.clusters.config import FOLDS, ClustersConfig
from mechclust.commands.clusters.estimate import Estimate, matmul_speed
from mechclust.commands.clusters.follow import what_clusters_follow
from mechclust.commands.clusters.inputs import Inputs, read_inputs
from mechclust.commands.clusters.labelled import Labelled
from mechclust.commands.clusters.result import ClustersResult, Curves, Shown
from mechclust.jobs import progress_bar
from mechclust.models.pretrained import AnyModel
from mechclust.report.folder import check_writable
from probes import ProbeResult, RowStore, residual, resolve, run_stores, save_rows
from probes.functional.planes import aligned_planes
from probes.probe import Probe
from probes.sites import Sites
from probes.state import hashed


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
        check_writable(Path(out))
    inputs = read_inputs(model, config, tokenizer)
    estimate = Estimate.of(inputs.batches, inputs.sizes, 1 + config.untrained, getattr(torch, config.dtype))
    estimate.check(config.max_memory)
    if progress:
        print(estimate.text(_speed(estimate, inputs, config)), file=sys.stderr)
    steps = _Steps(inputs, config, tokenizer, progress)
    with _folder(out) as rows:
        store = steps.saved(model, rows / "trained")
        raw = steps.clusters(store, "clusters", keep=True)
        layers, clusters = [raw.layers[site] for site in raw.coords["site"]], _clusters(raw)
        followed = what_clusters_follow(
            clusters, layers, inputs.labels, inputs.features, n_permutations=config.n_permutations, seed=config.seed
        )
        given = _given(config, inputs, followed.best(config.labels))
        trained = steps.curves(store, raw, given, "this model")
        shown = _shown(store, inputs, clusters, layers, config)
        untrained = []
        for seed in range(config.untrained):
            name = f"untrained-seed{seed}"
            fresh = steps.saved(model, rows / name, untrained=True, seed=seed)
            untrained.append(steps.curves(fresh, steps.clusters(fresh, f"{name}: clusters"), given, name))
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
            return save_rows(hooked, self.inputs.batches, folder, readout=self.config.readout, progress=self.progress)

    def clusters(self, store: RowStore, what: str, *, keep: bool = False) -> ProbeResult:
        """The states as they are, against each label."""
        config = self.config
        return self._by_layer(store, what, lambda at: config.clustering(at, config.labels, keep=keep))

    def curves(self, store: RowStore, raw: ProbeResult, given: str | None, what: str) -> Curves:
        """All that is measured of one model."""
        config = self.config
        within = None
        if given is not None:
            left = self.inputs.left(given, config)
            within = self._by_layer(store, f"{what}: given", lambda at: config.clustering(at, left, given))
        largest = max(Counter(self.inputs.labels["task"]).values())
        folds = min(FOLDS, largest)
        linear = self._by_layer(store, f"{what}: linear", lambda at: config.classifier(at, config.labels, folds))
        return Curves(raw, within, linear)

    def _by_layer(self, store: RowStore, what: str, probe: Callable[[Sites], Probe]) -> ProbeResult:
        """A probe at one layer after another, so that one layer's rows are in memory."""
        layers = [site.layer for site in resolve(store, residual())]
        labelled = Labelled(store, self.inputs.index, self.inputs.codes)
        parts = [
            run_stores(labelled, probe(residual(layer)))
            for layer in (progress_bar(layers, desc=what, unit="layer") if self.progress else layers)
        ]
        found = reduce(ProbeResult.merge, parts)
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


def _clusters(raw: ProbeResult) -> np.ndarray:
    """``[layers n]`` the cluster of each prompt, where there are as many as tasks, or as were asked for first."""
    found = raw.sel("cluster", label="task")
    if found.ndim == 3:
        found = found[:, 0]
    return found.numpy()


def _given(config: ClustersConfig, inputs: Inputs, best: str | None) -> str | None:
    """What is taken out of the states."""
    if config.given == "none":
        return None
    if config.given != "auto":
        return config.given
    return best if best is not None and best != "task" and "task" in inputs.left(best, config) else None


def _shown(
    store: RowStore, inputs: Inputs, clusters: np.ndarray, layers: Sequence[int], config: ClustersConfig
) -> Shown:
    """What the map shows."""
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


def _speed(estimate: Estimate, inputs: Inputs, config: ClustersConfig) -> float | None:
    """Of the device, where an estimate of time needs it."""
    if estimate.operations is None or config.quantize is not None or config.device_map is not None:
        return None
    rows = min(512, config.tokens_per_batch)
    return matmul_speed(config.device, getattr(torch, config.dtype), inputs.sizes.d_model or 1, rows)
