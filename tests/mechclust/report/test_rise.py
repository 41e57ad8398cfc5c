"""When a measure has risen and then stays."""

from __future__ import annotations

import math
import warnings

import numpy as np

from mechclust.report.rise import judge_rise_with_step
from mechclust.report.spearman import spearman_correlation


def test_the_late_change_is_that_of_the_last_third():
    curves = np.array([[0.0, 0.2, 0.5, 0.9, 0.95], [0.0, 0.2, 0.5, 0.8, 0.65]])
    _, late = judge_rise_with_step([0, 1, 15, 20, 30], curves)
    assert round(late.measured, 9) == 0.1


def test_the_late_change_is_between_two_checkpoints():
    _, late = judge_rise_with_step([0, 200, 350], np.array([[0.0, 0.4, 0.9]]))
    assert late.measured == 0.5


def test_a_flat_curve_neither_rises_nor_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(spearman_correlation(np.arange(4), np.full(4, 0.5)))
    assert spearman_correlation(np.arange(4), np.array([0.1, 0.2, 0.3, 0.9])) == 1
