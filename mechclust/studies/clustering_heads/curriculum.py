"""The second paper's curriculum: p = 4 from scratch memorises, p = 2 first generalises (arXiv 2501.02362)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.models import build_model
from mechclust.studies.clustering_heads.config import (
    CURRICULUM,
    SCRATCH,
    ClusteringHeadsConfig,
    EnsembleJob,
    curriculum_members,
    curriculum_result,
    curriculum_training,
)
from mechclust.studies.clustering_heads.dynamics import accuracies_at_end, task_of
from mechclust.studies.clustering_heads.interpolation import loss_between, neurons_matched, places_on_line
from mechclust.studies.kept import measure_once
from mechclust.training import Member, Snapshots, train_ensemble
from probes import ProbeResult

_ARMS = (SCRATCH, CURRICULUM)


def run_curriculum(config: ClusteringHeadsConfig, job: EnsembleJob, out: Path) -> None:
    """Train both arms of some seeds.

    Each pair of networks and the straight line between them are measured.
    """
    c = config.curriculum
    train = partial(_trained, config, job, out)
    hard = curriculum_members(config, c.p, job.seeds)
    first = train("p2", curriculum_members(config, 2, job.seeds), c.first_steps, c.first_lr)
    scratch = train(SCRATCH, hard, c.steps, c.lr)
    onwards = [replace(member, weights=_at(first, i, -1)) for i, member in enumerate(hard)]
    curriculum = train(CURRICULUM, onwards, c.steps - c.first_steps, c.lr)
    ends = {SCRATCH: scratch, CURRICULUM: curriculum}
    for i, seed in enumerate(job.seeds):
        measure_once(curriculum_result(out, seed), partial(_measured, c.points, first, ends, i))


def _trained(
    config: ClusteringHeadsConfig,
    job: EnsembleJob,
    out: Path,
    part: str,
    members: Sequence[Member],
    steps: int,
    lr: float,
) -> Snapshots:
    """Train one part, with snapshots at the start, halfway and at the end."""
    return train_ensemble(
        members,
        curriculum_training(config, steps, lr),
        out / "models" / job.name / part,
        snapshot_every=max(1, steps // 2),
        device=config.device,
        progress=True,
        name=f"{job.name}: {part}",
    )


def _at(snapshots: Snapshots, member: int, place: int) -> dict[str, Float[Tensor, "..."]]:
    """Return one member's weights at a snapshot, counted from the first or, if negative, from the last."""
    return {name: values[0] for name, values in snapshots.of(member, [snapshots.steps[place]]).items()}


def _measured(points: int, first: Snapshots, ends: Mapping[str, Snapshots], member: int) -> ProbeResult:
    """Measure one seed's networks: after p = 2, and at the end of each arm.

    Measures:
        ``accuracy`` (arm, split): on the harder task. ``first_accuracy`` (split): on p = 2, before the curriculum goes
            on.
        ``line``, ``matched_line`` (place): training loss on the straight line between the two solutions, without and
            with matched neurons. ``own_line`` (arm, place): on the line from halfway to the end of each arm's training
            on the harder task.
    """
    model = build_model(first.configs[member])
    hard = task_of(ends[SCRATCH], member)
    line = partial(loss_between, model, task=hard, points=points)
    halfway = {arm: _at(snapshots, member, 1) for arm, snapshots in ends.items()}
    end = {arm: _at(snapshots, member, -1) for arm, snapshots in ends.items()}
    matched = neurons_matched(end[CURRICULUM], end[SCRATCH])
    accuracies = [accuracies_at_end(ends[arm], member) for arm in _ARMS]
    first_accuracies = accuracies_at_end(first, member)
    return ProbeResult(
        "Curriculum",
        {
            "accuracy": torch.tensor(accuracies, dtype=torch.float64),
            "first_accuracy": torch.tensor(first_accuracies, dtype=torch.float64),
            "line": line(end[SCRATCH], end[CURRICULUM]),
            "matched_line": line(end[SCRATCH], matched),
            "own_line": torch.stack([line(halfway[arm], end[arm]) for arm in _ARMS]),
        },
        {
            "accuracy": ("arm", "split"),
            "first_accuracy": ("split",),
            "line": ("place",),
            "matched_line": ("place",),
            "own_line": ("arm", "place"),
        },
        {"arm": list(_ARMS), "split": ["train", "test"], "place": [f"{place:.4g}" for place in places_on_line(points)]},
    )
