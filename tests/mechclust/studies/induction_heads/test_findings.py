"""The findings on curves made by hand: where they hold, fail, or hold on their control too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mechclust.evidence import Finding
from mechclust.studies.induction_heads import InductionHeadsConfig
from mechclust.studies.induction_heads.config import LAYERS_OF_ARM, jobs
from mechclust.studies.induction_heads.findings import findings_of
from mechclust.studies.induction_heads.results import RunResults, half_step
from mechclust.studies.induction_heads.study import report
from mechclust.studies.study import Job, check_findings

CONFIG = InductionHeadsConfig(seeds=(0, 1, 2))
STEPS = np.arange(0, 110, 10)
IDS = [f"O{i}" for i in range(1, 7)]
Change = Callable[[RunResults], RunResults]


def step_at(step: float) -> np.ndarray:
    """Rise from 0 to 1 around a step."""
    return np.clip((STEPS - step) / 20 + 0.5, 0, 1)


def ideal_run(job: Job) -> RunResults:
    """A run in which every finding holds and no control does: two layers change around step 60, one around step 30."""
    n = LAYERS_OF_ARM[job.arm]
    induction = np.zeros((len(STEPS), n, 2))
    previous = np.zeros((len(STEPS), n, 2))
    loss = 4 - 1.5 * step_at(30)
    if n == 2:
        induction[:, 1, 0] = (0.8 + 0.01 * job.seed) * step_at(60)
        induction[:, 1, 1] = 0.7 * step_at(60)
        previous[:, 0, 1] = (0.3 + 0.01 * job.seed) * step_at(50 - job.seed)
        loss = loss * (1 - 0.99 * step_at(61 + job.seed))
    else:
        previous[:, 0, 1] = -0.03 * step_at(40)
    rises = np.array([[0.01, 0.5 + 0.01 * job.seed], [0.02, 0.04]])[:n]
    return RunResults(STEPS, loss, induction, previous, alone=rises, together=np.array([5.0, 4.5 + job.seed / 10])[:n])


def judged(change: Change | None = None, config: InductionHeadsConfig = CONFIG) -> dict[str, Finding]:
    """Judge ideal runs, those with two layers put through ``change``."""
    runs = {job: ideal_run(job) for job in jobs(config)}
    if change is not None:
        runs = {job: change(run) if job.arm == "two layers" else run for job, run in runs.items()}
    return {finding.id: finding for finding in findings_of(config, runs)}


def test_every_finding_holds_on_ideal_runs_and_no_control_does() -> None:
    findings = judged()
    check_findings([*findings.values()])
    assert {id: finding.verdict for id, finding in findings.items()} == dict.fromkeys(IDS, "holds")
    assert [id for id, finding in findings.items() if finding.control is None] == ["O6"]
    assert [id for id, finding in findings.items() if finding.shown == "headline"] == ["O1", "O2", "O4"]


FAILING: dict[str, Change] = {
    "O1": lambda run: replace(run, induction=run.induction / 2),
    "O2": lambda run: replace(run, loss=run.loss[0] * (1 - 0.99 * step_at(40))),
    "O3 no head": lambda run: replace(run, previous=run.previous / 5),
    "O3 later": lambda run: replace(run, previous=np.repeat(0.4 * step_at(75), 4).reshape(run.previous.shape)),
    "O4": lambda run: replace(run, loss=run.loss + 0.3),
    "O5 all": lambda run: replace(run, together=run.together - np.array([0, 3])),
    "O5 one": lambda run: replace(run, alone=run.alone + 0.2),
    "O6": lambda run: replace(run, induction=run.induction + 0.1),
}


@pytest.mark.parametrize("name", FAILING)
def test_findings_fail_on_curves_that_contradict_them(name: str) -> None:
    assert judged(FAILING[name])[name.split()[0]].verdict == "does not hold"


def test_the_strongest_head_is_that_of_the_highest_score_in_its_layer() -> None:
    finding = judged()["O5"]
    assert finding.control is not None
    assert finding.parts[1].values == (0.02, 0.02, 0.02)
    assert finding.control.parts[1].values == pytest.approx((0.5, 0.51, 0.52))


def test_a_first_layer_as_robust_as_the_last_makes_its_finding_not_specific() -> None:
    assert judged(lambda run: replace(run, alone=run.alone / 10))["O5"].verdict == "not specific"


def test_half_way_of_a_curve_that_falls_and_of_a_flat_one() -> None:
    assert half_step(STEPS, 4 - 2 * step_at(60)) == pytest.approx(60)
    assert np.isnan(half_step(STEPS, np.ones(len(STEPS))))


def test_the_headline_gives_the_step_only_of_heads_that_form() -> None:
    runs = {job: ideal_run(job) for job in jobs(CONFIG)}
    assert "half of it by step 60. " in report(CONFIG, runs).headline
    none = {job: replace(run, induction=run.induction / 2) for job, run in runs.items()}
    assert "step" not in report(CONFIG, none).headline
