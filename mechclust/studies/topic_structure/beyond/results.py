"""What E5 measured, arm by arm and seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from mechclust.studies.kept import require_files
from mechclust.studies.topic_structure.arms import arms, beyond_steps, jobs, results_of
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.tables import ATTENTION, SCORES, VALUES
from mechclust.training import load_results_by_step
from probes import ProbeResult, load_result
from tasks import InputError

TOPICAL = 1.2  # ratio from which attention is said to be topical

Curve: TypeAlias = Float[np.ndarray, "step"]


@dataclass(frozen=True)
class BeyondRun:
    """Measurements of one network of E5.

    Attributes:
        steps: steps at which it was measured.
        attention: mean attention to the same word, to other words of a topic, to words of other topics, over the pairs
            of all documents.
        ratio: attention to other words of a topic over attention to words of other topics, within documents.
        dev: loss on the development documents.
        scores: measures of ``TableTopics`` of the attention scores.
        table: measures of the attention among all words.
        values: measures of ``W_V``.
    """

    steps: Int[np.ndarray, "step"]
    attention: Float[np.ndarray, "step 3"]
    ratio: Curve
    dev: Curve
    scores: Mapping[str, Curve]
    table: Mapping[str, Curve]
    values: Mapping[str, Curve]

    @property
    def own(self) -> Curve:
        """Attention to the same word over attention to other words of its topic."""
        return self.attention[:, 0] / self.attention[:, 1]

    @property
    def rank(self) -> Curve:
        """Effective rank of the attention scores."""
        return self.scores["rank"]

    @property
    def explained_above_random(self) -> Curve:
        """Share of the attention among all words that topics explain, minus that of random topics (95%)."""
        return self.table["explained"] - self.table["explained_null"]

    @property
    def topical(self) -> int:
        """Place of the first step at which attention is topical; of the last, if it never is."""
        places = np.flatnonzero(self.ratio >= TOPICAL)
        return int(places[0]) if len(places) else len(self.ratio) - 1


BeyondRuns: TypeAlias = Mapping[str, Sequence[BeyondRun]]


def load_beyond(config: TopicStructureConfig, out: Path) -> dict[str, list[BeyondRun]]:
    """Read every arm's networks in the order of the seeds.

    Raises:
        InputError: naming a result that is missing, or a folder that was measured at other steps.
    """
    runs: dict[str, list[BeyondRun]] = {name: [] for name in arms(config)}
    for job in jobs(config):
        require_files(out, results_of(config, job, out))
        runs[job.arm].append(_load_run(out / "results" / job.name, beyond_steps(config)))
    return runs


def _load_run(folder: Path, steps: list[int]) -> BeyondRun:
    tables = load_result(folder / "tables.safetensors")
    dev = load_result(folder / "dev-loss.safetensors")
    for result in (tables, dev):
        if list(map(int, result.coords["step"])) != steps:
            raise InputError(f"{str(folder)!r} was not measured at steps {steps}; give the folder of one run")
    by_step = load_results_by_step(folder, "dev.attention")
    attention = [by_step[step] for step in steps]
    return BeyondRun(
        steps=np.array(steps),
        attention=np.stack([result["overall_mean"].numpy() for result in attention]),
        ratio=np.array([float(result["overall_ratio"]) for result in attention]),
        dev=dev["loss"].numpy(),
        scores=_measures(tables, SCORES),
        table=_measures(tables, ATTENTION),
        values=_measures(tables, VALUES),
    )


def _measures(tables: ProbeResult, table: str) -> dict[str, Curve]:
    place = list(tables.coords["table"]).index(table)
    return {name: values[:, place].numpy() for name, values in tables.values.items()}


def label_of(arm: str) -> str:
    """Return an arm's name in figures and tables."""
    return arm.removeprefix("E5 ")
