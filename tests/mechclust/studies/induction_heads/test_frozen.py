"""What the study concludes from runs made by hand with different values for every seed, checkpoint and head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mechclust.studies.induction_heads.config import LAYERS_OF_ARM, jobs
from mechclust.studies.induction_heads.findings import findings_of
from mechclust.studies.induction_heads.results import RunResults
from mechclust.studies.induction_heads.study import report
from mechclust.studies.study import Job
from tests.frozen import check_frozen
from tests.mechclust.studies.induction_heads.test_findings import CONFIG, STEPS, ideal_run


def random_run(job: Job) -> RunResults:
    """Nothing is learnt in order."""
    n = LAYERS_OF_ARM[job.arm]
    draw = np.random.default_rng([n, job.seed])
    shape = (len(STEPS), n, 2)
    return RunResults(
        STEPS, 4 * draw.random(len(STEPS)), draw.random(shape), draw.random(shape), draw.random((n, 2)), draw.random(n)
    )


def concluded(of_run: Any) -> dict[str, Any]:
    runs = {job: of_run(job) for job in jobs(CONFIG)}
    analysis = report(CONFIG, runs)
    return {
        "headline": analysis.headline,
        **{finding.id: finding for finding in findings_of(CONFIG, runs)},
        **{f"figure {panel.name}": panel.figure for panel in analysis.panels},
    }


CASES = {"induction-heads": lambda: concluded(ideal_run), "induction-heads of chance": lambda: concluded(random_run)}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
