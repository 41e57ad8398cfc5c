"""Measure which labels hidden states cluster by: prompts, hidden states, measures by layer, result."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechclust.commands.clusters.config import ClustersConfig
from mechclust.commands.clusters.estimate import Estimate, device_speeds
from mechclust.commands.clusters.follow import Followed, what_clusters_follow
from mechclust.commands.clusters.inputs import Inputs, check_same_rows, read_inputs
from mechclust.commands.clusters.measurements import MapContents, ModelCurves
from mechclust.commands.clusters.result import ClustersResult
from mechclust.commands.cost import Cost
from mechclust.commands.folder import folder_or_temporary, own_folder
from mechclust.commands.parts import MeasurementPart, merged_results, probe_part, remove_others, shard_rows
from mechclust.commands.sampling import draw_prompts
from mechclust.commands.saved_rows import Checkpoint, rows_errors, saved_rows
from mechclust.commands.units import NONE
from mechclust.jobs import save_rows_sharded
from mechclust.models.pretrained import AnyModel
from mechclust.models.resolved import ResolvedModel
from mechclust.report.folder import check_folder, save_folder_results
from probes import LinearDecodability, Probe, ProbeResult, RowStore, Selector, TaskClusterARI, residual, resolve
from probes.functional.planes import aligned_planes
from probes.store.digest import digest_of

_TRAINED = "trained"


def measure_clusters(
    model: AnyModel,
    config: ClustersConfig,
    out: str | Path | None = None,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> ClustersResult:
    """Measure which labels k-means clusters of hidden states follow, and how the task compares, at every layer.

    One model is in memory at a time: its hidden states are saved in ``out/rows`` and measured layer by layer. A second
    call with this ``out`` does not run saved prompts again. With ``config.workers`` or a Ray cluster, the prompts, the
    untrained models and the layers are spread over several processes. The results do not depend on that.

    Args:
        model: hub name or local directory, or a loaded model: Hugging Face's, or one from ``load_pretrained``.
        config: the settings.
        out: folder for the hidden states, or ``None`` for a temporary one, which is deleted afterwards.
        tokenizer: tokenizer of a loaded Hugging Face model.
        progress: print an estimate of the cost first, and show progress bars.

    Raises:
        InputError: before any weights are loaded, for bad settings or prompts, a ``given`` label that determines the
            task, too little memory, or a model in memory for several processes. Also for an ``out`` that another
            process uses or that holds measurements of another model, other prompts or another position. Later, for a
            model that cannot be loaded, too little disk, or an ``out`` with hidden states of other weights.

    Example:
        >>> result = measure_clusters("gpt2", ClustersConfig(Path("prompts.jsonl")), "runs/clusters")  # doctest: +SKIP
        >>> result.headline, result.to_dataframe(), result.features  # doctest: +SKIP
    """
    if out is not None:
        check_folder(Path(out), "clusters")
    resolved = config.resolve(model)
    inputs = read_inputs(resolved, config, tokenizer)
    config = replace(config, units=inputs.units.label or NONE)
    config.check_shared(resolved)
    estimate = Estimate.from_inputs(inputs, config, resolved.source if resolved.in_memory else None)
    if progress:
        speeds = device_speeds(estimate, inputs, config)
        print(estimate.text(*speeds, shared=not config.here), file=sys.stderr)
        fewer = "fewer prompts (--max-rows), --n-permutations, --n-resamples, --n-shuffles or --n-init"
        Cost(estimate.seconds(*speeds), estimate.drawing.memory).check(config, fewer)
    subject = {"model": resolved.portable.title, "texts": digest_of(inputs.texts)}
    with folder_or_temporary(out) as folder, rows_errors("--max-rows"):
        rows = folder / "rows"
        estimate.check(config.max_memory, folder, rows, config.at_once)
        with own_folder(out, "clusters", None if any(rows.glob("*/shard-*")) else subject):
            if out is not None:
                check_same_rows(inputs, config.readout, folder, rows)
            if progress:
                print(inputs.units.sentence, file=sys.stderr)
            rows = rows if config.here else rows.absolute()  # for processes in other folders
            stores = _save_states(resolved, inputs, config, tokenizer, rows, progress=progress)
            result = _measure(resolved.title, stores, inputs, config, rows, progress=progress)
            if out is not None:
                save_folder_results(out, "clusters", result.results, subject)
    return result


def _save_states(
    model: ResolvedModel, inputs: Inputs, config: ClustersConfig, tokenizer: Any, rows: Path, *, progress: bool
) -> dict[str, RowStore]:
    """Save the hidden states of the model and of copies with random weights.

    Return them with the prompts' labels.
    """
    trained = Checkpoint(_TRAINED, model, config.device, config.dtype, tokenizer=tokenizer)
    checkpoints = [trained]
    for seed in range(config.untrained):
        copied = replace(trained, role=f"untrained-seed{seed}", model=model.without_adapter, untrained=seed)
        checkpoints.append(copied)
    if not config.here:  # several workers share the prompts of the model
        save_rows_sharded(
            partial(config.load, model.portable, "prompts", tokenizer=tokenizer, attention="sdpa"),
            inputs.batches,
            rows / _TRAINED,
            readout=config.readout,
            shard_rows=shard_rows(len(inputs), shared=True),
            progress=progress,
            **config.on,
        )
    to_save = checkpoints if config.here else checkpoints[1:]
    saved_rows(to_save, inputs.batches, config, config.readout, [], rows, progress=progress)
    return {each.role: RowStore(rows / each.role).with_labels(inputs.codes) for each in checkpoints}


def _measure(
    title: str,
    stores: Mapping[str, RowStore],
    inputs: Inputs,
    config: ClustersConfig,
    folder: Path,
    *,
    progress: bool,
) -> ClustersResult:
    """Cluster the hidden states, find the label they follow, remove it, and fit the linear classifier."""
    runner = _LayerRunner(stores, inputs, config, folder, progress)
    sites = [residual(layer) for layer in runner.layers]
    raw = runner.run({"raw": [config.clustering(site, config.labels, keep=True) for site in sites]})["raw"]
    followed = _follow(raw, runner.layers, inputs, config)
    given = _choose_given(config, inputs, followed.besides_task(config.labels))
    results = runner.run(_further_probes(sites, given, inputs, config))
    runner.remove_others()
    curves = {}
    for name in stores:
        further = {measure: by_model[name] for measure, by_model in results.items()}
        curves[name] = ModelCurves(raw[name], **further)
    return ClustersResult(
        model=title,
        config=config,
        trained=curves.pop(_TRAINED),
        untrained=list(curves.values()),
        followed=followed,
        given=given,
        values=inputs.values,
        shown=_map_contents(stores[_TRAINED], inputs, raw[_TRAINED], runner.layers, config.map_prompts),
        input_notes=inputs.notes,
        one_template=inputs.units.with_one(inputs.labels["task"]),
    )


def _further_probes(
    sites: Sequence[Selector], given: str | None, inputs: Inputs, config: ClustersConfig
) -> dict[str, Sequence[Probe]]:
    """Return the probes besides the raw clusters: for each measure, one probe per site."""
    probes: dict[str, Sequence[Probe]] = {}
    if given is not None:
        labels = inputs.undetermined(given, config)
        given_config = config if inputs.testable(given, config) else replace(config, units=NONE)
        probes["given"] = [given_config.clustering(site, labels, given) for site in sites]
    folds = config.folds(inputs.labels)
    probes["linear"] = [config.classifier(site, config.labels, folds) for site in sites]
    if inputs.held_out is not None:
        probes["nearest"] = [config.nearest(site) for site in sites]
        probes["held_out"] = [config.nearest(site, inputs.held_out) for site in sites]
    return probes


def _follow(raw: Mapping[str, ProbeResult], layers: Sequence[int], inputs: Inputs, config: ClustersConfig) -> Followed:
    """Compare the clusters of every model with all labels and features."""
    clusters = {model: result.sel("cluster", label="task").numpy() for model, result in raw.items()}
    return what_clusters_follow(
        clusters.pop(_TRAINED),
        layers,
        inputs.labels,
        inputs.features,
        {label: raw[_TRAINED].sel("p_value", label=label).tolist() for label in config.labels},
        inputs.units.codes,
        list(clusters.values()),
    )


@dataclass
class _LayerRunner:
    """Run probes on the hidden states of every model, one layer at a time, in parts that are kept beside the states.

    Attributes:
        stores: hidden states by model.
        inputs: the prompts.
        config: the settings.
        folder: folder that all processes see.
        progress: show progress bars.
        used: files of the parts that were run or read.
    """

    stores: Mapping[str, RowStore]
    inputs: Inputs
    config: ClustersConfig
    folder: Path
    progress: bool
    used: set[Path] = field(default_factory=set)

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers."""
        return [site.layer for site in resolve(self.stores[_TRAINED], residual())]

    def run(self, probes: Mapping[str, Sequence[Probe]]) -> dict[str, dict[str, ProbeResult]]:
        """Return the results by measure and model.

        Args:
            probes: by measure, the probe of each layer.
        """
        groups: dict[tuple[str, str], list[MeasurementPart]] = {}
        for measure, probe_of_layer in probes.items():
            for model in self.stores:
                parts = [self._part(measure, model, *pair) for pair in zip(self.layers, probe_of_layer, strict=True)]
                self.used |= {part.path for part in parts}
                groups[measure, model] = parts
        metadata = {"tokenization": dict(self.inputs.tokenization)}
        title = " and ".join(probes)
        merged = merged_results(
            groups, self.config, self.folder, title, metadata=metadata, notes=True, progress=self.progress
        )
        return {measure: {model: merged[measure, model] for model in self.stores} for measure in probes}

    def _part(self, measure: str, model: str, layer: int, probe: Probe) -> MeasurementPart:
        store = self.stores[model]
        codes = self.inputs.codes
        if model != _TRAINED:
            probe = _without_intervals(probe)
        return probe_part(
            store.folder / "measured",
            measure,
            probe,
            {model: store},
            subject=f"{model}, layer {layer}",
            settings=[list(codes)],
            arrays=codes.values(),
        )

    def remove_others(self) -> None:
        """Remove measurements with other settings or labels."""
        for store in self.stores.values():
            remove_others(store.folder / "measured", self.used)


def _without_intervals(probe: Probe) -> Probe:
    """Return the probe without intervals and shuffles of the classifier, which no table shows of random weights."""
    if isinstance(probe, TaskClusterARI):
        return TaskClusterARI(**{**probe.parameters(), "n_resamples": 0})
    if isinstance(probe, LinearDecodability):
        return LinearDecodability(**{**probe.parameters(), "n_shuffles": 0})
    return probe


def _choose_given(config: ClustersConfig, inputs: Inputs, followed: str | None) -> str | None:
    """Return the label or feature whose means are subtracted: the requested one, or the one that clusters follow."""
    if config.given != "auto":
        return None if config.given == "none" else config.given
    if followed is None or "task" not in inputs.undetermined(followed, config):
        return None
    return followed


def _map_contents(
    store: RowStore, inputs: Inputs, raw: ProbeResult, layers: Sequence[int], most: int
) -> MapContents | None:
    """Return the contents of the map of at most ``most`` prompts, or ``None`` for no map."""
    if not most:
        return None
    index = draw_prompts(inputs.index, most)
    places = torch.searchsorted(inputs.index, index)
    names = [f"rows/{site.name}" for site in resolve(store, residual())]
    planes = aligned_planes(store.take(index, [name])[name] for name in names)
    return MapContents(
        layers=list(layers),
        places=places.tolist(),
        texts=[inputs.texts[i] for i in places.tolist()],
        planes=planes.xy,
        variance=planes.variance,
        clusters=raw.sel("cluster", label="task")[:, places].numpy(),
    )
