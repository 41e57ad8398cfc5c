"""What the runs of the topic-structure study measured, and the published numbers beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mechclust.studies.kept import check_there
from mechclust.studies.topic_structure.config import ROWS, TopicStructureConfig, arms, jobs, results_of
from mechclust.studies.topic_structure.stages import TwoStages, two_stages
from mechclust.training import load_steps
from probes import ProbeResult, load_result

if TYPE_CHECKING:
    import pandas as pd

# Slides of the paper: attention to the same word, the same topic's other words, different topics.
PUBLISHED = {
    "Adam .003": (0.00759, 0.0108, 0.00689),
    "Adam .01": (0.00811, 0.0100, 0.00707),
    "Adam .03": (0.00453, 0.0116, 0.00665),
    "SGD .01": (0.0105, 0.0106, 0.00673),
    "SGD .03": (0.0140, 0.0103, 0.00641),
}
# g at the population optimum with ten topics, by topics in a document (O3).
THEORY_G = {2: 5.76, 3: 7.01, 4: 7.72, 5: 8.18, 8: 8.95}


@dataclass(frozen=True)
class TrainedRun:
    """What one run measured.

    Attributes:
        start: ``topic_blocks`` of its matrices before training.
        end: and after it.
        norms: weight to ``[steps]`` norms (E3), else empty.
        attention: step to ``TopicAttention`` result (E4), else empty.
        null: the last one with its permutation interval (E4, first seed), or ``None``.
    """

    start: ProbeResult
    end: ProbeResult
    norms: Mapping[str, np.ndarray]
    attention: Mapping[int, ProbeResult]
    null: ProbeResult | None

    @property
    def means(self) -> np.ndarray:
        """``[3]`` mean attention at the end by bucket."""
        return self.attention[max(self.attention)]["overall_mean"].numpy()

    @property
    def ratio(self) -> float:
        """Same-topic over different-topic attention at the end."""
        return float(self.means[1] / self.means[2])

    @property
    def stages(self) -> TwoStages:
        """The two-stage rule applied to its norms."""
        return two_stages(self.norms)

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
        norms: dict[str, np.ndarray] = {}
        if (folder / "norms.safetensors").exists():
            result = load_result(folder / "norms.safetensors")
            names = [name.split(".")[-1] for name in result.coords["weight"]]
            norms = {name: result["norm"][:, i].numpy() for i, name in enumerate(names)}
        null = load_steps(folder, "dev.null")
        runs[job.arm].append(
            TrainedRun(
                start=load_result(folder / "blocks-start.safetensors"),
                end=load_result(folder / "blocks.safetensors"),
                norms=norms,
                attention=load_steps(folder, "dev.attention"),
                null=next(iter(null.values()), None),
            )
        )
    return runs


def by_row(runs: ArmRuns, experiment: str) -> ArmRuns:
    """The arms of E4a or E4b by row of the published table, with ``" scaled"`` behind it where the input is longer."""
    rows = [row + scaled for row in ROWS for scaled in ("", " scaled")]
    return {row: runs[name] for row in rows if (name := f"{experiment} {row}") in runs}


def mixing_values(config: TopicStructureConfig, runs: ArmRuns) -> dict[int, np.ndarray]:
    """Number of topics to ``[seed tau]`` values of g."""
    v = config.documents.words_per_topic
    return {
        n: np.array([[r.g(v) for r in runs[f"E4a theory T{n} tau{tau}"]] for tau in config.topics_per_document]).T
        for n in config.topics
    }


def attention_table(runs: ArmRuns) -> pd.DataFrame:
    """Mean attention by bucket at the end (mean and standard deviation over seeds), beside the published, as text."""
    import pandas as pd

    buckets = ("same word", "same topic", "different topic")
    table = []
    for experiment in ("E4a", "E4b"):
        for row, seeds in by_row(runs, experiment).items():
            published = PUBLISHED[row.removesuffix(" scaled")]
            means = np.array([run.means for run in seeds])
            ours = [f"{mean:.5f}" for mean in means.mean(axis=0)]
            if len(seeds) > 1:
                ours = [f"{mean} ± {std:.5f}" for mean, std in zip(ours, means.std(axis=0, ddof=1), strict=True)]
            theirs = [f"{x:.5f}" for x in published]
            ratios = f"{np.mean([run.ratio for run in seeds]):.3f}", f"{published[1] / published[2]:.2f}"
            table.append([experiment, row, *ours, ratios[0], *theirs, ratios[1]])
    heads = [*buckets, "ratio"]
    return pd.DataFrame(table, columns=["", "optimiser", *heads, *(f"paper: {head}" for head in heads)])
