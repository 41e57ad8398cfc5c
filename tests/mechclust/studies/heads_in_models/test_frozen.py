"""What the study concludes from heads made by hand with different values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mechclust.studies import get_study
from mechclust.studies.heads_in_models.config import PLANTED, HeadsInModelsConfig
from mechclust.studies.heads_in_models.heads import Heads
from mechclust.studies.heads_in_models.results import Results, called_table, data_of
from tests.frozen import check_frozen
from tests.mechclust.studies.heads_in_models.made import CONFIG, made_models

STUDY = get_study("heads-in-models")


def concluded(config: HeadsInModelsConfig, results: Results) -> dict[str, Any]:
    analysis = STUDY.report(config, results)
    data = data_of(config, results)
    return {
        **{name: [f"{value:.6g}" for value in np.ravel(values)] for name, values in data.items()},
        "notes": list(analysis.notes),
        **{finding.id: finding for finding in STUDY.findings(config, results)},
        "Heads called, by block": called_table(config, results),
        "captions": [panel.caption for panel in analysis.panels],
        **{panel.name: panel.figure for panel in analysis.panels},
    }


def made() -> Results:
    """Heads of every model; where the planted ones are, one seed has a single head called."""
    found = made_models()
    for job, of_job in found.items():
        if job.arm == PLANTED:
            found[job] = {subject: planted(heads, at=job.seed - 5) for subject, heads in of_job.items()}
    return found


def planted(heads: Heads, at: int) -> Heads:
    """Call the first head of a layer alone, where one was planted in the first layer."""
    p = np.ones_like(heads.values["causal_p_holm"])
    p[at, 0] = 0.05
    values = {**heads.values, "causal_p_holm": p, "within_ratio": 0.1 * heads.values["within_ratio"]}
    return replace(heads, values=values, place=(0, 0))


def of_three_seeds() -> dict[str, Any]:
    return concluded(CONFIG, made())


def of_undefined() -> dict[str, Any]:
    """Without prompts, with one seed, and with within-ratios that are undefined: all of a model, or one of a head."""
    config = replace(CONFIG, model=None, seeds=CONFIG.seeds[:1])
    results = {}
    for job, models in made().items():
        if job.arm in {job.arm for job in STUDY.jobs(config)} and job.seed in config.seeds:
            results[job] = dict(models)
            for place, (subject, heads) in enumerate(models.items()):
                ratio = heads.values["within_ratio"].copy()
                ratio[:, : 4 if place else 1] = np.nan
                uncalled = frozenset(heads.labels[1:2])
                results[job][subject] = replace(
                    heads, values={**heads.values, "within_ratio": ratio}, uncalled=uncalled
                )
    return concluded(config, results)


CASES = {"heads-in-models": of_three_seeds, "heads-in-models undefined": of_undefined}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
