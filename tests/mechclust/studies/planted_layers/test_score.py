"""How a curve is judged: by brute force, and by scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from mechclust.studies.planted_layers.score import (
    boundary_errors,
    chance_error,
    change_threshold,
    rise_by_layer,
    roc_auc,
    score_curves,
    truth_of,
)


def test_auc_is_scikit_learns():
    draw = np.random.default_rng(0)
    for _ in range(20):
        curve, truth = draw.integers(0, 5, 9) / 5, np.zeros(9, bool)
        truth[draw.choice(9, 3, replace=False)] = True
        assert roc_auc(curve, truth) == pytest.approx(roc_auc_score(truth, curve))


def test_auc_has_no_value_without_both_kinds_or_with_a_gap():
    assert math.isnan(roc_auc(np.arange(3.0), np.zeros(3, bool)))
    assert math.isnan(roc_auc(np.arange(3.0), np.ones(3, bool)))
    assert math.isnan(roc_auc(np.array([0, math.nan, 1]), np.array([True, False, False])))


def test_chance_errors_are_those_of_random_layers():
    draw = np.random.default_rng(1)
    for layer in (1, 4, 8):
        assert chance_error(layer, 8) == pytest.approx(np.abs(draw.integers(1, 9, 200_000) - layer).mean(), abs=0.02)


@pytest.mark.parametrize(
    ("called", "expected"),
    [("0110", (0, 0)), ("0111", (0, 1)), ("1000", (1, 2)), ("0001", (2, 1)), ("0000", (1.0, 1.0))],
)
def test_errors(called, expected):
    assert boundary_errors(np.array([c == "1" for c in called]), (2, 3)) == expected


def test_thresholds_are_a_multiple_of_the_largest_of_the_null_and_never_below_zero():
    null = np.array([[0.1, -0.3], [0.3, -0.1], [0.2, -0.2]])
    assert change_threshold(null, 2.0).tolist() == pytest.approx([0.6, 0.0])


def test_rises_add_up_to_the_curve():
    curve = np.random.default_rng(2).random((2, 5))
    assert np.allclose(rise_by_layer(curve).cumsum(axis=-1), curve)


class TestScore:
    BAR = np.full(4, 0.1)

    def test_of_a_curve_that_stays(self):
        found = score_curves(np.array([0, 0.5, 0.5, 0.5]), self.BAR, (2, 2))
        expected = {
            "auc": 5 / 6 - 1 / 6,
            "onset": 0,
            "end": 2,
            "hit": 1,
            "false": 2 / 3,
            "found": 1,
            "top": 1,
            "upper": 1,
        }
        assert found == pytest.approx(expected)

    def test_of_many_curves_are_those_of_each_and_a_value_at_the_bar_is_no_call(self):
        curves = np.random.default_rng(3).integers(0, 4, (20, 4)) / 10
        curves[0, 1] = math.nan
        for truth in ((2, 3), None):
            found = score_curves(curves, np.tile(self.BAR, (20, 1)), truth)
            for i, curve in enumerate(curves):
                alone = score_curves(curve, self.BAR, truth)
                of_each = {name: float(values[i]) for name, values in found.items()}
                assert of_each == pytest.approx({name: float(value) for name, value in alone.items()}, nan_ok=True)
        assert score_curves(self.BAR, self.BAR, None)["found"] == 0

    def test_without_a_truth_every_call_is_false(self):
        found = score_curves(np.array([0, 0.5, 0.5, 0.5]), self.BAR, None)
        assert found["false"] == 0.75
        assert all(math.isnan(found[name]) for name in ("auc", "onset", "end", "hit"))

    def test_where_all_changed_nothing_is_false(self):
        found = score_curves(np.array([0, 0.5, 0.5, 0.5]), self.BAR, (1, 4))
        assert found["hit"] == 0.75
        assert (found["onset"], found["end"]) == (1, 0)
        assert math.isnan(found["false"])
        assert truth_of((1, 4), 4).all()

    def test_a_gap_leaves_no_score(self):
        assert all(map(math.isnan, score_curves(np.array([0, math.nan, 0, 1]), self.BAR, (2, 2)).values()))
