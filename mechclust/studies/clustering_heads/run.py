"""Runs the clustering-head study's jobs: trains ensembles, measures their networks, keeps the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mechclust.studies.clustering_heads.config import (
    CURRICULUM,
    HEAD,
    PARTS,
    SOLVED,
    TRANSFER,
    Arm,
    ClusteringHeadsConfig,
    EnsembleJob,
    arms,
    jobs,
    member_of,
    training_of,
)
from mechclust.studies.clustering_heads.curriculum import run_curriculum
from mechclust.studies.clustering_heads.donors import donors_by
from mechclust.studies.clustering_heads.dynamics import dynamics, measured_rows, task_of
from mechclust.studies.clustering_heads.ideal import started
from mechclust.studies.clustering_heads.lattices import on_plane
from mechclust.studies.clustering_heads.replay import replay
from mechclust.studies.clustering_heads.saddle import curvature, worth_measuring
from mechclust.studies.clustering_heads.stitching import stitching
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import kept, once
from mechclust.training import Snapshots, accuracy, train_ensemble
from probes import ClusteringHead, HookedModel, ProbeResult, run
from probes.engine.identity import fingerprint
from tasks import Batch


def run_job(config: ClusteringHeadsConfig, job: EnsembleJob, out: Path) -> None:
    """Make a job's artefacts in ``out``, or resume where an interrupted call stopped."""
    if job.arms[0] == CURRICULUM:
        run_curriculum(config, job, out)
        return
    known, done = arms(config), job.result(out)
    pairs = [(known[name], seed) for name in job.arms for seed in job.seeds]
    first = pairs[0][0]
    snapshots = _trained(config, pairs, out / "models" / job.name, job.name)
    for i, (arm, seed) in enumerate(pairs):
        path = out / "results" / arm.name / f"seed{seed}"
        if arm.measure == "all":
            _measure_head(snapshots, i, path)
        elif arm.measure == "head":
            _measure_end(snapshots, i, path)
        elif arm.measure != "end":
            measure = partial(dynamics, snapshots, i, brief=arm.measure == "losses")
            of = fingerprint(snapshots.model(i))
            seen = once(path.with_suffix(".dynamics.safetensors"), measure, of)
            if arm.measure == "gradients" and config.full_batch.curvature:
                at = worth_measuring(seen["train_loss"].numpy(), config.task.p, config.full_batch.curvature)
                once(path.with_suffix(".curvature.safetensors"), partial(curvature, snapshots, i, at), of)
    models = _fingerprints(pairs, snapshots)
    final = kept(done, models) or _final(pairs, snapshots)
    if first.name == "base" and config.transfer:
        _transfer(config, job, snapshots, final, out)
    once(done, lambda: final, models)  # written last, since it marks the job as done


def _trained(
    config: ClusteringHeadsConfig,
    pairs: Sequence[tuple[Arm, int]],
    folder: Path,
    name: str,
    weights: Mapping[int, Mapping[str, Tensor]] = {},
) -> Snapshots:
    first = pairs[0][0]
    training = training_of(config, first)
    members = [
        started(member_of(config, arm, seed, weights.get(seed)), arm.scales, arm.ideal, config.starts.beta)
        for arm, seed in pairs
    ]
    every = training.steps if first.measure == "end" else first.every
    return train_ensemble(
        members, training, folder, snapshot_every=every, device=config.device, progress=True, name=name
    )


def _measure_end(snapshots: Snapshots, member: int, path: Path) -> None:
    """The head at the end of training."""
    task, model = task_of(snapshots, member), snapshots.model(member)
    probe = ClusteringHead(("multiset", "sum"), support=task.positions, modulus=task.p)
    once(
        path.with_suffix(".head.safetensors"), lambda: run(model, measured_rows(task).batch, probe), fingerprint(model)
    )


def _measure_head(snapshots: Snapshots, member: int, path: Path) -> None:
    """The head before and after training, and the whole training measured with the final clusters.

    Also networks stitched from two epochs, replayed spikes, and donors with a different sum.
    """
    task = task_of(snapshots, member)
    model, untrained = snapshots.model(member), snapshots.model(member, 0)
    paths = {name: path.with_suffix(f".{name}.safetensors") for name in PARTS}
    of = {**dict.fromkeys(PARTS, fingerprint(model)), "untrained": fingerprint(untrained)}
    if all(kept(paths[name], of[name]) is not None for name in PARTS):
        return
    batch = measured_rows(task).batch
    probe = ClusteringHead(("multiset", "sum"), support=task.positions, modulus=task.p)
    once(paths["untrained"], lambda: run(untrained, batch, probe), of["untrained"])
    measured = run(model, batch, probe)  # also gives the partition, which the probe keeps
    head = once(paths["head"], lambda: measured, of["head"])
    clusters = head_classes(probe, head)
    seen = once(paths["dynamics"], lambda: dynamics(snapshots, member, clusters), of["dynamics"])
    once(paths["stitching"], lambda: stitching(snapshots, member), of["stitching"])
    once(paths["replay"], lambda: replay(snapshots, member, seen), of["replay"])
    classes = {"head": clusters, "sum": batch.label("sum")}
    once(paths["donors"], lambda: donors_by(model, batch, classes, seed=task.seed), of["donors"])


def head_classes(probe: ClusteringHead, head: ProbeResult) -> Tensor:
    """``[n]`` the clusters of a head, by one rule for all networks, solved or not.

    The points of its planar lattice if it has one and no integer weights; otherwise the integer sums, even if these
    are far from integers; the support's multiset if no integer weights can be fitted at all.
    """
    if on_plane(head) and not bool(head["integer_head"]):
        return probe.planar_fit(HEAD, 0).classes
    if bool(head["integer_deviation"].isnan()):
        return probe.classes.get("multiset")[1]
    return probe.partition(HEAD, 0)[1]


def _fingerprints(pairs: Sequence[tuple[Arm, int]], snapshots: Snapshots) -> dict[str, str]:
    """Every network of a job at the end of training, by its name in the result."""
    return {_network(*pair): fingerprint(snapshots.model(i)) for i, pair in enumerate(pairs)}


def _network(arm: Arm, seed: int) -> str:
    return f"{arm.name}|{seed}"


def _final(pairs: Sequence[tuple[Arm, int]], snapshots: Snapshots) -> ProbeResult:
    """Final accuracies of every network of a job."""
    found = []
    for i, task in enumerate(snapshots.tasks):
        model = snapshots.model(i)
        found.append([accuracy(model, task, split)[0] for split in ("train", "test")])
    return ProbeResult(
        "Accuracy",
        {"accuracy": torch.tensor(found, dtype=torch.float64)},
        {"accuracy": ("network", "split")},
        {"network": [_network(*pair) for pair in pairs], "split": ["train", "test"]},
        metadata={"backend": snapshots.backend},
    )


def _transfer(
    config: ClusteringHeadsConfig, job: EnsembleJob, snapshots: Snapshots, final: ProbeResult, out: Path
) -> None:
    """Networks that solved p continue on p + 1 with all their weights and a fresh optimiser."""
    solved = [i for i, value in enumerate(final.sel("accuracy", split="test").tolist()) if value > SOLVED]
    if not solved:
        return
    at_end = snapshots.at(snapshots.steps[-1])
    weights = {job.seeds[i]: {name: values[i] for name, values in at_end.items()} for i in solved}
    arm, name = Arm(TRANSFER, tuple(weights), config.task.p + 1), f"transfer-from-{job.name}"
    pairs = [(arm, seed) for seed in weights]
    trained = _trained(config, pairs, out / "models" / name, name, weights)
    for i, seed in enumerate(weights):
        _measure_end(trained, i, out / "results" / TRANSFER / f"seed{seed}")
    once(
        out / "results" / "final" / f"{name}.safetensors", lambda: _final(pairs, trained), _fingerprints(pairs, trained)
    )


def trained_models(config: ClusteringHeadsConfig, out: Path) -> list[TrainedModel]:
    """The networks of the base setting."""
    base = [job for job in jobs(config) if job.arms == ("base",)]
    return [
        TrainedModel(f"base-seed{seed}", partial(_trained_model, out / "models" / job.name, member))
        for job in base
        for member, seed in enumerate(job.seeds)
    ]


def _trained_model(folder: Path, member: int) -> tuple[HookedModel, Iterable[Batch]]:
    snapshots = Snapshots(folder)
    return snapshots.model(member), [measured_rows(task_of(snapshots, member)).batch]
