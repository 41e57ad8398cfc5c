"""Clustering heads: a head that maps equivalent inputs to one point, how it forms, and what it is worth.

Odonnat, Bouaziz & Cabannes, "Clustering Head" (arXiv 2410.24050) and "Easing Optimization Paths" (2501.02362).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mechclust.models import PoolingTransformerConfig
from mechclust.studies.heads_dynamics import dynamics, measured_rows
from mechclust.studies.study import Analysis, Study, check_seeds
from mechclust.training import Member, Snapshots, TrainConfig, accuracy, train_ensemble
from probes import ClusteringHead, ProbeResult, causal_checks, run
from tasks import InputError, SparseModularAddition

SOLVED = 0.98  # test accuracy above which a network has solved the task
HEAD = "blocks.0.attn.hook_z"
MLP = "blocks.0.mlp"


@dataclass(frozen=True)
class Curriculum:
    """The second paper's comparison, full-batch: p = 4 from scratch against p = 2 first.

    Args:
        seeds: of both arms.
        p: the harder modulus.
        d_model: width of the network.
        d_mlp: width of its feed-forward layer.
        steps: from scratch; the curriculum has as many in all.
        first_steps: of the curriculum with p = 2.
        lr: learning rate on the harder task.
        first_lr: with p = 2.
        points: of the straight line between the two solutions, ends included.
    """

    seeds: tuple[int, ...] = tuple(range(200, 206))
    p: int = 4
    d_model: int = 32
    d_mlp: int = 128
    steps: int = 10_000
    first_steps: int = 3_000
    lr: float = 1e-2
    first_lr: float = 1e-3
    points: int = 41


@dataclass(frozen=True)
class Ablations:
    """Settings varied one at a time.

    Args:
        seeds: of every value; empty for no ablations.
        batch_sizes: sequences a step, at a fixed number of epochs.
        lrs: learning rates.
        widths: of the feed-forward layer.
        discounts: factors on the feed-forward layer's learning rate.
    """

    seeds: tuple[int, ...] = (200, 201, 202)
    batch_sizes: tuple[int, ...] = tuple(2**k for k in range(12))
    lrs: tuple[float, ...] = tuple(float(f"{x:.3g}") for x in np.geomspace(1, 1e-4, 20))
    widths: tuple[int, ...] = tuple(int(x) for x in np.geomspace(10, 10_000, 20).round())
    discounts: tuple[float, ...] = tuple(float(f"{x:.3g}") for x in np.geomspace(1e-2, 1e2, 20))


@dataclass(frozen=True)
class ClusteringHeadsConfig:
    """Settings of the clustering-head study.

    Args:
        seeds: a network each, in the base setting and from scratch on p + 1; the seed draws weights and data.
        replication: seeds of the base setting whose share of solved networks is compared with a replication.
        task: the data of the base setting.
        d_mlp: width of the feed-forward layer.
        epochs: passes through the training sequences.
        batch_size: sequences a step.
        lr: Adam's learning rate.
        group: seeds trained together, in one process.
        mitigations: seeds that are also trained with a larger eps, a slower feed-forward layer, a late smaller rate.
        transfer: also train p + 1 from the solved networks, and from scratch.
        curriculum: the second paper's comparison.
        ablations: settings varied one at a time.
        eps: of the norm before the feed-forward layer, in the mitigation.
        discount: factor on the feed-forward layer's learning rate, in the mitigation.
        sandbox: how many seeds get a sandbox page.
        test_claims: whether this size can test the claims.
    """

    seeds: tuple[int, ...] = tuple(range(200, 300))
    replication: tuple[int, ...] = tuple(range(40))
    task: SparseModularAddition = SparseModularAddition()
    d_mlp: int = 32
    epochs: int = 1000
    batch_size: int = 32
    lr: float = 3e-3
    group: int = 50
    mitigations: tuple[int, ...] = tuple(range(200, 250))
    transfer: bool = True
    curriculum: Curriculum = Curriculum()
    ablations: Ablations = Ablations()
    eps: float = 0.1
    discount: float = 0.3
    sandbox: int = 2
    test_claims: bool = True

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        for name in ("epochs", "group"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.task.seed != 0:
            raise InputError("task.seed is set by each network, from seeds; leave it out and set those")
        if unknown := set(self.mitigations) - set(self.seeds):
            raise InputError(f"mitigations has the seed {min(unknown)}; expected seeds of the base setting (seeds)")
        if self.transfer and self.task.n_embeddings < self.task.p + 1:
            raise InputError(
                f"task.n_embeddings is {self.task.n_embeddings}; expected at least {self.task.p + 1}, "
                "the digits that transfer goes on to (or transfer = False)"
            )
        if not 0 < self.curriculum.first_steps < self.curriculum.steps and self.curriculum.seeds:
            raise InputError(
                f"curriculum.first_steps is {self.curriculum.first_steps}; expected fewer than its steps "
                f"({self.curriculum.steps}) and at least 1"
            )


@dataclass(frozen=True)
class Arm:
    """One way to train, run once a seed; ``measure`` says how much is looked at in every epoch."""

    name: str
    seeds: tuple[int, ...]
    p: int
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    rate: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    measure: str = "end"


class Job(NamedTuple):
    """Arms of one shape trained together, on some of their seeds."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        first = self.arms[0] if len(self.arms) == 1 else f"{self.arms[0]} and {len(self.arms) - 1} more"
        return f"{first}, seeds {self.seeds[0]}-{self.seeds[-1]}".replace(" ", "-").replace(",", "")


def arms(config: ClusteringHeadsConfig) -> dict[str, Arm]:
    """Every arm but the curriculum, by name."""
    p, grid = config.task.p, config.ablations
    found = [
        Arm("base", config.seeds, p, measure="all"),
        Arm("replication", config.replication, p),
    ]
    found += [
        Arm("larger eps", config.mitigations, p, model={"eps_mlp": config.eps}, measure="losses"),
        Arm("slower feed-forward", config.mitigations, p, rates={MLP: config.discount}, measure="losses"),
        Arm("late smaller rate", config.mitigations, p, training={"schedule": "late-drop"}, measure="losses"),
    ]
    if config.transfer:
        found.append(Arm("scratch", config.seeds, p + 1))
    found += [Arm(f"lr {lr:g}", grid.seeds, p, rate=lr / config.lr) for lr in grid.lrs]
    found += [Arm(f"discount {factor:g}", grid.seeds, p, rates={MLP: factor}) for factor in grid.discounts]
    found += [Arm(f"batch {size}", grid.seeds, p, training={"batch_size": size}) for size in grid.batch_sizes]
    found += [Arm(f"width {width}", grid.seeds, p, model={"d_mlp": width}) for width in grid.widths]
    return {arm.name: arm for arm in found if arm.seeds}


def jobs(config: ClusteringHeadsConfig) -> list[Job]:
    """What trains together: an arm's seeds in groups; all learning rates, and all discounts, at once."""
    known = arms(config)
    together: dict[str, list[str]] = {}
    for name in known:
        kind = name.split(" ")[0]
        together.setdefault(kind if kind in ("lr", "discount") else name, []).append(name)
    found = []
    for names in together.values():
        seeds = known[names[0]].seeds
        size = config.group if len(names) == 1 else len(seeds)
        found += [Job(tuple(names), seeds[i : i + size]) for i in range(0, len(seeds), size)]
    main = [job for job in found if not _is_ablation(job.arms[0])]
    curriculum = [Job(("curriculum",), (seed,)) for seed in config.curriculum.seeds]
    ablations = [job for job in found if _is_ablation(job.arms[0])]
    return main + curriculum + sorted(ablations, key=lambda job: -_cost(known[job.arms[0]], config))


def _is_ablation(arm: str) -> bool:
    return arm.split(" ")[0] in ("lr", "discount", "batch", "width")


def _cost(arm: Arm, config: ClusteringHeadsConfig) -> float:
    """About how long an ablation takes: small batches and wide layers are the long ones."""
    return 32 / int(arm.training.get("batch_size", config.batch_size)) + int(arm.model.get("d_mlp", 32)) / 500


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
