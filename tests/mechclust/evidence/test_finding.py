"""Findings: judged by their intervals, and by the same judgement of a control."""

from __future__ import annotations

import math

import pytest

from mechclust.evidence import (
    Bound,
    Control,
    Finding,
    TwoSidedBound,
    check_part,
    mean_part,
    paired_share_part,
    prediction_part,
    resampled_part,
    share_part,
)
from mechclust.evidence.intervals import mean_interval, paired_share_interval, prediction_interval, share_interval
from tasks import InputError

ABOVE = Bound(">", 0.5)


def finding(*parts, **fields):
    return Finding(id="X1", statement="a statement", source="ours", parts=parts, **fields)


def control(*parts):
    return Control("untrained networks", parts)


class TestPart:
    def test_of_a_mean_is_judged_by_its_interval(self):
        values = [0.99, 1.0, 1.01]
        part = mean_part("end", values, Bound(">=", 0.9))
        assert part.measured == pytest.approx(1.0)
        assert part.interval == pytest.approx(mean_interval(values))
        assert part.verdict == "holds"
        assert mean_part("", values, Bound(">=", 1.0)).verdict == "undecided"  # the mean satisfies it
        assert mean_part("", values, Bound(">=", 1.1)).verdict == "does not hold"
        assert mean_part("", values, TwoSidedBound(0.9, 1.1)).verdict == "holds"

    def test_of_one_more_run_has_a_prediction_interval(self):
        values = [5.3, 12.0, 32.1, 20.0]
        part = prediction_part("", values, Bound(">", 0))
        assert part.interval == pytest.approx(prediction_interval(values))
        assert part.verdict == "undecided"
        assert mean_part("", values, Bound(">", 0)).verdict == "undecided"

    def test_of_a_share_has_wilsons_interval(self):
        assert share_part("", [1.0, 1.0, 0.0], ABOVE).interval == share_interval([1.0, 1.0, 0.0])
        assert share_part("", [1.0] * 30, Bound(">=", 0.95)).verdict == "undecided"  # equal values are no certainty
        with pytest.raises(InputError, match=r"^3.0 is not between 0 and 1"):
            share_part("", [0.9, 3.0], ABOVE)

    def test_of_paired_shares_has_the_interval_of_their_difference(self):
        differences = [1, 0, 0, 1, -1, 0]
        assert paired_share_part("", differences, Bound(">", 0)).interval == paired_share_interval(differences)

    @pytest.mark.parametrize("made", [mean_part, prediction_part, share_part, paired_share_part])
    def test_of_one_unit_is_not_tested(self, made):
        part = made("", [1.0], Bound(">", 0.2))
        assert (part.measured, part.interval, part.verdict) == (1.0, None, "not tested")

    def test_resampled_is_judged_by_the_given_interval(self):
        assert resampled_part("", [0.5], (0.2, 0.8), Bound("<", 1)).verdict == "holds"
        assert resampled_part("", [0.5, 0.7], (0.2, 1.1), Bound("<", 1)).verdict == "undecided"
        assert resampled_part("", [0.5], None, Bound("<", 1)).verdict == "undecided"
        assert resampled_part("", [0.5], (math.nan, math.nan), Bound("<", 1)).verdict == "undecided"
        assert resampled_part("", [0.5], (0.2, math.inf), Bound("<", 1)).interval is None
        assert resampled_part("", [0.5], (0.5, 0.5), Bound("<", 1)).verdict == "holds"
        with pytest.raises(InputError, match=r"^a part has the interval 0.6 to 0.4; give the lower end first$"):
            resampled_part("", [0.5], (0.6, 0.4), Bound(">", 0))

    def test_of_a_check_is_judged_by_its_worst_value(self):
        part = check_part("", [0.1, 0.3, 0.2], Bound("<=", 0.3))
        assert (part.measured, part.verdict) == (0.3, "holds")
        assert check_part("", [0.1, 0.31, 0.1], Bound("<=", 0.3)).verdict == "does not hold"
        assert check_part("", [0.1], Bound("<=", 0.3)).verdict == "holds"
        assert check_part("", [0.1, math.nan], Bound("<=", 0.3)).verdict == "does not hold"

    @pytest.mark.parametrize("undefined", [math.nan, math.inf, -math.inf])
    def test_of_a_value_that_is_not_finite(self, undefined):
        """As when it is loaded, since files keep no infinity."""
        assert check_part("", [0.9, undefined], ABOVE).verdict == "does not hold"
        assert check_part("", [undefined], ABOVE).verdict == "does not hold"
        assert mean_part("", [0.9, 0.91, undefined], ABOVE).verdict == "undecided"
        assert mean_part("", [undefined], ABOVE).verdict == "not tested"
        assert resampled_part("", [undefined], (0.8, 0.9), ABOVE).verdict == "undecided"

    @pytest.mark.parametrize("made", [mean_part, share_part, check_part])
    def test_without_values_is_not_tested(self, made):
        part = made("", [], ABOVE)
        assert (part.measured, part.interval, part.verdict) == (None, None, "not tested")


class TestFinding:
    def test_all_parts_must_hold(self):
        good, bad, unclear = (mean_part("", values, ABOVE) for values in ([0.9, 0.91], [0.1, 0.11], [0.1, 1.0]))
        assert finding(good, good).verdict == "holds"
        assert finding(good, bad, unclear).verdict == "does not hold"
        assert finding(good, unclear).verdict == "undecided"
        assert finding(good, mean_part("", [1.0], ABOVE)).verdict == "not tested"

    def test_that_holds_for_its_control_is_not_specific(self):
        good = mean_part("", [0.9, 0.91], ABOVE)
        found = finding(good, control=control(mean_part("", [0.8, 0.85, 0.9], ABOVE)))
        assert found.verdict == "not specific"

    @pytest.mark.parametrize("values", [[0.1, 0.11], [0.1, 1.0], [0.9], []])
    def test_that_its_control_does_not_share_holds(self, values):
        good = mean_part("", [0.9, 0.91], ABOVE)
        assert finding(good, control=control(mean_part("", values, ABOVE))).verdict == "holds"

    def test_of_two_parts_is_specific_unless_its_control_has_both(self):
        good, bad = mean_part("", [0.9, 0.91], ABOVE), mean_part("", [0.1, 0.11], ABOVE)
        assert finding(good, good, control=control(good, bad)).verdict == "holds"
        assert finding(good, good, control=control(good, good)).verdict == "not specific"

    @pytest.mark.parametrize("values", [[0.1, 0.11], [0.1, 1.0], [0.9]])
    def test_that_does_not_hold_is_not_changed_by_its_control(self, values):
        alone = finding(mean_part("", values, ABOVE))
        beside = finding(mean_part("", values, ABOVE), control=control(mean_part("", [0.9, 0.91], ABOVE)))
        assert alone.verdict == beside.verdict != "holds"

    def test_has_the_main_value_of_its_first_part(self):
        found = finding(mean_part("", [0.9, 0.91], ABOVE), mean_part("b", [3.0, 4.0], ABOVE))
        assert found.measured == pytest.approx(0.905)
        assert found.interval == pytest.approx(mean_interval([0.9, 0.91]))
        assert (finding().measured, finding().interval) == (None, None)

    @pytest.mark.parametrize("other", [mean_part("b", [0.1, 0.11], ABOVE), mean_part("", [0.1, 0.11], Bound(">", 0.4))])
    def test_refuses_a_control_of_other_parts(self, other):
        with pytest.raises(InputError, match="control of X1 has other names"):
            finding(mean_part("", [0.9, 0.91], ABOVE), control=control(other))


class TestRemarks:
    def test_say_why_it_is_not_tested(self):
        assert finding(mean_part("", [1.0], ABOVE), note="a note").remarks == ["not tested: one seed", "a note"]
        assert finding(mean_part("", [1.0], ABOVE), unit="tasks").why_not == "only one value (tasks)"
        assert finding(mean_part("b", [], ABOVE)).remarks == ["not tested: b could not be measured"]
        assert finding().why_not == "the value could not be measured"
        tested = finding(mean_part("", [0.9, 0.91], ABOVE), not_tested="the study is too small")
        assert (tested.verdict, tested.why_not) == ("not tested", "the study is too small")

    def test_count_undefined_values(self):
        found = finding(mean_part("", [0.9, math.nan, 0.8], ABOVE), unit="pairs")
        assert (found.verdict, found.measured) == ("undecided", None)
        assert found.remarks == ["the value is undefined in 1 of 3 pairs"]
