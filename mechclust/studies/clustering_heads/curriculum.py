"""The second paper's curriculum: p = 4 from scratch memorises, p = 2 first generalises (arXiv 2501.02362)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from mechclust.models import build_model
from mechclust.models.weights import get_weights, set_weights
from mechclust.studies.clustering_heads.config import (
    ClusteringHeadsConfig,
    EnsembleJob,
    PoolingTransformerConfig,
    curricula,
)
from mechclust.studies.clustering_heads.interpolation import loss_between, neurons_matched, places
from mechclust.studies.kept import once
from mechclust.training import Member, TrainConfig, accuracy, train_ensemble
from probes import ProbeResult
from probes.identity import fingerprint
from tasks import SparseModularAddition

ARMS = ("scratch", "curriculum")


def run_curriculum(config: ClusteringHeadsConfig, job: EnsembleJob, out: Path) -> None:
    """Train both arms of one seed; measure them and the straight line between their solutions.

        Measures: ``accuracy`` (arm, split) on p = 4; ``first_accuracy`` (split) of the curriculum on p = 2 before
    XX"""
    path, seed, c = job.result(out), job.seeds[0], curricula(config)[job.arms[0]]
    hard = replace(config.task, p=c.p, n_embeddings=max(c.p, config.task.n_embeddings), seed=seed)
    easy = replace(hard, p=2)
    shape = PoolingTransformerConfig(
        d_vocab=hard.d_vocab, n_ctx=hard.n_ctx, d_model=c.d_model, d_mlp=c.d_mlp, seed=seed
    )
    folder = out / "models" / f"{job.arms[0]}-seed{seed}"

    def trained(
        task: SparseModularAddition, name: str, steps: int, lr: float, start: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        settings = TrainConfig(
            steps=steps, batch_size=task.n_train, lr=lr, schedule="constant", optimizer="adam", weight_decay=0.0,
            clip=None, save_every=max(1, steps // 10),
        )  # fmt: skip
        member, label = Member(shape, task, weights=start), f"{job.arms[0]}: {name}, seed {seed}"
        snapshots = train_ensemble([member], settings, folder / name, snapshot_every=steps, progress=True, name=label)
        return {name: values[0] for name, values in snapshots.at(steps).items()}

    first = trained(easy, "p2", c.first_steps, c.first_lr)
    ends = {
        "scratch": trained(hard, "scratch", c.steps, c.lr),
        "curriculum": trained(hard, "curriculum", c.steps - c.first_steps, c.lr, first),
    }
    model = build_model(shape)

    def print_of(weights: Mapping[str, Tensor]) -> str:
        set_weights(model, dict(weights))
        return fingerprint(model)

    of = {name: print_of(weights) for name, weights in {"first": first, **ends}.items()}

    def accuracies(weights: Mapping[str, Tensor], task: SparseModularAddition) -> list[float]:
        set_weights(model, dict(weights))
        return [accuracy(model, task, split)[0] for split in ("train", "test")]

    def line(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> Tensor:
        return loss_between(model, start, end, hard, c.points)

    def measure() -> ProbeResult:
        one, other = (ends[arm] for arm in ARMS)
        values = {
            "accuracy": torch.tensor([accuracies(ends[arm], hard) for arm in ARMS], dtype=torch.float64),
            "first_accuracy": torch.tensor(accuracies(first, easy), dtype=torch.float64),
            "line": line(one, other),
            "matched_line": line(one, neurons_matched(other, one)),
            "own_line": torch.stack([line(get_weights(build_model(shape)), one), line(first, other)]),
        }
        return ProbeResult(
            "Curriculum",
            values,
            {
                "accuracy": ("arm", "split"),
                "first_accuracy": ("split",),
                "line": ("place",),
                "matched_line": ("place",),
                "own_line": ("arm", "place"),
            },
            {"arm": list(ARMS), "split": ["train", "test"], "place": [f"{place:.4g}" for place in places(c.points)]},
        )

    once(path, measure, of)
