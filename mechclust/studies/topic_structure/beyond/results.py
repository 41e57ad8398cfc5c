"""What E5 measured, arm by arm and seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mechclust.studies.kept import check_there
from mechclust.studies.topic_structure.arms import arms, beyond_steps, jobs, results_of
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.tables import ATTENTION, SCORES, VALUES
from mechclust.training import load_steps
from probes import ProbeResult, load_result
from tasks import InputError

TOPICAL = 1.2  # ratio from which attention is said to be topical


@dataclass(frozen=True)
class BeyondRun:
    """What one network of E5 measured.

    Attributes:
        steps: ``[m]`` steps at which it was measured.
        attention: ``[m 3]`` mean attention to the same word, to other words of a topic, to words of other topics, over
            the pairs of all documents.
        ratio: ``[m]`` attention to other words of a topic over attention to words of other topics, within documents.
        dev: ``[m]`` loss on the development documents.
        scores: measures of ``TableTopics`` of the attention scores, ``[m]`` each.
        table: the same of the attention among all words.
        values: the same of ``W_V``.
    """

    steps: np.ndarray
    attention: np.ndarray
    ratio: np.ndarray
    dev: np.ndarray
    scores: Mapping[str, np.ndarray]
    table: Mapping[str, np.ndarray]
    values: Mapping[str, np.ndarray]

    @property
    def own(self) -> np.ndarray:
        """``[m]`` attention to the same word over attention to other words of its topic."""
        return self.attention[:, 0] / self.attention[:, 1]  # type: ignore[no-any-return]

    @property
    def topical(self) -> int:
        """Place of the first step at which attention is topical; of the last, if it never is."""
        steps = np.flatnonzero(self.ratio >= TOPICAL)
        return int(steps[0]) if len(steps) else len(self.ratio) - 1

    def at(self, curve: np.ndarray, step: int) -> float:
        """The value of a curve ``[m]`` at a measured step."""
        return float(curve[list(self.steps).index(step)])


BeyondRuns: TypeAlias = Mapping[str, list[BeyondRun]]


def load_beyond(config: TopicStructureConfig, out: Path) -> dict[str, list[BeyondRun]]:
    """Every arm's networks in the order of the seeds.

    Raises:
        InputError: naming a result that is missing, or a folder that was measured at other steps.
    """
    found: dict[str, list[BeyondRun]] = {name: [] for name in arms(config)}
    for job in jobs(config):
        check_there(out, results_of(config, job, out))
        folder = out / "results" / job.name
        tables = load_result(folder / "tables.safetensors")
        steps, attention = beyond_steps(config), load_steps(folder, "dev.attention")
        dev = load_result(folder / "dev-loss.safetensors")
        if any(list(map(int, result.coords["step"])) != steps for result in (tables, dev)):
            raise InputError(f"{str(folder)!r} was not measured at steps {steps}; give the folder of one run")
        found[job.arm].append(
            BeyondRun(
                steps=np.array(steps),
                attention=np.stack([attention[step]["overall_mean"].numpy() for step in steps]),
                ratio=np.array([float(attention[step]["overall_ratio"]) for step in steps]),
                dev=dev["loss"].numpy(),
                scores=_measures(tables, SCORES),
                table=_measures(tables, ATTENTION),
                values=_measures(tables, VALUES),
            )
        )
    return found


def _measures(tables: ProbeResult, table: str) -> dict[str, np.ndarray]:
    at = list(tables.coords["table"]).index(table)
    return {name: values[:, at].numpy() for name, values in tables.values.items()}


def label_of(arm: str) -> str:
    """An arm's name in figures and tables."""
    return arm.removeprefix("E5 ")
