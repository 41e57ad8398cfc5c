"""What the study concludes from runs made by hand, in which every seed, step, layer and position has its own value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mechclust.studies import get_study
from mechclust.studies.cluster_factors.config import PRIVATE, SHARED, TWO, ClusterFactorsConfig, overlap_arm
from mechclust.studies.cluster_factors.results import ArmResults, Results, table_of
from mechclust.studies.cluster_factors.run import trainings
from tests.frozen import check_frozen
from tests.mechclust.studies.cluster_factors.test_findings import CONFIG, ideal_run, random_run, results_of, runs

STUDY = get_study("cluster-factors")
DRAWN = (PRIVATE, overlap_arm(0.4), SHARED, TWO)
TABLE = "Adjusted Rand index of the last layer at the end of training, by position and label"
ONE_SEED = replace(CONFIG, seeds=CONFIG.seeds[:1])


def concluded(config: ClusterFactorsConfig, results: Results) -> dict[str, Any]:
    analysis = STUDY.report(config, {arm: results[arm] for arm in DRAWN})
    return {
        "trainings": [f"{training.times} networks" for training in trainings(config)],
        "notes": list(analysis.notes),
        **{finding.id: finding for finding in STUDY.findings(config, results)},
        TABLE: table_of(results),
        "captions": [panel.caption for panel in analysis.panels],
        **{panel.name: panel.figure for panel in analysis.panels},
    }


def first_seed(arm: ArmResults) -> ArmResults:
    """Keep one seed, whose first layer is undefined."""

    def cut(values: np.ndarray) -> np.ndarray:
        return values[:1].copy()

    ari = {name: cut(curve) for name, curve in arm.ari.items()}
    ari["x task"][:, :, 0] = np.nan
    null = {name: cut(curve) for name, curve in arm.null.items()}
    return ArmResults(arm.steps, ari, null, cut(arm.linear), cut(arm.accuracy), cut(arm.became))


def of_random_runs() -> dict[str, Any]:
    return concluded(CONFIG, results_of(runs(random_run)))


def of_ideal_runs() -> dict[str, Any]:
    results = results_of(runs(ideal_run))
    return {finding.id: finding for finding in STUDY.findings(CONFIG, results)}


def of_one_seed() -> dict[str, Any]:
    results = {arm: first_seed(of) for arm, of in results_of(runs(random_run)).items()}
    return {finding.id: finding for finding in STUDY.findings(ONE_SEED, results)} | {TABLE: table_of(results)}


CASES = {
    "cluster-factors": of_random_runs,
    "cluster-factors ideal": of_ideal_runs,
    "cluster-factors of one seed": of_one_seed,
}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
