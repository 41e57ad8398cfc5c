"""Runs the clustering-head study's jobs: trains ensembles, measures their networks, keeps the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
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
    curriculum_members,
    curriculum_training,
    jobs,
    member_of,
    training_of,
)
from mechclust.studies.clustering_heads.curriculum import run_curriculum
from mechclust.studies.clustering_heads.cut import Weights
from mechclust.studies.clustering_heads.detector import on_plane
from mechclust.studies.clustering_heads.donors import donors_by
from mechclust.studies.clustering_heads.dynamics import accuracies_at_end, measure_dynamics, measured_rows, task_of
from mechclust.studies.clustering_heads.ideal import member_with_start
from mechclust.studies.clustering_heads.replay import replay_spikes
from mechclust.studies.clustering_heads.saddle import measure_curvature, worth_measuring
from mechclust.studies.clustering_heads.stitching import stitching
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import measure_once
from mechclust.studies.trainings import Training
from mechclust.training import Snapshots, train_ensemble
from probes import ClusteringHead, HookedModel, ProbeResult, load_result, run
from probes.store.safetensors_files import is_whole_file
from tasks import Batch, SparseModularAddition

_Networks = list[tuple[Arm, int]]  # arm and seed


def trainings(config: ClusteringHeadsConfig) -> list[Training]:
    """Return the trainings. An ensemble counts as its first network, which is a lower bound."""
    all_arms = arms(config)
    curriculum = config.curriculum
    trained = []
    for job in jobs(config):
        if job.arms[0] == CURRICULUM:
            (member,) = curriculum_members(config, curriculum.p, job.seeds[:1])
            training = curriculum_training(config, 2 * curriculum.steps, curriculum.lr)
        else:
            arm = all_arms[job.arms[0]]
            member = member_of(config, arm, job.seeds[0])
            training = training_of(config, arm)
        trained.append(Training(member.model, member.task, training))
    return trained


def run_job(config: ClusteringHeadsConfig, job: EnsembleJob, out: Path) -> None:
    """Make a job's artefacts in ``out``, or resume an interrupted call."""
    if job.arms[0] == CURRICULUM:
        run_curriculum(config, job, out)
        return
    all_arms = arms(config)
    networks = [(all_arms[name], seed) for name, seed in product(job.arms, job.seeds)]
    snapshots = _trained(config, networks, out, job.name)
    for member, (arm, seed) in enumerate(networks):
        _measure(config, snapshots, member, arm, out / "results" / arm.name / f"seed{seed}")
    result = job.result(out)
    final = load_result(result) if is_whole_file(result) else _final(networks, snapshots)
    if job.arms[0] == "base" and config.transfer:
        _transfer(config, job, snapshots, final, out)
    final.save(result)  # written last, since it marks the job as done


def _trained(
    config: ClusteringHeadsConfig,
    networks: _Networks,
    out: Path,
    name: str,
    weights: Mapping[int, Weights] = {},
) -> Snapshots:
    """Train networks together from initial ``weights``, given by seed."""
    first = networks[0][0]
    training = training_of(config, first)
    members = []
    for arm, seed in networks:
        member = member_of(config, arm, seed, weights.get(seed))
        members.append(member_with_start(member, arm.scales, arm.ideal, config.starts.beta))
    every = training.steps if first.measure == "end" else first.every
    folder = out / "models" / name
    return train_ensemble(
        members, training, folder, snapshot_every=every, device=config.device, progress=True, name=name
    )


def _measure(config: ClusteringHeadsConfig, snapshots: Snapshots, member: int, arm: Arm, path: Path) -> None:
    """Measure one network as its arm says, except its accuracy at the end."""
    if arm.measure == "all":
        _measure_base(snapshots, member, path)
    elif arm.measure == "head":
        task = task_of(snapshots, member)
        measure = partial(run, snapshots.model(member), measured_rows(task).batch, _head_probe(task))
        measure_once(path.with_suffix(".head.safetensors"), measure)
    elif arm.measure in ("losses", "gradients", "curvature"):
        dynamics = partial(measure_dynamics, snapshots, member, brief=arm.measure == "losses")
        result = measure_once(path.with_suffix(".dynamics.safetensors"), dynamics)
        if arm.measure == "curvature":
            places = worth_measuring(result["train_loss"].numpy(), config.task.p, config.full_batch.curvature)
            curvature = partial(measure_curvature, snapshots, member, places)
            measure_once(path.with_suffix(".curvature.safetensors"), curvature)


def _head_probe(task: SparseModularAddition) -> ClusteringHead:
    return ClusteringHead(("multiset", "sum"), support=task.positions, modulus=task.p)


def _measure_base(snapshots: Snapshots, member: int, path: Path) -> None:
    """Measure a network of the base setting.

    These are the head before and after training, the whole training with the final clusters, networks stitched from two
    epochs, replayed spikes, and donors with a different sum.
    """
    paths = {name: path.with_suffix(f".{name}.safetensors") for name in PARTS}
    if all(map(is_whole_file, paths.values())):
        return
    task = task_of(snapshots, member)
    model = snapshots.model(member)
    batch = measured_rows(task).batch
    probe = _head_probe(task)
    measure_once(paths["untrained"], partial(run, snapshots.model(member, 0), batch, probe))
    measured = run(model, batch, probe)  # also gives the partition, which the probe keeps
    measured.save(paths["head"])
    clusters = head_classes(probe, measured)
    training = measure_once(paths["dynamics"], partial(measure_dynamics, snapshots, member, clusters))
    measure_once(paths["stitching"], partial(stitching, snapshots, member))
    measure_once(paths["replay"], partial(replay_spikes, snapshots, member, training))
    classes = {"head": clusters, "sum": batch.label("sum")}
    measure_once(paths["donors"], partial(donors_by, model, batch, classes, seed=task.seed))


def head_classes(probe: ClusteringHead, head: ProbeResult) -> Int[Tensor, "row"]:
    """Return the clusters of a head, by one rule for all networks, solved or not.

    These are the points of its planar lattice if it has one and no integer weights. Otherwise, they are the integer
    sums, even if far from integers. If no integer weights can be fitted at all, they are the support's multiset.
    """
    if on_plane(head) and not bool(head["integer_head"]):
        return probe.planar_fit(HEAD, 0).classes
    if bool(head["integer_deviation"].isnan()):
        return probe.classes.get("multiset")[1]
    return probe.partition(HEAD, 0)[1]


def _final(networks: _Networks, snapshots: Snapshots) -> ProbeResult:
    """Measure the accuracies of every network of a job at the end."""
    accuracies = [accuracies_at_end(snapshots, member) for member in range(len(networks))]
    return ProbeResult(
        "Accuracy",
        {"accuracy": torch.tensor(accuracies, dtype=torch.float64)},
        {"accuracy": ("network", "split")},
        {"network": [f"{arm.name}|{seed}" for arm, seed in networks], "split": ["train", "test"]},
        metadata={"backend": snapshots.backend},
    )


def _transfer(
    config: ClusteringHeadsConfig, job: EnsembleJob, snapshots: Snapshots, final: ProbeResult, out: Path
) -> None:
    """Train networks that solved p further on p + 1, with all their weights and a fresh optimiser."""
    test_accuracies = final.sel("accuracy", split="test").tolist()
    solved = [member for member, value in enumerate(test_accuracies) if value > SOLVED]
    if not solved:
        return
    at_end = snapshots.at(snapshots.steps[-1])
    weights = {job.seeds[member]: {name: values[member] for name, values in at_end.items()} for member in solved}
    arm = Arm(TRANSFER, tuple(weights), config.task.p + 1)
    name = f"transfer-from-{job.name}"
    networks = [(arm, seed) for seed in weights]
    trained = _trained(config, networks, out, name, weights)
    path = out / "results" / "final" / f"{name}.safetensors"
    measure_once(path, partial(_final, networks, trained))


def trained_models(config: ClusteringHeadsConfig, out: Path) -> list[TrainedModel]:
    """Return the networks of the base setting."""
    base = arms(config)["base"]
    models = []
    for job in jobs(config):
        if job.arms == (base.name,):
            for member, seed in enumerate(job.seeds):
                load_model = partial(_load_model, out / "models" / job.name, member)
                examples = partial(_examples, member_of(config, base, seed).task)
                models.append(TrainedModel.from_parts(f"base-seed{seed}", load_model, examples))
    return models


def _load_model(folder: Path, member: int) -> HookedModel:
    return Snapshots(folder).model(member)


def _examples(task: Any) -> Iterable[Batch]:
    return [measured_rows(task).batch]
