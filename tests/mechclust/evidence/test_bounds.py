"""Bounds, and what an interval says of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from mechclust.evidence.bounds import Bound, TwoSidedBound
from mechclust.evidence.intervals import mean_interval
from mechclust.evidence.verdict import joint_verdict, verdict_of
from tasks import InputError


class TestBound:
    @pytest.mark.parametrize(
        ("relation", "below", "at", "above"),
        [(">=", False, True, True), (">", False, False, True), ("<=", True, True, False), ("<", True, False, False)],
    )
    def test_met(self, relation, below, at, above):
        bound = Bound(relation, 0.5)
        assert [bound.met(x) for x in (0.4, 0.5, 0.6)] == [below, at, above]
        assert not bound.met(math.nan)

    def test_an_unknown_relation_is_refused(self):
        with pytest.raises(InputError, match=r"^relation is '=>'; expected '>=', '>', '<=' or '<'$"):
            Bound("=>", 0.5)

    def test_infinity_meets_what_it_should(self):
        assert Bound(">=", 5).met(math.inf)
        assert not Bound("<=", 5).met(math.inf)

    def test_text(self):
        assert str(Bound(">=", 0.95)) == ">= 0.95"
        assert str(Bound("<", 3)) == "< 3"


class TestWithin:
    def test_met(self):
        within = TwoSidedBound(0.2, 0.6)
        assert [within.met(x) for x in (0.1, 0.2, 0.4, 0.6, 0.7)] == [False, True, True, True, False]
        assert not within.met(math.nan)

    @pytest.mark.parametrize(
        ("interval", "verdict"),
        [
            ((0.2, 0.6), "holds"),
            ((0.1, 0.3), "undecided"),
            ((0.5, 0.7), "undecided"),
            ((0.1, 0.7), "undecided"),
            ((0.0, 0.1), "does not hold"),
            ((0.7, 0.9), "does not hold"),
            ((0.0, 0.2), "undecided"),
            ((0.6, 0.9), "undecided"),
            (None, "undecided"),
        ],
    )
    def test_by_the_whole_interval(self, interval, verdict):
        assert verdict_of(TwoSidedBound(0.2, 0.6), interval) == verdict

    def test_worst_is_farthest_from_the_middle(self):
        assert TwoSidedBound(0, 1).worst([0.4, 0.9, 0.2]) == 0.9
        assert math.isnan(TwoSidedBound(0, 1).worst([]))


class TestVerdict:
    @pytest.mark.parametrize(
        ("relation", "span", "verdict"),
        [
            (">=", (0.5, 0.9), "holds"),
            (">", (0.5, 0.9), "undecided"),
            (">=", (0.4, 0.9), "undecided"),
            (">=", (0.4, 0.5), "undecided"),
            (">", (0.4, 0.5), "does not hold"),
            (">=", (0.1, 0.4), "does not hold"),
            ("<=", (0.1, 0.5), "holds"),
            ("<", (0.1, 0.5), "undecided"),
            ("<", (0.5, 0.7), "does not hold"),
            ("<=", (0.6, 0.7), "does not hold"),
            (">=", None, "undecided"),
            (">=", (math.nan, 0.9), "undecided"),
            ("<=", (-math.inf, 0.2), "undecided"),
        ],
    )
    def test_by_the_whole_interval(self, relation, span, verdict):
        assert verdict_of(Bound(relation, 0.5), span) == verdict

    def test_agrees_with_a_two_sided_t_test(self):
        """The interval excludes the bound where the test is significant, on the side of the mean."""
        rng = np.random.default_rng(0)
        for _ in range(300):
            values = rng.normal(rng.normal(0, 0.7), 1, 5).tolist()
            p = stats.ttest_1samp(values, 0).pvalue
            expected = "undecided" if p > 0.05 else "holds" if np.mean(values) > 0 else "does not hold"
            assert verdict_of(Bound(">", 0), mean_interval(values)) == expected

    def test_worst(self):
        assert Bound(">=", 0).worst([0.3, 0.1, 0.2]) == 0.1
        assert Bound("<", 0).worst([0.3, 0.1, 0.2]) == 0.3
        assert math.isnan(Bound("<", 0).worst([0.3, math.nan]))
        assert math.isnan(Bound("<", 0).worst([]))


class TestTogether:
    @pytest.mark.parametrize(
        ("verdicts", "verdict"),
        [
            (["holds"], "holds"),
            (["holds", "holds"], "holds"),
            (["holds", "undecided"], "undecided"),
            (["does not hold", "undecided"], "does not hold"),
            (["does not hold", "not tested"], "does not hold"),
            (["not tested", "holds"], "not tested"),
            (["not tested", "undecided"], "not tested"),
            ([], "not tested"),
        ],
    )
    def test_of_several_parts(self, verdicts, verdict):
        assert joint_verdict(verdicts) == joint_verdict(verdicts[::-1]) == verdict
