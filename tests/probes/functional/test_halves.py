"""The interval of an index from its values for random halves of the units."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from probes.functional import half_interval
from probes.functional.halves import interval_from_halves
from tasks import InputError


def test_covers_a_correlation_of_dependent_rows() -> None:
    """Correlations of 30 units of five rows: at least 91% of 300 intervals cover the mean (95% nominal)."""
    draw = np.random.default_rng(0)
    values, intervals = [], []
    for _ in range(300):
        shared = draw.normal(size=(30, 1, 2))  # of a unit
        rows = 0.7 * shared @ [[1, 0.6], [0, 0.8]] + 0.7 * draw.normal(size=(30, 5, 2))
        halves = [draw.permutation(30)[:15] for _ in range(40)]
        values.append(_correlation(rows))
        intervals.append(half_interval(values[-1], [_correlation(rows[half]) for half in halves], 30))
    low, high = np.array(intervals).T
    mean = np.mean(values)
    assert 0.91 < ((low <= mean) & (mean <= high)).mean() < 0.99


def _correlation(rows: np.ndarray) -> float:
    return float(np.corrcoef(rows.reshape(-1, 2).T)[0, 1])


def test_stays_within_the_range_of_the_index() -> None:
    for index in (-1.0, -0.98, 0.0, 0.98, 1.0):
        low, high = half_interval(index, [index - 0.3, index + 0.3], 12)
        assert -1 <= low < high <= 1
        assert low <= index <= high


def test_the_ends_are_a_quantile_of_student_away() -> None:
    """In deviations of a share at that end, as Wilson has them; and about the value, for any number."""
    quantile = stats.t.ppf(0.975, 19)
    for halves, spread in (([0.1, 0.25, 0.3], np.var([0.1, 0.25, 0.3], ddof=1) / 4), ([0.2, 0.2], 0.6 * 0.4 / 20)):
        for end in half_interval(0.2, halves, 20):
            share = (1 + end) / 2
            assert (share - 0.6) ** 2 == pytest.approx(quantile**2 * spread * share * (1 - share) / (0.6 * 0.4))
    margin = quantile * np.std([0.2, 0.4], ddof=1)
    assert interval_from_halves(0.3, np.array([0.2, 0.4]), 20) == pytest.approx((0.3 - margin, 0.3 + margin))


def test_one_half_in_twenty_may_be_undefined() -> None:
    halves = np.linspace(0.2, 0.4, 20)
    halves[0] = np.nan
    found = interval_from_halves(0.3, halves, 8)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, interval_from_halves(0.3, halves[1:], 8))


def test_of_more_units_it_is_narrower_for_perfect_agreement() -> None:
    few, many = (half_interval(1.0, [1.0, 1.0], n)[0] for n in (10, 1000))
    assert few < 0.6 < 0.99 < many


@pytest.mark.parametrize(
    ("index", "halves", "units"),
    [(0.5, [0.4, 0.6], 7), (0.5, [0.4], 20), (np.nan, [0.4, 0.6], 20), (0.5, [0.4, np.nan, 0.6], 20)],
)
def test_is_undefined(index: float, halves: list[float], units: int) -> None:
    assert np.isnan(half_interval(index, halves, units)).all()


def test_refuses_what_is_no_index() -> None:
    with pytest.raises(InputError, match=r"index is 1\.2; expected a number between -1 and 1"):
        half_interval(1.2, [0.4, 0.6], 20)


def test_of_a_change_it_covers_the_planted_one() -> None:
    """Means of 20 units before and after, which share half of their variance: about 95% of 400 intervals cover .3."""
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(400, 20, 1)) + draw.normal(size=(400, 20, 2)) + [0, 0.3]
    halves = np.stack([rows[:, draw.permutation(20)[:10]].mean(axis=1) for _ in range(60)], axis=-1)
    means = rows.mean(axis=1)
    low, high = interval_from_halves(means[:, 1] - means[:, 0], halves[:, 1] - halves[:, 0], 20)
    assert 0.92 < ((low <= 0.3) & (high >= 0.3)).mean() < 0.98


def test_of_a_value_that_was_chosen_it_is_wider() -> None:
    halves = np.array([0.1, 0.2, 0.3, 0.4])
    plain, of_ten = (interval_from_halves(np.array(0.25), halves, 20, n_compared=n) for n in (1, 10))
    assert of_ten[0] < plain[0] < 0.25 < plain[1] < of_ten[1]


@pytest.mark.parametrize(
    ("value", "halves", "units"),
    [
        pytest.param(0.5, [0.4, 0.6], 7, id="few units"),
        pytest.param(0.5, [0.4], 20, id="one half"),
        pytest.param(np.nan, [0.4, 0.6], 20, id="undefined"),
        pytest.param(1.0, [1.0, 1.0], 20, id="halves that are alike"),
        pytest.param(0.5, [0.4, 0.6, np.nan], 20, id="many undefined halves"),
    ],
)
def test_of_a_change_is_undefined(value: float, halves: list[float], units: int) -> None:
    assert np.isnan(interval_from_halves(np.array(value), np.array(halves), units)).all()
