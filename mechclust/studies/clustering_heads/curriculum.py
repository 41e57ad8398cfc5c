"""The second paper's curriculum: p = 4 from scratch memorises, p = 2 first generalises (arXiv 2501.02362)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mechclust.models import build_model
from mechclust.models.weights import set_weights
from mechclust.studies.clustering_heads.config import (
    ClusteringHeadsConfig,
    EnsembleJob,
    curriculum_members,
    curriculum_result,
    curriculum_training,
)
from mechclust.studies.clustering_heads.dynamics import task_of
from mechclust.studies.clustering_heads.interpolation import loss_between, neurons_matched, places
from mechclust.studies.kept import once
from mechclust.training import Member, Snapshots, accuracy, train_ensemble
from probes import ProbeResult
from probes.engine.identity import fingerprint
from tasks import SparseModularAddition

ARMS = ("scratch", "curriculum")
Weights = Mapping[str, Tensor]


def run_curriculum(config: ClusteringHeadsConfig, job: EnsembleJob, out: Path) -> None:
    """Train both arms of some seeds; measure each pair of networks and the straight line between them."""
    c = config.curriculum
    hard, easy = (curriculum_members(config, c, p, job.seeds) for p in (c.p, 2))

    def trained(members: Sequence[Member], part: str, steps: int, lr: float) -> Snapshots:
        """With snapshots at the start, halfway and at the end."""
        settings, folder = curriculum_training(config, steps, lr), out / "models" / job.name / part
        label = f"{job.name}: {part}"
        return train_ensemble(
            members, settings, folder,
            snapshot_every=max(1, steps // 2), device=config.device, progress=True, name=label,
        )  # fmt: skip

    first = trained(easy, "p2", c.first_steps, c.first_lr)
    scratch = trained(hard, "scratch", c.steps, c.lr)
    onwards = [replace(member, weights=_at(first, i, -1)) for i, member in enumerate(hard)]
    curriculum = trained(onwards, "curriculum", c.steps - c.first_steps, c.lr)
    for i, seed in enumerate(job.seeds):
        ends = {"scratch": scratch, "curriculum": curriculum}
        of = {part: fingerprint(snapshots.model(i)) for part, snapshots in {"first": first, **ends}.items()}
        once(curriculum_result(out, seed), partial(_measured, c.points, first, ends, i), of)


def _at(snapshots: Snapshots, member: int, place: int) -> dict[str, Tensor]:
    """One member's weights at a snapshot, counted from the first or, if negative, from the last."""
    return {name: values[0] for name, values in snapshots.of(member, [snapshots.steps[place]]).items()}


def _measured(points: int, first: Snapshots, ends: Mapping[str, Snapshots], member: int) -> ProbeResult:
    """One seed's networks: after p = 2, and at the end of each arm.

    Measures:
        ``accuracy`` (arm, split): on the harder task; ``first_accuracy`` (split): on p = 2, before the curriculum goes
            on.
        ``line``, ``matched_line`` (place): training loss on the straight line between the two solutions, without and
            with matched neurons; ``own_line`` (arm, place): on the line from halfway to the end of each arm's training
            on the harder task.
    """
    model, easy, hard = build_model(first.configs[member]), task_of(first, member), task_of(ends[ARMS[0]], member)
    one, other = (_at(ends[arm], member, -1) for arm in ARMS)

    def accuracies(weights: Weights, task: SparseModularAddition) -> list[float]:
        set_weights(model, dict(weights))
        return [accuracy(model, task, split)[0] for split in ("train", "test")]

    def line(start: Weights, end: Weights) -> Tensor:
        return loss_between(model, start, end, hard, points)

    return ProbeResult(
        "Curriculum",
        {
            "accuracy": torch.tensor([accuracies(weights, hard) for weights in (one, other)], dtype=torch.float64),
            "first_accuracy": torch.tensor(accuracies(_at(first, member, -1), easy), dtype=torch.float64),
            "line": line(one, other),
            "matched_line": line(one, neurons_matched(other, one)),
            "own_line": torch.stack([line(_at(ends[arm], member, 1), _at(ends[arm], member, -1)) for arm in ARMS]),
        },
        {
            "accuracy": ("arm", "split"),
            "first_accuracy": ("split",),
            "line": ("place",),
            "matched_line": ("place",),
            "own_line": ("arm", "place"),
        },
        {"arm": list(ARMS), "split": ["train", "test"], "place": [f"{place:.4g}" for place in places(points)]},
    )
