"""Measure saved hidden states layer by layer, in parts that are kept when the command is interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.layers import layers_that_fit
from mechclust.commands.parts import MeasurementPart, RunOnStores, merged_results, probe_part, remove_others
from mechclust.report.text import GIB
from probes import CKA, NDims, Probe, ProbeResult, RowStore, residual, resolve, run_stores
from probes.engine.sites import Selector

ALL = "(all)"
"""Label of all prompts together."""
MIN_LAYER_GROUPS = 8
"""Parts that each measure is split into, if there are as many layers."""

_OF_ALL_PROMPTS_TOO = ("cka", "blocks", "n_dims")

PromptsOf = Mapping[str, Int[Tensor, "_"]]
"""Indices of prompts, by task."""


@dataclass(frozen=True)
class SavedRows:
    """Hidden states of all compared models.

    Attributes:
        pair: of the ``"tuned"`` and the ``"base"`` model, on all prompts.
        controls: by task, of the model tuned on it, on its prompts.
        of_task: each task's prompts.
    """

    pair: Mapping[str, RowStore]
    controls: Mapping[str, RowStore]
    of_task: PromptsOf


def results_by_layer(
    rows: SavedRows,
    config: CompareConfig,
    folder: Path,
    metadata: Mapping[str, Any],
    *,
    blocks: SavedRows | None = None,
    progress: bool = False,
) -> tuple[dict[str, ProbeResult], dict[str, dict[str, ProbeResult]]]:
    """Compare layers of base and tuned model, and of the controls with both.

    Args:
        rows: the hidden states.
        config: the settings.
        folder: keeps parts in ``measured``. Other parts there are removed.
        metadata: added to every result's metadata.
        blocks: the blocks' additions to the base's residual stream, of base and tuned model.
        progress: show a progress bar.

    Returns:
        The measures of the pair by attribute of ``CompareResult``, and by task CKA of its control with ``"tuned"`` and
        ``"base"``.
    """
    kept = folder / "measured"
    parts: dict[tuple[str, str], list[MeasurementPart]] = {}  # by task of a control, if it is one, and measure or model
    for layers in _layers_at_once(rows, config):
        for measure, part in _pair_parts(layers, rows, config, kept):
            parts.setdefault(("", measure), []).append(part)
        for task, model, part in _control_parts(layers, rows, config, kept):
            parts.setdefault((task, model), []).append(part)
    if blocks is not None:
        parts["", "blocks"] = [_blocks_part(layers, blocks, config, kept) for layers in _layers_at_once(blocks, config)]
    title = "comparing layers"
    results = merged_results(parts, config, folder, title, metadata=metadata, progress=progress)
    remove_others(kept, {part.path for part in chain.from_iterable(parts.values())})
    of_pair: dict[str, ProbeResult] = {}
    of_controls: dict[str, dict[str, ProbeResult]] = {}
    for (task, name), result in results.items():
        if task:
            of_controls.setdefault(task, {})[name] = name_labels(result, task)
        else:
            of_pair[name] = name_labels(result, ALL, *rows.of_task) if name in _OF_ALL_PROMPTS_TOO else result
    return of_pair, of_controls


def _pair_parts(
    layers: Selector, rows: SavedRows, config: CompareConfig, folder: Path
) -> Iterator[tuple[str, MeasurementPart]]:
    """Yield the parts of all measures of base and tuned model at these layers."""
    settings = ["", list(rows.of_task)]
    arrays = [*rows.of_task.values()]
    for measure, probe in _probes(layers, rows, config).items():
        run: RunOnStores = partial(_run_by_task, rows.of_task) if measure == "without_top_pc" else run_stores
        yield measure, probe_part(folder, measure, probe, rows.pair, settings=settings, arrays=arrays, run=run)


def _blocks_part(layers: Selector, blocks: SavedRows, config: CompareConfig, folder: Path) -> MeasurementPart:
    """Return the part of CKA between the additions of corresponding blocks in both models."""
    settings = ["", list(blocks.of_task)]
    return probe_part(
        folder,
        "blocks",
        _cka(layers, config),
        blocks.pair,
        settings=settings,
        arrays=blocks.of_task.values(),
    )


def _cka(layers: Selector, config: CompareConfig) -> CKA:
    """Return CKA of base and tuned model, layer by layer."""
    return CKA(
        layers,
        config.readout,
        label="task",
        units=config.unit_label,
        n_resamples=config.n_resamples,
        n_permutations=config.n_permutations,
        seed=config.seed,
        max_memory=config.max_memory,
    )


def _control_parts(
    layers: Selector, rows: SavedRows, config: CompareConfig, folder: Path
) -> Iterator[tuple[str, str, MeasurementPart]]:
    """Yield the parts of CKA of each control with both models at these layers, over the prompts of its task."""
    probe = CKA(
        layers,
        config.readout,
        units=config.unit_label,
        n_resamples=config.n_resamples,
        seed=config.seed,
        max_memory=config.max_memory,
    )
    arrays = [*rows.of_task.values()]
    for task, control in rows.controls.items():
        settings = [task, list(rows.of_task)]
        for model, store in rows.pair.items():
            stores = {"control": control, model: store.select(control.index)}
            yield task, model, probe_part(folder, f"control-{model}", probe, stores, settings=settings, arrays=arrays)


def _probes(layers: Selector, rows: SavedRows, config: CompareConfig) -> dict[str, Probe]:
    """Return the requested probes."""
    options: dict[str, Any] = {"readout": config.readout, "max_memory": config.max_memory}
    probes: dict[str, Probe] = {"cka": _cka(layers, config)}
    if config.n_dims and rows.controls:  # only layer groups use it
        probes["n_dims"] = NDims(layers, label="task", **options)
    if config.top_pc:
        probes["without_top_pc"] = CKA(layers, **options, form="rows", remove_top=1, units=config.unit_label)
    return probes


def _layers_at_once(rows: SavedRows, config: CompareConfig) -> list[Selector]:
    """Return groups of layers that fit in memory."""
    tuned = rows.pair["tuned"]
    layers = [site.layer for site in resolve(tuned, residual()) if site.name in tuned.sites]
    groups = layers_that_fit(
        layers,
        _largest_width(tuned),
        _largest_width(rows.pair["base"]),
        len(tuned),
        config.max_memory * GIB / config.at_once,
        most=max(1, -(-len(layers) // MIN_LAYER_GROUPS)),
    )
    return [residual(group) for group in groups]


def _largest_width(store: RowStore) -> int:
    return max(x.shape[1] for x in store.take(store.index[:1], [f"rows/{site}" for site in store.sites]).values())


def _run_by_task(of_task: PromptsOf, pair: Mapping[str, RowStore], probe: Probe) -> ProbeResult:
    """Run a probe on one task after another: on all prompts at once the cost is quadratic in their number."""
    results = []
    for task, index in of_task.items():
        part = {name: store.select(index) for name, store in pair.items()}
        results.append(name_labels(run_stores(part, probe), task))
    return replace(reduce(ProbeResult.merge, results), notes=[])


def name_labels(result: ProbeResult, *labels: str) -> ProbeResult:
    """Name the labels, which a probe knows by number."""
    return replace(result, coords={**result.coords, "label": list(labels)}, notes=[])
