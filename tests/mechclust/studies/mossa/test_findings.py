"""Every finding holds on what was made for it, fails alone where it is broken, and seldom holds on its null."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mechclust.report.findings import lacking_severity

from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.findings import boundary_note, encoded_difference, findings_of
from tests.mechclust.studies.mossa.made import ENCODED, NAMES, SEEN, measured

PAPER = MossaConfig()
FINDINGS = ["C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C11", "C12", "C14", "C18", "C19", "C20"]
SEEDS = 8


def judged(config=PAPER, draws=0, **changes):
    found = [measured(draw, **changes) for draw in range(SEEDS)]
    return {c.id: c for c in findings_of(config, found, draws=draws)}


def verdicts(**changes):
    return {id: c.verdict for id, c in judged(**changes).items()}


def test_hold_where_everything_agrees():
    found = judged()
    assert list(found) == sorted([*FINDINGS, "C1", "C10"], key=lambda id: int(id[1:]))
    assert {id for id, c in found.items() if c.verdict != "holds"} == set()
    assert {id for id, c in found.items() if c.kind == "check"} == {"C1", "C10"}
    assert str(measured().groups) == "shared 1-2, transition 3-4, refinement 5-8"


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"identity": 1e-8}, {"C1"}),
        ({"pre_spread": [0.33, 0.32, 0.31, 0.3, 0.2, 0.2, 0.2, 0.2]}, {"C3"}),
        ({"tuned": [0.99, 0.94, 0.98, 0.97, 0.96, 0.95, 0.94, 0.69]}, {"C4"}),
        ({"tuned": [0.99, 0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.9]}, {"C5"}),
        ({"tuned_spread": [0.02, 0.1, 0.06, 0.05, 0.03, 0.04, 0.06, 0.06]}, {"C6"}),
        ({"encoded_gain": 0.05}, {"C7"}),
        ({"dims": ([10, 10, 30, 30, 30, 30, 30, 30], [10, 10, 12, 20, 20, 20, 20, 20])}, {"C8"}),
        ({"unseen_tuned": [0.99, 0.94, 0.99, 0.98, 0.85, 0.8, 0.75, 0.7]}, {"C9"}),
        ({"bias": 0.021}, {"C10"}),
        ({"purer": -0.01}, {"C11"}),
        ({"dims": ([10, 10, 12, 12, 12, 12, 12, 12], [10, 10, 12, 20, 20, 30, 30, 30])}, {"C12"}),
        ({"unseen_tuned": [0.99, 0.94, 0.9, 0.85, 0.7, 0.6, 0.5, 0.4]}, {"C18"}),
        ({"unseen_tuned_spread": [0.02, 0.1, 0.15, 0.2, 0.03, 0.04, 0.05, 0.05]}, {"C19"}),
        ({"dims": ([10, 10, 12, 12, 12, 12, 12, 12], [10, 10, 12, 20, 20, 20, 20, 30])}, {"C12", "C20"}),
    ],
    ids=lambda value: str(sorted(value)),  # a set has another order in every process
)
def test_fail_one_by_one(changes, broken):
    assert {name for name, verdict in verdicts(**changes).items() if verdict == "does not hold"} == broken


def test_c2_wants_a_fall_with_depth_that_is_not_small():
    assert verdicts(pre=[1.0, 0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93])["C2"] == "does not hold"
    assert verdicts(pre=[0.5, 0.6, 0.7, 0.6, 0.5, 0.6, 0.7, 0.6])["C2"] == "does not hold"


def test_c14_wants_half_of_the_way():
    middle = [0.99, 0.94, 0.98, 0.97, 0.85, 0.8, 0.75, 0.71]
    assert verdicts(tuned=middle)["C14"] == "does not hold"
    without = [replace(measured(draw), ceiling=None) for draw in range(SEEDS)]
    found = {c.id: c for c in findings_of(PAPER, without, draws=0)}
    assert (found["C14"].verdict, found["C14"].note) == ("not tested", "not tested: no task has a second control")


def test_what_is_held_out_is_tested_where_tuned_has_skill():
    without, with_it = verdicts(zero_shot=0.04), verdicts(zero_shot=0.06)
    for id in ("C9", "C18", "C19"):
        assert (without[id], with_it[id]) == ("not tested", "holds")
    finding = judged(zero_shot=0.04)["C9"]
    assert (finding.measured, finding.per_seed) == (None, ())
    assert "0.04 above chance" in finding.note
    everything = [replace(measured(draw), seen=np.ones(24, dtype=bool), ceiling=None) for draw in range(SEEDS)]
    assert {c.verdict for c in findings_of(PAPER, everything, draws=0) if c.id in ("C9", "C18", "C19")} == {"not tested"}


def test_c9_says_where_the_curves_cross():
    assert "against seen): 5 against 3, 5 against 3" in judged()["C9"].note


def test_few_layers_or_prompts():
    shallow = judged(replace(PAPER, n_layers=6))
    assert {id for id, c in shallow.items() if c.verdict == "not tested"} == {"C5", "C6", "C9", "C12", "C20"}
    assert judged(replace(PAPER, suite=replace(PAPER.suite, n_eval=639)))["C10"].verdict == "not tested"


def test_smoke_tests_nothing():
    assert {c.verdict for c in judged(replace(PAPER, test_findings=False)).values()} == {"not tested"}


def test_encoded_difference_is_of_the_means():
    m = measured()
    gain = (m.cka["tuned"] - m.cka["base"])[:, 4:].mean(axis=1)
    expected = gain[SEEN & ~ENCODED].mean() - gain[SEEN & ENCODED].mean()
    curves = replace(m.curves, covariates={"not encoded": (~ENCODED).astype(float)}).seen
    assert encoded_difference(curves) == pytest.approx(expected)


def test_c12_is_about_seeds_with_a_transition():
    apart = {"tuned_spread": [0.3] * 8}  # tasks never agree: no transition
    found = [measured(draw, **(apart if draw < SEEDS - 3 else {})) for draw in range(SEEDS)]
    c12, c20 = (c for c in findings_of(PAPER, found, draws=200) if c.id in ("C12", "C20"))
    assert (c12.verdict, c12.seeds, c12.severity_draws) == ("holds", 3, 180)
    assert "20 of 200 draws could not be tested" in c12.severity_note  # too few seeds with a transition
    assert c20.seeds == SEEDS
    fewer = next(c for c in findings_of(PAPER, found[:-1], draws=200) if c.id == "C12")
    assert (fewer.verdict, fewer.measured, fewer.severity) == ("not tested", None, None)
    assert f"not tested: defined in 2 of {SEEDS - 1} seeds; at least 3 are needed" in fewer.note


def test_boundaries_have_intervals():
    found = [measured().curves.seen, measured(tuned=[0.99, 0.98, 0.9, 0.97, 0.96, 0.95, 0.94, 0.9]).curves.seen]
    assert boundary_note(found) == (
        "last shared layer 2.5 (-3.9 to 8.9), last layer of the transition 4.0 (4.0 to 4.0), of 8; 2 of 2 seeds have a "
        "transition"
    )


def _layers_in_order(m, order):
    return replace(
        m, cka={k: v[:, order] for k, v in m.cka.items()}, dims={k: np.asarray(v)[order] for k, v in m.dims.items()}
    )


@pytest.fixture(scope="module")
def with_severity():
    return judged(draws=200)


class TestSeverity:
    def test_every_finding_has_one(self, with_severity):
        assert lacking_severity(with_severity.values()) == []
        assert {with_severity[id].severity_draws for id in FINDINGS} == {200}

    def test_findings_are_seldom_true_of_their_null(self, with_severity):
        weak = {id for id in FINDINGS if with_severity[id].weak}
        assert weak <= {"C7", "C20"}
        # C7: two operations of six differ from four more often than not. C20: where tasks agree at six layers of
        # eight, the rule finds three groups in most orders of the layers.

    def test_the_null_of_the_boundaries_is_judged(self):
        """Most draws keep a transition in most seeds, at another place; a draw without any would say nothing of C12."""
        found = [measured(draw) for draw in range(SEEDS)]
        for i in range(20):
            drawn = [
                _layers_in_order(m, np.random.default_rng([i, seed]).permutation(8)) for seed, m in enumerate(found)
            ]
            verdicts = {c.id: c.verdict for c in findings_of(PAPER, drawn, draws=0)}
            assert verdicts["C12"] in ("does not hold", "undecided")
            assert verdicts["C20"] != "not tested"

    def test_power_is_that_of_the_published_curves(self, with_severity):
        power = {id: with_severity[id].power for id in FINDINGS}
        assert {id for id, share in power.items() if share is None} == {"C7", "C8", "C11", "C14"}
        assert power["C4"] > 0.9

    def test_what_is_not_tested_says_why(self):
        found = judged(replace(PAPER, test_findings=False), draws=200)
        assert {c.severity_note for c in found.values() if c.kind == "finding"} == {
            "this size of the study cannot test it"
        }


def test_the_held_out_tasks_are_a_cell_of_each_operation_and_every_argument():
    held = [name for name, seen in zip(NAMES, SEEN, strict=True) if not seen]
    assert len(held) == len({name.split("-")[0] for name in held}) == 6
    assert {name.split("-")[1] for name in held} == set("0123")
