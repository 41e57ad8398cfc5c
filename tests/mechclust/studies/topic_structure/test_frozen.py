"""What the study concludes from runs made by hand, of the published experiments and of those beyond them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechclust.studies import get_study
from mechclust.studies.study import Job
from mechclust.studies.topic_structure import figures, optimum_figures, stage_figures
from mechclust.studies.topic_structure.arms import arms, documents_of, stage_cells
from mechclust.studies.topic_structure.attention_figures import attention_figure
from mechclust.studies.topic_structure.attention_table import attention_means
from mechclust.studies.topic_structure.beyond import figures as beyond_figures
from mechclust.studies.topic_structure.beyond.findings import beyond_findings
from mechclust.studies.topic_structure.beyond.report import beyond_tables
from mechclust.studies.topic_structure.beyond.results import BeyondRun
from mechclust.studies.topic_structure.findings import findings_of
from mechclust.studies.topic_structure.report import published_tables
from mechclust.studies.topic_structure.results import TrainedRun
from tests.frozen import check_frozen
from tests.mechclust.studies.topic_structure.made_runs import PAPER, constructed, effects, minimisers
from tests.mechclust.studies.topic_structure.test_beyond import BEYOND, runs_of
from tests.mechclust.studies.topic_structure.topic_models import built, shaken

SMOKE = get_study("topic-structure").preset("smoke")


def findings_and_figures(runs: dict[str, list[TrainedRun]]) -> dict[str, Any]:
    found = minimisers(PAPER)
    return {
        **{finding.id: finding for finding in findings_of(PAPER, runs, found)},
        **published_tables(PAPER, runs),
        "optimum": optimum_figures.optimum_figure(PAPER, runs, found),
        "stages": stage_figures.stages_figure(PAPER, runs),
        "norms": stage_figures.norms_figure(PAPER, runs),
        "attention": attention_figure(attention_means(PAPER, runs)),
        "mixing": figures.mixing_figure(PAPER, runs),
        "everything trained": figures.everything_trained_figure(PAPER, runs),
    }


def of_published() -> dict[str, Any]:
    return findings_and_figures(constructed())


def of_spoilt() -> dict[str, Any]:
    """Attention does not move in a seed of one cell, and another diverges. Topics separate little."""
    runs = constructed()
    still, diverged, *_ = [cell.arm for cell in stage_cells(PAPER)]
    for arm, factor in ((still, 0.01), (diverged, np.nan)):
        first, *others = runs[arm]
        changes = {name: curve * factor if name != "W_V" else curve for name, curve in first.changes.items()}
        runs[arm] = [replace(first, changes=changes), *others]
    for arm in [name for name in arms(PAPER) if name.startswith("E1b")]:
        runs[arm] = [replace(run, effects=effects(0.4, 0.1 * i)) for i, run in enumerate(runs[arm])]
    return findings_and_figures(runs)


def in_no_order(run: BeyondRun, seed: int) -> BeyondRun:
    """Give a run curves that neither rise nor fall, so that its least and largest values are at any step."""
    draw = np.random.default_rng(seed)

    def shuffled(curve: np.ndarray) -> np.ndarray:
        return curve[draw.permutation(len(curve))] * draw.uniform(0.9, 1.1, len(curve))

    names = ("rank", "common", "explained", "explained_null")
    scores = {name: shuffled(run.scores.get(name, run.table.get(name))) for name in names}
    table = {name: shuffled(curve) for name, curve in run.table.items()}
    values = {"explained": shuffled(run.table["explained"])}
    attention = np.stack([shuffled(column) for column in run.attention.T], axis=1)
    return replace(
        run,
        attention=attention,
        ratio=shuffled(run.ratio),
        dev=shuffled(run.dev),
        scores=scores,
        table=table,
        values=values,
    )


def of_beyond() -> dict[str, Any]:
    runs = {
        name: [in_no_order(run, 100 * place + i) for i, run in enumerate(of)]
        for place, (name, of) in enumerate(runs_of().items())
    }
    return {
        **{finding.id: finding for finding in beyond_findings(BEYOND, runs)},
        **beyond_tables(runs),
        "after two stages": beyond_figures.after_training_figure(BEYOND, runs),
        "documents": beyond_figures.documents_figure(BEYOND, runs),
    }


def random_network(out: Path, job: Job) -> Any:
    """A network of the job's vocabulary whose weights depend on its arm."""
    return shaken(built(d_vocab=documents_of(SMOKE, job).d_vocab), seed=sum(map(ord, job.arm)))


def of_networks() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "load_trained", random_network)
        return {
            "heat maps": figures.heat_maps_figure(SMOKE, Path()),
        }


CASES = {
    "topic-structure": of_published,
    "topic-structure spoilt": of_spoilt,
    "topic-structure beyond": of_beyond,
    "topic-structure networks": of_networks,
}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
