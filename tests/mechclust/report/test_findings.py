"""Findings: one function judges what was measured and what was drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.report.claims import EarlierRun
from mechclust.report.draws import exchanged, moved_to
from mechclust.report.findings import Finding
from mechclust.report.verdicts import Bound

ABOVE = Finding(
    "X1", "a is above b", "ours", lambda data: [("", data["a"] - data["b"], Bound(">", 0))], exchanged(("a", "b")),
    "exchanged", moved_to(a=9.0), "a about 9", paper=3, chance="0", note="said",
)  # fmt: skip
DATA = {"a": np.arange(1.0, 13.0), "b": np.zeros(12)}
BEFORE = (EarlierRun("an earlier run", 3, "undecided"),)


def test_a_claim_that_is_false_in_the_null_draws_is_severe():
    found = ABOVE.judged(DATA, history=BEFORE)
    assert (found.verdict, found.power, found.severity_draws) == ("holds", 1.0, 200)
    assert found.severity >= 0.95
    assert found.severity_note == "exchanged; power: a about 9"
    assert (found.paper, found.chance, found.note, found.history) == (3, "0", "said", BEFORE)


def test_a_claim_that_cannot_fail_is_weak():
    forced = replace(ABOVE, parts=lambda data: [("", data["a"] + data["b"], Bound(">", 0))])
    assert forced.judged(DATA).severity == 0


def test_draws_without_a_text_are_not_named():
    assert replace(ABOVE, planted_what="").judged(DATA).severity_note == "exchanged"


@pytest.mark.parametrize(("why", "said"), [("", "this size of the study cannot test it"), ("too short", "too short")])
def test_what_is_not_tested_draws_nothing_and_keeps_its_numbers(why, said):
    found = replace(ABOVE, null=None, planted=None).judged(DATA, tested=False, why_not=why)
    assert (found.verdict, found.severity, found.severity_note) == ("not tested", None, said)
    assert found.note == f"not tested: {said}; said"
    assert found.per_seed == tuple(DATA["a"])


def test_a_part_without_values_draws_nothing():
    found = replace(ABOVE, null=None).judged({"a": np.zeros(0), "b": np.zeros(0)}, why_not="no runs")
    assert (found.verdict, found.severity, found.severity_note) == ("not tested", None, "no runs")


def test_what_was_not_measured_says_why():
    found = ABOVE.lacking("no runs", BEFORE)
    assert (found.verdict, found.severity, found.severity_note, found.bound) == ("not tested", None, "no runs", "-")
    assert (found.note, found.history) == ("not tested: no runs; said", BEFORE)


def test_one_part_with_a_name_is_bounded_by_it():
    named = replace(ABOVE, parts=lambda data: [("a - b", data["a"] - data["b"], Bound(">", 0))])
    assert named.claimed(DATA).bound == "a - b > 0"
    assert ABOVE.claimed(DATA).bound == "> 0"


def test_intervals_that_are_given_are_used():
    wide = replace(ABOVE, intervals=lambda data: {"": (-1.0, 20.0)})
    assert wide.claimed(DATA).verdict == "undecided"
