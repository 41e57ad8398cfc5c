"""Claims about curves: the verdict is that of the interval over tasks, and severity is counted with the same code."""

from __future__ import annotations

import numpy as np
import pytest

from mechclust.report.curve_claims import CurveClaim, Null, judged
from mechclust.report.curve_statistics import last_gap, upper_gap
from mechclust.report.null_curves import swapped
from mechclust.report.task_curves import bootstrap
from mechclust.report.verdicts import Bound
from tests.mechclust.report.test_task_curves import curves

BASE = np.random.default_rng(0).random((12, 4)) * 0.2


def made(tuned, *parts, id="X1", null=swapped, **others):
    parts = parts or (("", last_gap, Bound(">", 0.1)),)
    found = curves(BASE, tuned)
    return CurveClaim(id, "a statement", "ours", parts, Null(null, "a note"), found, **others)


@pytest.mark.parametrize(("gap", "verdict"), [(0.5, "holds"), (0.0, "does not hold"), (0.1, "undecided")])
def test_verdict_is_the_intervals(gap, verdict):
    noise = np.random.default_rng(1).normal(0, 0.02, BASE.shape)
    test = made(BASE + gap + noise)
    (found,) = judged([test], draws=0)
    assert found.verdict == verdict
    value, ends = bootstrap(test.curves, last_gap, 1000, 0)
    assert (found.measured, found.interval) == (value, ends)
    assert (found.severity, found.severity_note) == (None, "not counted, since no draws were asked for")


def test_parts_have_intervals_of_their_own():
    parts = (("last", last_gap, Bound(">", 0.1)), ("upper", upper_gap, Bound("<", 0.1)))
    (found,) = judged([made(BASE + 0.5, *parts)], draws=0)
    assert [part.verdict for part in found.parts] == ["holds", "does not hold"]
    assert found.verdict == "does not hold"
    assert found.parts[1].interval == bootstrap(curves(BASE, BASE + 0.5), upper_gap, 1000, 0)[1]


def test_severity_and_power_are_shares_of_draws_that_hold():
    """A null in which the claim is true half of the time, and planted data in which it is in one of four."""

    def half(found, draw):
        return curves(BASE, BASE + (0.5 if draw.random() < 0.5 else 0.0))

    def quarter(found, draw):
        return curves(BASE, BASE + (0.5 if draw.random() < 0.25 else 0.0))

    (found,) = judged([made(BASE + 0.5, null=half, planted=quarter)])
    assert found.severity == pytest.approx(0.5, abs=0.12)
    assert found.power == pytest.approx(0.25, abs=0.1)
    assert (found.severity_draws, found.severity_note, found.weak) == (200, "a note", True)


def test_claims_judged_together_are_those_judged_alone():
    noise = np.random.default_rng(1).normal(0, 0.3, BASE.shape)
    tests = [made(BASE + 0.1 + noise), made(BASE + noise, ("", upper_gap, Bound(">", 0)), id="X2")]
    together = judged(tests)
    assert together == [judged([test])[0] for test in tests]
    assert [c.id for c in together] == ["X1", "X2"]


def test_not_tested_has_no_number():
    (found,) = judged([made(BASE, why_not="no task was learnt")])
    assert (found.verdict, found.measured, found.severity) == ("not tested", None, None)
    assert found.note == "not tested: no task was learnt"
    assert found.severity_note == "no task was learnt"


def test_one_task_decides_nothing():
    alone = curves([[0.1, 0.2]], [[0.8, 0.9]])
    parts = (("", last_gap, Bound(">", 0)),)
    (found,) = judged([CurveClaim("X1", "a statement", "ours", parts, Null(swapped, "a note"), alone)])
    assert (found.verdict, found.interval, found.severity) == ("not tested", None, None)
    assert found.measured == pytest.approx(0.7)
    assert found.severity_note == "too few tasks for an interval over them"


def test_draws_without_a_value_are_said():
    """One in fifty, as where a task by which a statistic divides is drawn by chance."""

    def rarely(c):
        values = np.array(last_gap(c), dtype=float)
        return np.where(np.arange(values.size).reshape(values.shape) % 50 == 49, np.nan, values)

    (found,) = judged([made(BASE, ("gap", rarely, Bound(">", -9)))], draws=0)
    assert found.interval is not None
    assert "2.0% of the draws of tasks leave gap undefined and are left out of its interval" in found.note


def undefined(c):
    return np.full(c.base.shape[:-2], np.nan)


def test_an_undefined_value_cannot_be_tested():
    (found,) = judged([made(BASE, ("gap", last_gap, Bound(">", -9)), ("way", undefined, Bound(">", 0)))])
    assert (found.verdict, found.severity) == ("not tested", None)
    assert found.note == "not tested: way is undefined"


def test_a_value_without_an_interval_is_said():
    """Defined for the tasks as they are, but hardly ever for those drawn from them."""
    parts = (("", lambda c: last_gap(c) if c.base.ndim == 2 else undefined(c), Bound(">", 0)),)
    (found,) = judged([made(BASE, *parts)], draws=0)
    assert found.verdict == "undecided"
    assert "no interval of the value: undefined in more than 5% of the draws of tasks" in found.note


def test_draws_without_a_value_count_neither_for_nor_against():
    """The value is undefined where tuned is below base: in two of five null draws."""

    def where_above(c):
        return np.where(last_gap(c) > 0, last_gap(c), np.nan)

    def mostly(found, draw):
        return curves(BASE, BASE + draw.choice([0.5, 0.0501, -0.5], p=[0.3, 0.3, 0.4]))

    (found,) = judged([made(BASE + 0.5, ("", where_above, Bound(">", 0.1)), null=mostly)])
    assert found.severity_draws == pytest.approx(120, abs=25)
    assert found.severity == pytest.approx(0.5, abs=0.15)
    assert found.severity_note == f"a note; {200 - found.severity_draws} of 200 draws could not be tested"
