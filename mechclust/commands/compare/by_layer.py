"""Measure saved hidden states layer by layer, in parts that are kept when the command is interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.parts import MeasurementPart, RunOnStores, merged_results, probe_part, remove_others
from probes import CKA, Probe, ProbeResult, RowStore, residual, resolve, run_stores
from probes.engine.sites import Selector

ALL = "(all)"
"""Label of all prompts together."""

PromptsOf = Mapping[str, Int[Tensor, "_"]]
"""Indices of prompts, by task."""


@dataclass(frozen=True)
class SavedRows:
    """Hidden states of both models.

    Attributes:
        pair: of the ``"tuned"`` and the ``"base"`` model.
        of_task: each task's prompts.
    """

    pair: Mapping[str, RowStore]
    of_task: PromptsOf


def results_by_layer(
    rows: SavedRows,
    config: CompareConfig,
    folder: Path,
    metadata: Mapping[str, Any],
    *,
    blocks: SavedRows | None = None,
    progress: bool = False,
) -> dict[str, ProbeResult]:
    """Compare layers of base and tuned model.

    Args:
        rows: the hidden states.
        config: the settings.
        folder: keeps parts in ``measured``. Other parts there are removed.
        metadata: added to every result's metadata.
        blocks: the blocks' additions to the base's residual stream, of base and tuned model.
        progress: show a progress bar.

    Returns:
        The measures by attribute of ``CompareResult``.
    """
    kept = folder / "measured"
    parts = {"cka": [_cka_part("cka", layer, rows, config, kept) for layer in _layers(rows)]}
    if config.top_pc:
        parts["without_top_pc"] = [_top_pc_part(layer, rows, config, kept) for layer in _layers(rows)]
    if blocks is not None:
        parts["blocks"] = [_cka_part("blocks", layer, blocks, config, kept) for layer in _layers(blocks)]
    title = "comparing layers"
    results = merged_results(parts, config, folder, title, metadata=metadata, progress=progress)
    remove_others(kept, {part.path for part in chain.from_iterable(parts.values())})
    for measure in results.keys() - {"without_top_pc"}:  # whose labels are named, as it is run task by task
        results[measure] = name_labels(results[measure], ALL, *rows.of_task)
    return results


def _part(measure: str, probe: Probe, rows: SavedRows, folder: Path, run: RunOnStores) -> MeasurementPart:
    """Return the part of one measure of base and tuned model."""
    tasks = [*rows.of_task]
    return probe_part(folder, measure, probe, rows.pair, settings=[tasks], arrays=rows.of_task.values(), run=run)


def _cka_part(measure: str, layer: Selector, rows: SavedRows, config: CompareConfig, folder: Path) -> MeasurementPart:
    """Return the part of CKA at a layer, over the prompts of each task and over all."""
    probe = CKA(
        layer,
        config.readout,
        label="task",
        units=config.unit_label,
        n_resamples=config.n_resamples,
        n_permutations=config.n_permutations,
        seed=config.seed,
        max_memory=config.max_memory,
    )
    return _part(measure, probe, rows, folder, run_stores)


def _top_pc_part(layer: Selector, rows: SavedRows, config: CompareConfig, folder: Path) -> MeasurementPart:
    """Return the part of CKA without the largest principal component of each side, over the prompts of each task."""
    probe = CKA(
        layer,
        config.readout,
        form="rows",
        remove_top=1,
        units=config.unit_label,
        max_memory=config.max_memory,
    )
    return _part("without_top_pc", probe, rows, folder, partial(_run_by_task, rows.of_task))


def _layers(rows: SavedRows) -> list[Selector]:
    """Return each layer's selector."""
    tuned = rows.pair["tuned"]
    return [residual([site.layer]) for site in resolve(tuned, residual()) if site.name in tuned.sites]


def _run_by_task(of_task: PromptsOf, pair: Mapping[str, RowStore], probe: Probe) -> ProbeResult:
    """Run a probe on one task after another: on all prompts at once the cost is quadratic in their number."""
    results = []
    for task, index in of_task.items():
        part = {name: store.select(index) for name, store in pair.items()}
        results.append(name_labels(run_stores(part, probe), task))
    return reduce(ProbeResult.merge, results)


def name_labels(result: ProbeResult, *labels: str) -> ProbeResult:
    """Name the labels, which a probe knows by number."""
    return replace(result, coords={**result.coords, "label": list(labels)})
