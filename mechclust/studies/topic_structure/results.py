"""What the runs of the topic-structure study measured, arm by arm and seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from mechclust.studies.kept import require_files
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import (
    MINIMISER,
    Cell,
    arms,
    documents_of,
    jobs,
    results_of,
    stage_cells,
    theory_arm,
)
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.stages import TwoStages, two_stages
from mechclust.training import load_results_by_step
from probes import ProbeResult, load_result
from tasks import TopicDocuments

SHARES = ("selected_share", "correct_share", "random_share")  # of words, settings of the documents
_ATTENTION_WEIGHTS = ("W_K", "W_Q")
_MOVED = 0.1
"""Attention counts as moved if W_K or W_Q has changed by this share of the norm of a weight at the default start."""
# g at the population optimum with ten topics of ten words and the published masks, by topics in a document (O3).
THEORY_G = {2: 5.76, 3: 7.01, 4: 7.72, 5: 8.18, 8: 8.95}

_Seeds = Float[np.ndarray, "seed"]


@dataclass(frozen=True)
class TrainedRun:
    """Measurements of one run.

    Attributes:
        start: ``topic_blocks`` of its matrices before training.
        end: ``topic_blocks`` after training.
        changes: norms of a weight's difference from the start, by weight (E3), otherwise empty.
        attention: step to ``TopicAttention`` result (E4a theory), otherwise empty.
        width: ``d_model`` of the network.
        norms: norms of ``W_K``, ``W_Q`` and ``W_V``, by weight (E3, the network as released), otherwise empty.
        words: result of ``WordAttention`` (E4), or ``None``.
        effects: result of ``TopicEffects`` (E1b), or ``None``.
        way: distances from the minimiser over training (E2 with weight decay), or ``None``.
    """

    start: ProbeResult
    end: ProbeResult
    changes: Mapping[str, Float[np.ndarray, "step"]]
    attention: Mapping[int, ProbeResult]
    width: int
    norms: Mapping[str, Float[np.ndarray, "step"]] = field(default_factory=dict)
    words: ProbeResult | None = None
    effects: ProbeResult | None = None
    way: ProbeResult | None = None

    @property
    def means(self) -> Float[np.ndarray, "bucket"]:
        """Mean attention at the end by bucket, the plain average over all pairs, as in the paper's table."""
        return self.attention[max(self.attention)]["overall_mean"].numpy()

    @property
    def finite(self) -> bool:
        """Whether its weights never diverged."""
        return all(np.isfinite(distances).all() for distances in self.changes.values())

    @property
    def stages(self) -> TwoStages:
        """The two-stage rule applied to how far its weights have moved."""
        return two_stages(self.changes)

    @property
    def moves(self) -> bool:
        """Whether ``W_K`` or ``W_Q`` moved, by the same distance from either start; false if training diverged."""
        if not self.finite:
            return False
        least = _MOVED * math.sqrt(self.width / 3)  # d x d entries drawn uniformly from -1/sqrt(d) to 1/sqrt(d)
        return any(self.changes[name][-1] >= least for name in _ATTENTION_WEIGHTS)

    @property
    def early_share(self) -> float:
        """Share of ``W_V``'s change at the end of stage 1. NaN if attention did not move or training diverged."""
        return self.stages.early if self.moves else math.nan

    def g(self, words_per_topic: int) -> float:
        """Return ``((v - 1) / v) alpha + beta / v``, from the attention means."""
        same_word, same_topic, different = self.means
        v = words_per_topic
        return float(((v - 1) / v * same_topic + same_word / v) / different)


ArmRuns: TypeAlias = Mapping[str, Sequence[TrainedRun]]


def load_runs(config: TopicStructureConfig, out: Path) -> dict[str, list[TrainedRun]]:
    """Read every arm's runs in the order of the seeds.

    Raises:
        InputError: naming a result that is not there.
    """
    runs: dict[str, list[TrainedRun]] = {name: [] for name in arms(config)}
    for job in jobs(config):
        require_files(out, results_of(config, job, out))
        if job.arm != MINIMISER:
            width = documents_of(config, job).d_vocab
            runs[job.arm].append(_load_run(out / "results" / job.name, width))
    return runs


def _load_run(folder: Path, width: int) -> TrainedRun:
    changes = _load_if_there(folder / "changes.safetensors")
    return TrainedRun(
        start=load_result(folder / "blocks-start.safetensors"),
        end=load_result(folder / "blocks.safetensors"),
        changes=_curves(changes, "change"),
        attention=load_results_by_step(folder, "dev.attention"),
        width=width,
        norms=_curves(changes, "norm"),
        words=_load_if_there(folder / "words.safetensors"),
        effects=_load_if_there(folder / "effects.safetensors"),
        way=_load_if_there(folder / "way.safetensors"),
    )


def _load_if_there(path: Path) -> ProbeResult | None:
    return load_result(path) if path.exists() else None


def _curves(changes: ProbeResult | None, measure: str) -> dict[str, Float[np.ndarray, "step"]]:
    """Return a measure of ``WeightChanges`` by weight, empty if it was not kept."""
    if changes is None or measure not in changes.values:
        return {}
    curves = changes[measure].double().numpy().T
    names = [name.split(".")[-1] for name in changes.coords["weight"]]
    return dict(zip(names, curves, strict=True))


def load_minimisers(config: TopicStructureConfig, out: Path) -> list[ProbeResult]:
    """Read the distances of the minimisers from the closed form, in the order of the seeds.

    Raises:
        InputError: naming a result that is not there.
    """
    paths = [results_of(config, Job(MINIMISER, seed), out)[0] for seed in config.seeds]
    require_files(out, paths)
    return [load_result(path) for path in paths]


def topic_block(runs: Sequence[TrainedRun], measure: str, matrix: str, start: bool = False) -> _Seeds:
    """Return a measure of ``topic_blocks`` at the end or the start of training."""
    results = [run.start if start else run.end for run in runs]
    return np.array([float(result.sel(measure, matrix=matrix)) for result in results])


def growth_of(runs: Sequence[TrainedRun], labels: str) -> Float[np.ndarray, "seed step"]:
    """Return the difference of ``TopicBlocks.effect`` of ``W_E^T W_E`` from its value before training (E1b)."""
    effects = np.array([run.effects[labels].numpy() for run in runs if run.effects is not None])
    return effects - effects[:, :1]


def shares_of(config: TopicStructureConfig, runs: ArmRuns) -> tuple[list[Cell], Float[np.ndarray, "seed cell"]]:
    """Return E3's cells, and ``TrainedRun.early_share`` in each."""
    factorial = stage_cells(config)
    return factorial, np.array([[run.early_share for run in runs[cell.arm]] for cell in factorial]).T


def mixing_values(config: TopicStructureConfig, runs: ArmRuns) -> dict[int, Float[np.ndarray, "seed tau"]]:
    """Return g by the number of topics that there are."""
    v = config.documents.words_per_topic
    by_total = {}
    for total in config.topics:
        g = [[run.g(v) for run in runs[theory_arm(total, tau)]] for tau in config.topics_per_document]
        by_total[total] = np.array(g).T
    return by_total


def theory_g(config: TopicStructureConfig) -> Mapping[int, float]:
    """Return g at the population optimum with ten topics. It is known for the published words and masks only."""
    return THEORY_G if 10 in config.topics and has_published(config, "words_per_topic", *SHARES) else {}


def has_published(config: TopicStructureConfig, *settings: str) -> bool:
    """Return whether these settings of the documents are the published ones."""
    published = TopicDocuments()
    return all(getattr(config.documents, name) == getattr(published, name) for name in settings)


def ways_of(runs: Sequence[TrainedRun]) -> dict[str, Float[np.ndarray, "seed step"]]:
    """Return the distances from three minimisers over training, of the runs that were followed."""
    ways = [run.way for run in runs if run.way is not None]
    return {name: np.array([way[name].numpy() for way in ways]) for name in ("closed", "other", "own")}
