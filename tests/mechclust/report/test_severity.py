"""Severity and power, against shares that theory gives."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mechclust.report.severity import LEAST_DRAWS, NOT_COMPUTED, Severity, severities_of, severity_of
from mechclust.report.verdicts import Bound, interval
from tasks import InputError


def above(rng, mean, n=10):
    return Bound(">", 0).judge(interval(rng.normal(mean, 1, n).tolist()))


def test_of_a_t_interval_is_its_level():
    """On noise an interval lies above 0 in 2.5% of draws."""
    found = severity_of(lambda rng: above(rng, 0), "noise", draws=2000)
    assert found.share == pytest.approx(0.975, abs=0.012)
    assert (found.draws, found.note, found.power) == (2000, "noise", None)


def test_power_is_that_of_the_t_test():
    n, mean = 10, 0.8
    expected = stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, mean * np.sqrt(n))
    found = severity_of(lambda rng: above(rng, 0), "noise", planted=lambda rng: above(rng, mean), draws=2000)
    assert found.power == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    ("verdict", "share"), [("holds", 0.0), ("undecided", 1.0), ("does not hold", 1.0), ("not tested", None)]
)
def test_counts_what_is_not_called_true(verdict, share):
    assert severity_of(lambda rng: verdict, "none").share == share
    assert severity_of(lambda rng: "holds", "none", planted=lambda rng: verdict).power == (verdict == "holds")


def test_every_draw_is_its_own_and_the_same_again():
    seen = []

    def look(rng):
        seen.append(rng.random())
        return "undecided"

    severity_of(look, "none", planted=look, seed=3)
    assert len(set(seen)) == 2 * LEAST_DRAWS
    first, seen = seen, []
    severity_of(look, "none", planted=look, seed=3)
    assert seen == first
    severity_of(look, "none", seed=4)
    assert not set(seen[2 * LEAST_DRAWS :]) & set(first)


def test_several_claims_share_their_draws():
    calls = []

    def judge(rng):
        calls.append(0)
        x = rng.random()
        return {"A": "holds" if x < 0.5 else "undecided", "B": "undecided" if x < 0.5 else "holds"}

    found = severities_of(judge, "halves", planted=lambda rng: {"A": "holds"})
    assert len(calls) == LEAST_DRAWS
    assert found["A"].share + found["B"].share == pytest.approx(1.0)  # of every draw, one is called true
    assert 0.3 < found["A"].share < 0.7
    assert (found["A"].power, found["B"].power) == (1.0, None)


def test_draws_that_cannot_be_tested_count_neither_way():
    def judge(rng):
        x = rng.random()
        seldom = "not tested" if x < 0.2 else "holds" if x < 0.4 else "undecided"
        return {"seldom": seldom, "mostly": "not tested" if x < 0.8 else "undecided", "always": "not tested"}

    found = severities_of(judge, "noise", planted=judge)
    few = 200 - found["seldom"].draws
    assert 20 < few < 60
    assert found["seldom"].note == f"noise; {few} of 200 draws could not be tested"
    assert 0.65 < found["seldom"].share < 0.85  # of those tested, three in four
    assert 0.1 < found["seldom"].power < 0.3  # of all
    assert (found["mostly"].share, found["mostly"].draws) == (None, 0)  # half of the draws at least
    assert found["always"] == Severity(None, 0, "noise; 200 of 200 draws could not be tested", 0.0)


def test_refusals():
    with pytest.raises(InputError) as refused:
        severity_of(lambda rng: "holds", "none", draws=199)
    assert str(refused.value) == "draws is 199; expected at least 200, or the share says little"
    with pytest.raises(InputError) as refused:
        Severity(None, 0, "")
    assert str(refused.value) == "severity has no note; say what the null draws were, or why there are none"
    assert NOT_COMPUTED.share is None
