"""What the runs of the topic-structure study measured, and the published numbers to compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mechclust.studies.kept import check_there
from mechclust.studies.study import Job
from mechclust.studies.topic_structure.arms import MINIMISER, Cell, arms, cells, documents_of, jobs, results_of
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.stages import TwoStages, two_stages
from mechclust.training import load_steps
from probes import ProbeResult, load_result

# From the paper's slides: attention to the same word, to other words of the topic, to different topics.
PUBLISHED = {
    "Adam .003": (0.00759, 0.0108, 0.00689),
    "Adam .01": (0.00811, 0.0100, 0.00707),
    "Adam .03": (0.00453, 0.0116, 0.00665),
    "SGD .01": (0.0105, 0.0106, 0.00673),
    "SGD .03": (0.0140, 0.0103, 0.00641),
}
_ATTENTION = ("W_V", "W_K", "W_Q")
MOVED = 0.1
"""Attention counts as moved if W_K or W_Q has changed by this share of the norm of a weight at the default start."""
# g at the population optimum with ten topics, by topics in a document (O3).
THEORY_G = {2: 5.76, 3: 7.01, 4: 7.72, 5: 8.18, 8: 8.95}


@dataclass(frozen=True)
class TrainedRun:
    """What one run measured.

    Attributes:
        start: ``topic_blocks`` of its matrices before training.
        end: the same after training.
        changes: weight to ``[steps]`` norms of its difference from the start (E3), otherwise empty.
        attention: step to ``TopicAttention`` result (E4), otherwise empty.
        width: ``d_model`` of the network.
        dev: step to the loss on the development documents (E4), otherwise empty.
        way: distances from the minimiser over training (E2 with weight decay), or ``None``.
    """

    start: ProbeResult
    end: ProbeResult
    changes: Mapping[str, np.ndarray]
    attention: Mapping[int, ProbeResult]
    width: int
    dev: Mapping[int, float] = field(default_factory=dict)
    way: ProbeResult | None = None

    @property
    def means(self) -> np.ndarray:
        """``[3]`` mean attention at the end by bucket, the plain average over all pairs, as in the paper's table."""
        return self.attention[max(self.attention)]["overall_mean"].numpy()

    @property
    def stages(self) -> TwoStages:
        """The two-stage rule applied to how far its weights have moved."""
        return two_stages(self.changes)

    @property
    def moves(self) -> bool:
        """Whether ``W_K`` or ``W_Q`` moved, by the same distance from either start; false if training diverged."""
        if not all(np.isfinite(self.changes[name]).all() for name in _ATTENTION):
            return False
        least = MOVED * math.sqrt(self.width / 3)  # d x d entries drawn uniformly from -1/sqrt(d) to 1/sqrt(d)
        return any(self.changes[name][-1] >= least for name in ("W_K", "W_Q"))

    def g(self, words_per_topic: int) -> float:
        """``((v - 1) / v) alpha + beta / v``, from the attention means."""
        same_word, same_topic, different = self.means
        v = words_per_topic
        return float(((v - 1) / v * same_topic + same_word / v) / different)


ArmRuns: TypeAlias = Mapping[str, Sequence[TrainedRun]]


def load_runs(config: TopicStructureConfig, out: Path) -> dict[str, list[TrainedRun]]:
    """Every arm's runs in the order of the seeds.

    Raises:
        InputError: naming a result that is not there.
    """
    runs: dict[str, list[TrainedRun]] = {name: [] for name in arms(config)}
    for job in jobs(config):
        folder = out / "results" / job.name
        check_there(out, results_of(config, job, out))
        if job.arm == MINIMISER:
            continue
        changes: dict[str, np.ndarray] = {}
        if (folder / "changes.safetensors").exists():
            result = load_result(folder / "changes.safetensors")
            names = [name.split(".")[-1] for name in result.coords["weight"]]
            changes = {name: result["change"][:, i].double().numpy() for i, name in enumerate(names)}
        runs[job.arm].append(
            TrainedRun(
                start=load_result(folder / "blocks-start.safetensors"),
                end=load_result(folder / "blocks.safetensors"),
                changes=changes,
                attention=load_steps(folder, "dev.attention"),
                width=documents_of(config, job).d_vocab,
                dev=_dev_losses(folder),
                way=load_result(folder / "way.safetensors") if (folder / "way.safetensors").exists() else None,
            )
        )
    return runs


def _dev_losses(folder: Path) -> dict[int, float]:
    if not (path := folder / "dev-loss.safetensors").exists():
        return {}
    result = load_result(path)
    return {int(step): float(loss) for step, loss in zip(result.coords["step"], result["loss"], strict=True)}


def load_minimisers(config: TopicStructureConfig, out: Path) -> list[ProbeResult]:
    """What ``minimiser_result`` found, in the order of the seeds.

    Raises:
        InputError: naming a result that is not there.
    """
    paths = [results_of(config, Job(MINIMISER, seed), out)[0] for seed in config.seeds]
    check_there(out, paths)
    return [load_result(path) for path in paths]


def block(runs: Sequence[TrainedRun], measure: str, matrix: str, start: bool = False) -> np.ndarray:
    """``[seed]`` a measure of ``topic_blocks`` at the end or the start of training."""
    return np.array([float((r.start if start else r.end).sel(measure, matrix=matrix)) for r in runs])


def effect_of(runs: Sequence[TrainedRun], start: bool = False) -> np.ndarray:
    """``[seed]`` same-topic minus different-topic entries of ``W_E^T W_E`` off the diagonal, in standard deviations."""
    of = [block(runs, name, "W_E^T W_E", start) for name in ("same_off_diagonal", "different", "spread")]
    return (of[0] - of[1]) / of[2]  # type: ignore[no-any-return]


def shares_of(config: TopicStructureConfig, runs: ArmRuns) -> tuple[list[Cell], np.ndarray]:
    """E3's cells; ``[seed cell]`` share of ``W_V``'s way at the end of stage 1.

    NaN if attention did not move or training diverged.
    """
    known = cells(config)
    of = [[run.stages.early if run.moves else math.nan for run in runs[cell.arm]] for cell in known]
    return known, np.array(of).T


def mixing_values(config: TopicStructureConfig, runs: ArmRuns) -> dict[int, np.ndarray]:
    """Number of topics to ``[seed tau]`` values of g."""
    v = config.documents.words_per_topic
    return {
        n: np.array([[r.g(v) for r in runs[f"E4a theory T{n} tau{tau}"]] for tau in config.topics_per_document]).T
        for n in config.topics
    }
