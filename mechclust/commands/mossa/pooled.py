"""Measure a model on the prompts of all seen tasks together: dimensions, a picture, and neighbours by cluster."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from mechclust.commands.mossa.inputs import cluster_of, test_batches
from mechclust.commands.mossa.jobs import ModelJob
from mechclust.commands.mossa.models import ResidentBase
from mechclust.commands.mossa.states import READOUT, block_sites, comparison_device
from mechclust.commands.parts import MeasurementPart, part_path
from mechclust.commands.saved_rows import save_rows_anew
from probes import NDims, NeighbourPurity, ProbeResult, Projection, RowStore, residual, resolve, run_stores
from probes.engine.probe import Probe
from probes.functional import neighbour_purity_chance
from probes.functional.neighbour_purity import nearest_rows, purity_by_query
from probes.store.versions import package_versions
from tasks import Batch
from tasks.text.instructions import InstructionTask

_NEIGHBOURS = 10
_LAYERS_PICTURED = 5
POOLED = "+all"  # folder of these measurements: ``file_name`` gives no task this one


def measure_pooled(resident: ResidentBase, job: ModelJob) -> dict[str, ProbeResult]:
    """Measure a model on all seen tasks together. Return results by measure."""
    config = resident.config
    seen = [task for task in resident.collection.seen if not task.too_few]
    batches = _batches(resident, job, seen)
    arrays: list[Shaped[Tensor, "..."]] = []
    for batch in batches:
        arrays += [batch.index, batch.tokens]
    kind = job.model.kind
    fingerprint = resident.print_of(job.model)
    folder = resident.out / "measured" / POOLED
    stores: dict[str, RowStore] = {}
    parts = []
    probes = _probes(resident, job, seen)
    for name, probe in probes.items():
        path = part_path(folder, f"{kind}.{name}", [fingerprint, repr(probe), str(job.clusters)], arrays)
        parts.append(MeasurementPart(path, name, partial(_run, stores, probe)))
    if "purity" in probes:
        settings = [fingerprint, _NEIGHBOURS, str(job.clusters), str(sorted(job.numbers.items()))]
        path = part_path(folder, f"{kind}.task-purity", settings, arrays)
        parts.append(MeasurementPart(path, "task-purity", partial(_purity_by_task, stores, job.numbers)))
    rows = resident.out / "rows" / POOLED / kind
    lacking = any(part.kept() is None for part in parts)
    if lacking or config.keep_rows:
        stores |= _saved_rows(resident, job, batches, rows)
    results = {part.name: part.found() for part in parts}
    if lacking and not config.keep_rows:
        shutil.rmtree(rows, ignore_errors=True)
    return results


def _saved_rows(resident: ResidentBase, job: ModelJob, batches: Sequence[Batch], rows: Path) -> dict[str, RowStore]:
    """Save the hidden states of all prompts, and return them with those of the tasks in clusters alone."""
    at = block_sites(resident.n_layers)
    with resident.as_model(job.model) as hooked:
        store = save_rows_anew(hooked, batches, rows, at=at, readout=READOUT, labels=("task", "cluster"))
    clusters = store.take(store.index, ["labels/cluster"])["labels/cluster"]
    return {"all": store, "in clusters": store.select(store.index[clusters < job.n_clusters])}


def _batches(resident: ResidentBase, job: ModelJob, tasks: Sequence[InstructionTask]) -> list[Batch]:
    """Return the prompts of all tasks, with their clusters as labels."""
    config = resident.config
    clusters = torch.tensor(job.clusters)
    batches = test_batches(tasks, config.n_shown, resident.format, config.tokens_per_batch, job.numbers)
    return [replace(batch, labels={**batch.labels, "cluster": clusters[batch.labels["task"]]}) for batch in batches]


def _probes(resident: ResidentBase, job: ModelJob, tasks: Sequence[InstructionTask]) -> dict[str, Probe]:
    """Return the probes. Neighbours are counted only for enough prompts of several clusters."""
    config = resident.config
    n_layers = resident.n_layers
    at = block_sites(n_layers)
    pictured = sorted({max(1, round(n_layers * k / _LAYERS_PICTURED)) for k in range(1, _LAYERS_PICTURED + 1)})
    probes: dict[str, Probe] = {
        "dims": NDims(at=at, readout=READOUT, **comparison_device(resident)),
        "projection": Projection("cluster", at=residual(pictured), readout=READOUT, max_rows=None, seed=config.seed),
    }
    in_clusters = [task for task in tasks if job.clusters[job.numbers[task.name]] < job.n_clusters]
    prompts = sum(min(config.n_shown, len(task.test)) for task in in_clusters)
    if len(set(map(cluster_of, in_clusters))) > 1 and prompts > _NEIGHBOURS:
        probes["purity"] = NeighbourPurity(
            at=at, readout=READOUT, label="cluster", k=_NEIGHBOURS, **comparison_device(resident)
        )
    return probes


def _run(stores: Mapping[str, RowStore], probe: Probe) -> ProbeResult:
    return run_stores(stores["in clusters" if isinstance(probe, NeighbourPurity) else "all"], probe)


def _purity_by_task(stores: Mapping[str, RowStore], numbers: Mapping[str, int]) -> ProbeResult:
    return purity_by_task(stores["in clusters"], {number: name for name, number in numbers.items()}, _NEIGHBOURS)


def purity_by_task(store: RowStore, names: Mapping[int, str], k: int) -> ProbeResult:
    """Return the share of each prompt's ``k`` nearest neighbours in its task's cluster (Euclidean), by site and task.

    Args:
        store: hidden states of all tasks' prompts, with the labels ``task`` and ``cluster``.
        names: names of the tasks, by number.
        k: number of neighbours.

    Returns:
        ``purity`` (site, task), and ``chance``: the share for neighbours drawn at random.
    """
    labels = store.take(store.index, ["labels/task", "labels/cluster"])
    tasks = labels["labels/task"]
    clusters = labels["labels/cluster"]
    numbers = sorted(set(tasks.tolist()))
    rows: list[Sequence[float]] = []
    for site in store.sites:
        x = store.take(store.index, [f"rows/{site}"])[f"rows/{site}"]
        shares = purity_by_query(nearest_rows(x, k), clusters)
        rows.append([float(np.mean(shares[(tasks == task).numpy()])) for task in numbers])
    return ProbeResult(
        "PurityByTask",
        {
            "purity": torch.tensor(rows, dtype=torch.float64),
            "chance": torch.tensor(neighbour_purity_chance(clusters), dtype=torch.float64),
        },
        {"purity": ("site", "task"), "chance": ()},
        {"site": list(store.sites), "task": [names[task] for task in numbers]},
        {site.name: site.layer for site in resolve(store, list(store.sites))},
        metadata={"n": len(store.index), "k": k, "versions": package_versions()},
    )
