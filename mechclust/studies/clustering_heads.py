"""Clustering heads: a head that maps equivalent inputs to one point, how it forms, and what it is worth.

Odonnat, Bouaziz & Cabannes, "Clustering Head" (arXiv 2410.24050) and "Easing Optimization Paths" (2501.02362).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from mechclust.models import PoolingTransformerConfig
from mechclust.studies.heads_config import SOLVED, Ablations, Arm, ClusteringHeadsConfig, Curriculum, Job, arms, jobs
from mechclust.studies.heads_dynamics import dynamics, measured_rows
from mechclust.studies.study import Analysis, Study
from mechclust.training import Member, Snapshots, TrainConfig, accuracy, train_ensemble
from probes import ClusteringHead, ProbeResult, causal_checks, run
from tasks import SparseModularAddition

HEAD = "blocks.0.attn.hook_z"


def task_of(config: ClusteringHeadsConfig, p: int, seed: int) -> SparseModularAddition:
    """The data of one network."""
    return replace(config.task, p=p, seed=seed)


def member_of(config: ClusteringHeadsConfig, arm: Arm, seed: int, weights: Mapping[str, Tensor] | None) -> Member:
    """One network of an arm."""
    task = task_of(config, arm.p, seed)
    shape = {"d_vocab": task.d_vocab, "n_ctx": task.n_ctx, "d_mlp": config.d_mlp, "seed": seed}
    model = PoolingTransformerConfig(**{**shape, **arm.model})
    return Member(model, task, rate=arm.rate, rates=arm.rates, weights=weights)


def _run_job(config: ClusteringHeadsConfig, job: Job, out: Path) -> None:
    if job.arms == ("curriculum",):
        from mechclust.studies.heads_curriculum import run_curriculum

        run_curriculum(config, job.seeds[0], out)
        return
    known = arms(config)
    chosen = [known[name] for name in job.arms]
    pairs = [(arm, seed) for arm in chosen for seed in job.seeds]
    snapshots = _trained(config, pairs, out / "models" / job.name, job.name)
    if chosen[0].measure == "all":
        for i, seed in enumerate(job.seeds):
            _measure_head(config, snapshots, i, out / "results" / "base" / f"seed{seed}")
    elif chosen[0].measure == "losses":
        for i, seed in enumerate(job.seeds):
            path = out / "results" / chosen[0].name / f"seed{seed}.dynamics.safetensors"
            if not path.exists():
                dynamics(snapshots, i, brief=True).save(path)
    final = _save_final(pairs, snapshots, out / "results" / "final" / f"{job.name}.safetensors")
    if chosen[0].name == "base" and config.transfer:
        _transfer(config, job, snapshots, final, out)


def _trained(
    config: ClusteringHeadsConfig,
    pairs: Sequence[tuple[Arm, int]],
    folder: Path,
    name: str,
    weights: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> Snapshots:
    first = pairs[0][0]
    settings = {"batch_size": config.batch_size, "lr": config.lr, "schedule": "constant", **first.training}
    epoch = config.task.epoch_steps(settings["batch_size"])
    steps = config.epochs * epoch
    training = TrainConfig(
        steps=steps, optimizer="adam", weight_decay=0.0, clip=None, save_every=max(1, steps // 20), **settings
    )
    members = [member_of(config, arm, seed, None if weights is None else weights[seed]) for arm, seed in pairs]
    every = steps if first.measure == "end" else epoch
    return train_ensemble(members, training, folder, snapshot_every=every, progress=True, name=name)


def _measure_head(config: ClusteringHeadsConfig, snapshots: Snapshots, member: int, path: Path) -> None:
    """The head at the end, its causal checks, and the whole training seen from there."""
    task = snapshots.tasks[member]
    assert isinstance(task, SparseModularAddition)
    if path.with_suffix(".dynamics.safetensors").exists():
        return
    model, batch = snapshots.model(member), measured_rows(task).batch
    probe = ClusteringHead(("multiset", "sum"), support=task.positions, modulus=task.p)
    head = run(model, batch, probe)
    head.save(path.with_suffix(".head.safetensors"))
    causal_checks(model, batch, probe, task.accuracy).save(path.with_suffix(".causal.safetensors"))
    partition = probe.partition(HEAD, 0)[1] if bool(head["integer_head"]) else None
    dynamics(snapshots, member, partition).save(path.with_suffix(".dynamics.safetensors"))


def _save_final(pairs: Sequence[tuple[Arm, int]], snapshots: Snapshots, path: Path) -> ProbeResult:
    """Accuracies at the end of every network of a job."""
    if path.exists():
        return ProbeResult.load(path)
    found = []
    for i, task in enumerate(snapshots.tasks):
        model = snapshots.model(i)
        found.append([accuracy(model, task, split)[0] for split in ("train", "test")])
    result = ProbeResult(
        "Accuracy",
        {"accuracy": torch.tensor(found, dtype=torch.float64)},
        {"accuracy": ("network", "split")},
        {"network": [f"{arm.name}|{seed}" for arm, seed in pairs], "split": ["train", "test"]},
        metadata={"backend": snapshots.backend},
    )
    result.save(path)
    return result


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
    _save_final(pairs, trained, out / "results" / "final" / f"{name}.safetensors")


def _analyse(config: ClusteringHeadsConfig, out: Path) -> Analysis:
    from mechclust.studies.heads_claims import analyse

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
            mitigations=(200, 201),
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
            seeds=tuple(range(200, 212)),
            replication=(),
            group=6,
            mitigations=(),
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
)
