"""Holm's correction, and what it says of a study's headline findings."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mechclust.evidence import (
    Bound,
    Finding,
    TwoSidedBound,
    check_part,
    family_notes,
    mean_part,
    resampled_part,
    share_part,
)
from mechclust.evidence.families import _p_value
from probes.functional.holm import holm

ABOVE = Bound(">", 0)


def made(id, *parts, **fields):
    fields = {"shown": "headline", **fields}
    return Finding(id=id, statement="a statement", source="ours", parts=parts, **fields)


def of_mean(id, values, bound=ABOVE, **fields):
    return made(id, mean_part("", values, bound), **fields)


class TestHolm:
    def test_by_hand(self):
        """.005 x 4; .01 x 3; .03 x 2; .04 x 1, which may not be below the one before."""
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])

    def test_is_at_most_one(self):
        assert holm([0.5, 0.9, 0.6]) == [1.0, 1.0, 1.0]

    def test_of_one_and_of_none(self):
        assert holm([0.04]) == [0.04]
        assert holm([]) == []

    def test_keeps_the_rate_of_any_false_rejection(self):
        rng = np.random.default_rng(0)
        wrong = [min(holm(row)) <= 0.05 for row in rng.random((4000, 6))]
        assert np.mean(wrong) == pytest.approx(1 - (1 - 0.05 / 6) ** 6, abs=0.012)


class TestPValue:
    def test_of_a_skewed_interval_is_that_of_the_end_nearer_to_the_bound(self):
        skewed = made("A", resampled_part("", [0.1], (0.01, 0.5), ABOVE))
        assert (skewed.verdict, _p_value(skewed) < 0.05) == ("holds", True)
        wide = made("A", resampled_part("", [0.1], (-0.01, 0.11), ABOVE))
        assert (wide.verdict, _p_value(wide) > 0.05) == ("undecided", True)

    def test_is_that_of_the_t_test(self):
        values = np.random.default_rng(1).normal(1, 1, 6).tolist()
        assert _p_value(of_mean("A", values)) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
        assert _p_value(of_mean("A", values, Bound("<", 0))) == 1.0
        assert _p_value(of_mean("A", values[:1])) == 1.0

    def test_of_a_share_agrees_with_its_interval(self):
        for k in range(1, 40):
            share = made("A", share_part("", [1.0] * k + [0.0] * (40 - k), Bound(">", 0.3)))
            assert (_p_value(share) < 0.05) == (share.verdict == "holds")

    def test_of_shares_of_many_examples_agrees_with_its_interval(self):
        rng = np.random.default_rng(0)
        for _ in range(200):
            share = made("A", share_part("", rng.beta(8, 3, 5), Bound(">", 0.55)))
            assert (_p_value(share) < 0.05) == (share.verdict == "holds")

    def test_of_a_given_interval_is_normal(self):
        assert _p_value(made("A", resampled_part("", [1.96], (0.0, 3.92), ABOVE))) == pytest.approx(0.05, abs=1e-4)

    def test_of_a_value_outside_its_interval_is_by_half_the_width(self):
        for value, ends in ((0.5, (0.6, 0.9)), (0.6, (0.6, 0.9))):
            expected = 2 * stats.norm.sf((value - 0.4) / (0.15 / stats.norm.ppf(0.975)))
            assert _p_value(made("A", resampled_part("", [value], ends, Bound(">", 0.4)))) == pytest.approx(expected)

    def test_of_parts_is_the_largest(self):
        strong, weak = [1.0, 1.01, 1.02], [1.0, 2.0, 3.0]
        both = made("A", mean_part("a", strong, ABOVE), mean_part("b", weak, ABOVE))
        assert _p_value(both) == pytest.approx(stats.ttest_1samp(weak, 0).pvalue)

    def test_of_a_range_is_that_of_the_nearer_end(self):
        values = [0.5, 0.55, 0.58, 0.52]
        within = of_mean("A", values, TwoSidedBound(0.1, 0.7))
        assert _p_value(within) == pytest.approx(stats.ttest_1samp(values, 0.7).pvalue)
        assert _p_value(of_mean("A", values, TwoSidedBound(0.6, 0.7))) == 1.0

    def test_of_equal_values_is_nothing(self):
        assert _p_value(of_mean("A", [1.0, 1.0])) == 0.0
        assert _p_value(of_mean("A", [1.0, 1.0], Bound(">", 1))) == 1.0

    def test_of_values_at_the_bound_agrees_with_the_verdict(self):
        at_bound = of_mean("A", [1.0, 1.0], Bound(">=", 1))
        assert (at_bound.verdict, _p_value(at_bound)) == ("holds", 0.0)
        share = made("A", share_part("", [1.0, 1.0, 1.0], Bound(">=", 1)))
        assert (share.verdict, _p_value(share)) == ("undecided", 1.0)


class TestNotes:
    STRONG = (1.0, 1.01, 1.02)
    WEAK = (1.0, 2.0, 3.5)  # p = .04 or so

    def test_name_what_is_lost(self):
        findings = [of_mean("A", self.STRONG), of_mean("B", self.WEAK), of_mean("C", [1.0, -1.0, 0.5])]
        assert [c.verdict for c in findings] == ["holds", "undecided", "undecided"]
        findings[1] = of_mean("B", [1.0, 1.5, 2.2])
        assert findings[1].verdict == "holds"
        assert _p_value(findings[1]) * 2 > 0.05
        assert family_notes(findings) == [
            "Headline findings: A, B, C. With Holm's correction over them, B would be undecided."
        ]

    def test_all_remain(self):
        findings = [
            of_mean("A", self.STRONG),
            of_mean("B", self.STRONG),
            made("C", check_part("", self.STRONG, ABOVE), kind="check", shown="page"),
        ]
        assert family_notes(findings) == ["Headline findings: A, B. With Holm's correction over them, A, B still hold."]

    def test_a_single_one_remains(self):
        findings = [of_mean("A", self.STRONG), of_mean("B", [1.0, -1.0, 0.5])]
        assert family_notes(findings) == ["Headline findings: A, B. With Holm's correction over them, A still holds."]

    def test_is_of_headlines_alone(self):
        assert family_notes([of_mean("A", self.STRONG), of_mean("B", self.STRONG, shown="page")]) == []

    def test_nothing_to_say(self):
        assert family_notes([of_mean("A", self.STRONG)]) == []
        assert family_notes([of_mean("A", self.STRONG), of_mean("B", self.STRONG, not_tested="too small")]) == []
        assert family_notes([of_mean("A", [1.0, -1.0]), of_mean("B", [1.0, -1.0])]) == []
