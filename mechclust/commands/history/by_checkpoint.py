"""Cluster the saved hidden states of each checkpoint, and compare checkpoints, in parts that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from mechclust.commands.history.checkpoint_job import CheckpointJob
from mechclust.commands.history.config import AGAINST, HistoryConfig
from mechclust.commands.parts import MeasurementPart, merged_results, probe_part
from probes import Probe, ProbeResult, RowStore, load_result, residual, resolve

ByCheckpoint = dict[int, ProbeResult]
"""Results by the checkpoint's position in the series."""


def results_by_checkpoint(
    jobs: Sequence[CheckpointJob], config: HistoryConfig, folder: Path, *, progress: bool = False
) -> dict[str, ByCheckpoint]:
    """Read the results of the probes that needed a model, and measure the saved hidden states.

    Args:
        jobs: the checkpoints, which have run.
        config: the settings.
        folder: folder of the checkpoints. Each keeps its parts in ``measured``.
        progress: show a progress bar.

    Returns:
        The results, by name of the measure.
    """
    parts: dict[tuple[str, int], list[MeasurementPart]] = {}
    if "cka" in config.measured:
        parts |= _cka_parts(jobs, config)
    if "clusters" in config.measured:
        parts |= _cluster_parts(jobs, config)
    results: dict[str, ByCheckpoint] = {}
    title = "clusters and CKA"
    merged = merged_results(parts, config, folder, title, metadata={}, notes=True, progress=progress)
    for (name, i), result in merged.items():
        results.setdefault(name, {})[i] = result
    for name in ("heads", "topics", *config.others):
        if name in config.measured:
            results[name] = {i: load_result(job.result_path(name)) for i, job in enumerate(jobs)}
    return results


def _cluster_parts(
    jobs: Sequence[CheckpointJob], config: HistoryConfig
) -> dict[tuple[str, int], list[MeasurementPart]]:
    """Return a part for each layer of each checkpoint."""
    parts: dict[tuple[str, int], list[MeasurementPart]] = {}
    for i, job in enumerate(jobs):
        rows = job.rows
        for site in resolve(rows, residual()):
            probe = config.clustering(residual(site.layer))
            part = _part(job, f"clusters-{site.layer}", probe, {"checkpoint": rows})
            parts.setdefault(("clusters", i), []).append(part)
    return parts


def _cka_parts(jobs: Sequence[CheckpointJob], config: HistoryConfig) -> dict[tuple[str, int], list[MeasurementPart]]:
    """Return a part for each checkpoint and each other one that it is compared with, if their layers match."""
    stores = [job.rows for job in jobs]
    parts = {}
    for against, i in product(AGAINST, range(len(jobs))):
        other = _other(against, i, len(jobs))
        if other is not None and stores[i].sites == stores[other].sites:
            pair = {"checkpoint": stores[i], "other": stores[other]}
            parts[f"cka_{against}", i] = [_part(jobs[i], f"cka_{against}", config.cka, pair)]
    return parts


def _other(against: str, i: int, n: int) -> int | None:
    """Return the position of the checkpoint to compare with."""
    if against == "previous":
        return i - 1 if i else None
    return n - 1 if against == "last" else 0


def _part(job: CheckpointJob, name: str, probe: Probe, stores: Mapping[str, RowStore]) -> MeasurementPart:
    # The digest of the prompts is also of their tasks.
    settings = [job.inputs.prompts_digest, job.inputs.units_digest]
    return probe_part(job.folder / "measured", name, probe, stores, subject=job.folder.name, settings=settings)
