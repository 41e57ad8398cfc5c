"""Clustering heads: a head that maps equivalent inputs to one point, how it forms, and what it is worth.

Odonnat, Bouaziz & Cabannes, "Clustering Head" (arXiv 2410.24050) and "Easing Optimization Paths" (2501.02362).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mechclust.report.analysis import Analysis
from mechclust.studies.clustering_heads.config import (
    SOLVED,
    Ablations,
    Arm,
    ClusteringHeadsConfig,
    Curriculum,
    Job,
    arms,
    jobs,
    member_of,
    training_of,
)
from mechclust.studies.clustering_heads.dynamics import dynamics, measured_rows
from mechclust.studies.extra_probes import Subject
from mechclust.studies.study import Study
from mechclust.training import Snapshots, accuracy, train_ensemble
from probes import ClusteringHead, HookedModel, ProbeResult, causal_checks, run
from tasks import Batch, SparseModularAddition

HEAD = "blocks.0.attn.hook_z"


def _run_job(config: ClusteringHeadsConfig, job: Job, out: Path) -> None:
    if job.arms == ("curriculum",):
        from mechclust.studies.clustering_heads.curriculum import run_curriculum

        run_curriculum(config, job.seeds[0], out)
        return
    known = arms(config)
    chosen = [known[name] for name in job.arms]
    pairs = [(arm, seed) for arm in chosen for seed in job.seeds]
    done = out / "results" / "final" / f"{job.name}.safetensors"
    if chosen[0].measure == "end" and done.exists():
        return
    snapshots = _trained(config, pairs, out / "models" / job.name, job.name)
    if chosen[0].measure == "all":
        for i, seed in enumerate(job.seeds):
            _measure_head(snapshots, i, out / "results" / "base" / f"seed{seed}")
    elif chosen[0].measure == "losses":
        for i, seed in enumerate(job.seeds):
            path = out / "results" / chosen[0].name / f"seed{seed}.dynamics.safetensors"
            if not path.exists():
                dynamics(snapshots, i, brief=True).save(path)
    final = _final(pairs, snapshots)
    if chosen[0].name == "base" and config.transfer:
        _transfer(config, job, snapshots, final, out)
    final.save(done)


def _trained(
    config: ClusteringHeadsConfig,
    pairs: Sequence[tuple[Arm, int]],
    folder: Path,
    name: str,
    weights: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> Snapshots:
    first = pairs[0][0]
    training = training_of(config, first)
    members = [member_of(config, arm, seed, None if weights is None else weights[seed]) for arm, seed in pairs]
    every = training.steps if first.measure == "end" else None
    return train_ensemble(members, training, folder, snapshot_every=every, progress=True, name=name)


def _measure_head(snapshots: Snapshots, member: int, path: Path) -> None:
    """The head before training and at its end, causal checks, and the whole training seen from the end."""
    task = snapshots.tasks[member]
    assert isinstance(task, SparseModularAddition)
    paths = {name: path.with_suffix(f".{name}.safetensors") for name in ("untrained", "head", "causal", "dynamics")}
    if all(file.exists() for file in paths.values()):
        return
    batch = measured_rows(task).batch
    probe = ClusteringHead(("multiset", "sum"), support=task.positions, modulus=task.p)
    run(snapshots.model(member, 0), batch, probe).save(paths["untrained"])
    model = snapshots.model(member)
    head = run(model, batch, probe)
    head.save(paths["head"])
    if not paths["causal"].exists():
        causal_checks(model, batch, probe, task.accuracy).save(paths["causal"])
    if not paths["dynamics"].exists():
        partition = probe.partition(HEAD, 0)[1] if bool(head["integer_head"]) else None
        dynamics(snapshots, member, partition).save(paths["dynamics"])


def _subjects(config: ClusteringHeadsConfig, out: Path) -> list[Subject]:
    """The networks of the base setting."""
    base = [job for job in jobs(config) if job.arms == ("base",)]
    return [
        Subject(f"base-seed{seed}", partial(_subject, out / "models" / job.name, member))
        for job in base
        for member, seed in enumerate(job.seeds)
    ]


def _subject(folder: Path, member: int) -> tuple[HookedModel, Iterable[Batch]]:
    snapshots = Snapshots(folder)
    task = snapshots.tasks[member]
    assert isinstance(task, SparseModularAddition)
    return snapshots.model(member), [measured_rows(task).batch]


def _final(pairs: Sequence[tuple[Arm, int]], snapshots: Snapshots) -> ProbeResult:
    """Accuracies at the end of every network of a job."""
    found = []
    for i, task in enumerate(snapshots.tasks):
        model = snapshots.model(i)
        found.append([accuracy(model, task, split)[0] for split in ("train", "test")])
    return ProbeResult(
        "Accuracy",
        {"accuracy": torch.tensor(found, dtype=torch.float64)},
        {"accuracy": ("network", "split")},
        {"network": [f"{arm.name}|{seed}" for arm, seed in pairs], "split": ["train", "test"]},
        metadata={"backend": snapshots.backend},
    )


def _transfer(config: ClusteringHeadsConfig, job: Job, snapshots: Snapshots, final: ProbeResult, out: Path) -> None:
    """All weights of the networks that solved p go on to p + 1, with a fresh optimiser."""
    solved = [i for i, value in enumerate(final.sel("accuracy", split="test").tolist()) if value > SOLVED]
    if not solved:
        return
    seeds = tuple(job.seeds[i] for i in solved)
    at_end = snapshots.at(snapshots.steps[-1])
    weights = {job.seeds[i]: {name: values[i] for name, values in at_end.items()} for i in solved}
    arm, name = Arm("transfer", seeds, config.task.p + 1), f"transfer from {job.name}".replace(" ", "-")
    pairs = [(arm, seed) for seed in seeds]
    trained = _trained(config, pairs, out / "models" / name, name, weights)
    _final(pairs, trained).save(out / "results" / "final" / f"{name}.safetensors")


def _analyse(config: ClusteringHeadsConfig, out: Path) -> Analysis:
    from mechclust.studies.clustering_heads.claims import analyse

    return analyse(config, out)


_PAPER = ClusteringHeadsConfig()
_NO_ABLATIONS = Ablations(seeds=())
_NO_CURRICULUM = Curriculum(seeds=())

STUDY = Study(
    name="clustering-heads",
    title="Clustering heads: a head that maps equivalent inputs to one point, how it forms and fails",
    source="Odonnat, Bouaziz & Cabannes, Clustering Head (arXiv 2410.24050) and Easing Optimization Paths (2501.02362)",
    presets={
        "smoke": ClusteringHeadsConfig(
            seeds=(200, 201),
            replication=(0,),
            mitigations=2,
            task=SparseModularAddition(length=6, n_support=3, n_train=64, n_test=64),
            d_mlp=8,
            epochs=24,
            curriculum=Curriculum(seeds=(200,), d_model=4, d_mlp=8, steps=6, first_steps=2, points=3),
            ablations=Ablations((200,), (16, 64), (0.01, 0.001), (4, 16), (0.1, 10.0)),
            sandbox=1,
            test_claims=False,
        ),
        "quick": replace(
            _PAPER,
            seeds=tuple(range(200, 208)),
            replication=(),
            group=4,
            mitigations=0,
            transfer=False,
            curriculum=_NO_CURRICULUM,
            ablations=_NO_ABLATIONS,
            sandbox=1,
            test_claims=False,
        ),
        "paper": _PAPER,
    },
    jobs=jobs,
    run_job=_run_job,
    analyse=_analyse,
    subjects=_subjects,
)
