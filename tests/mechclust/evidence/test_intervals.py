"""95% intervals: what they cover, and where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from mechclust.evidence.intervals import (
    mean_interval,
    paired_share_interval,
    prediction_interval,
    ratio_interval,
    share_interval,
)
from tasks import InputError


class TestInterval:
    @pytest.mark.parametrize("n", [2, 3, 10])
    def test_is_student_t(self, n):
        values = np.random.default_rng(n).normal(3, 2, n).tolist()
        expected = stats.t.interval(0.95, n - 1, loc=np.mean(values), scale=stats.sem(values))
        assert mean_interval(values) == pytest.approx(expected)

    def test_of_equal_values_has_no_width(self):
        assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)

    @pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf, 2.0]])
    def test_is_none_where_there_is_none(self, values):
        assert mean_interval(values) is None

    def test_covers_the_mean_in_95_percent_of_samples(self):
        draws = np.random.default_rng(0).normal(1.0, 1.0, (2000, 3))
        spans = [mean_interval(row.tolist()) for row in draws]
        inside = [low <= 1.0 <= high for low, high in spans]
        assert np.mean(inside) == pytest.approx(0.95, abs=0.015)


class TestPredictionInterval:
    def test_covers_one_more_value_in_95_percent_of_samples(self):
        draws = np.random.default_rng(0).normal(1.0, 1.0, (4000, 4))
        spans = [prediction_interval(row[:3].tolist()) for row in draws]
        inside = [low <= row[3] <= high for (low, high), row in zip(spans, draws, strict=True)]
        assert np.mean(inside) == pytest.approx(0.95, abs=0.012)

    def test_is_wider_than_that_of_the_mean_by_the_root_of_n_plus_1(self):
        values = [3.0, 1.0, 2.5, 4.0]
        mean, one = mean_interval(values), prediction_interval(values)
        assert one[1] - one[0] == pytest.approx((mean[1] - mean[0]) * math.sqrt(5))
        assert sum(one) == pytest.approx(sum(mean))


class TestShareInterval:
    @pytest.mark.parametrize(("k", "n"), [(0, 5), (3, 7), (40, 40)])
    def test_is_wilsons(self, k, n):
        share, z = k / n, 1.959963984540054
        centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
        found = share_interval([1.0] * k + [0.0] * (n - k))
        assert found == pytest.approx((max(0, centre - half), min(1, centre + half)))

    def test_of_nothing_is_none(self):
        assert share_interval([]) is None
        assert share_interval([1.0, math.nan]) is None
        with pytest.raises(InputError, match=r"^1.1 is not between 0 and 1, so it is no share; give the interval of "):
            share_interval([1.0, 1.1])

    @pytest.mark.parametrize("values", [[1.0] * 30, [0.0] * 30, [0.5] * 30])
    def test_has_a_width_where_no_seed_differs(self, values):
        low, high = share_interval(values)
        assert 0 <= low <= values[0] <= high <= 1
        assert high - low > 0.1

    @pytest.mark.parametrize(("n", "least", "student"), [(10, 0.97, 0.41), (30, 0.92, 0.79)])
    def test_covers_a_mean_accuracy_if_one_network_in_twenty_fails(self, n, least, student):
        networks = np.where(np.random.default_rng(n).random((1000, n)) < 0.05, 0.5, 1.0)
        accuracies = np.random.default_rng(0).binomial(400, networks) / 400
        spans = [share_interval(row.tolist()) for row in accuracies]
        assert np.mean([low <= 0.975 <= high for low, high in spans]) >= least
        of_t = [mean_interval(row.tolist()) for row in accuracies]
        assert np.mean([low <= 0.975 <= high for low, high in of_t]) == pytest.approx(student, abs=0.04)

    def test_covers_a_mean_accuracy_that_varies_in_95_percent_of_samples(self):
        draw = np.random.default_rng(0)
        accuracies = draw.binomial(400, draw.beta(5, 2, (1000, 8))) / 400
        spans = [share_interval(row.tolist()) for row in accuracies]
        assert np.mean([low <= 5 / 7 <= high for low, high in spans]) == pytest.approx(0.95, abs=0.025)
        assert all(0 <= low <= high <= 1 for low, high in spans)


class TestPairedShareInterval:
    def test_covers_the_difference_in_about_95_of_100(self):
        """Of two shares of the same 40 cases, .3 and .5, with cases that are alike in both."""
        draw, covered = np.random.default_rng(0), 0
        for _ in range(1000):
            u, own = draw.random(40), draw.random(40)
            before, after = u < 0.3, np.where(own < 0.5, u < 0.5, own < 0.75)
            low, high = paired_share_interval((after.astype(float) - before).tolist())
            covered += low <= 0.2 <= high
        assert 0.93 <= covered / 1000 <= 0.99

    def test_of_differences_the_other_way_is_the_mirror_image(self):
        low, high = paired_share_interval([1.0] * 5 + [-1.0] * 2 + [0.0] * 15)
        assert paired_share_interval([-1.0] * 5 + [1.0] * 2 + [0.0] * 15) == pytest.approx((-high, -low))

    def test_has_a_width_where_no_case_differs(self):
        low, high = paired_share_interval([0.0] * 29)
        assert low == -high
        assert 0.03 < high < 0.15

    def test_of_nothing(self):
        assert paired_share_interval([]) is None
        assert paired_share_interval([1.0, math.nan]) is None

    def test_of_shares_of_many_examples_is_refused(self):
        with pytest.raises(InputError, match=r"^0.4 is not -1, 0 or 1; give the interval of the mean$"):
            paired_share_interval([1.0, 0.4, 0.9])


class TestRatioInterval:
    def test_covers_the_ratio_in_about_90_of_100(self):
        """Parts are a share of half on average of wholes that vary as much as they are large."""
        draw = np.random.default_rng(0)
        n_covered = 0
        for _ in range(400):
            wholes = draw.lognormal(0, 1, 32)
            low, high = ratio_interval(wholes * draw.random(32), wholes)
            n_covered += low <= 0.5 <= high
        assert 0.88 <= n_covered / 400 <= 0.95

    def test_is_that_of_the_jackknifes_pseudo_values(self):
        draw = np.random.default_rng(1)
        wholes = draw.uniform(1, 2, 8)
        parts = wholes * draw.random(8)
        ratio = parts.sum() / wholes.sum()
        pseudo_values = 8 * ratio - 7 * (parts.sum() - parts) / (wholes.sum() - wholes)
        half = stats.t.ppf(0.975, 7) * stats.sem(pseudo_values)
        assert ratio_interval(parts, wholes) == pytest.approx((ratio - half, ratio + half))

    def test_of_the_same_ratio_has_no_width(self):
        assert ratio_interval([1.0, 2.0] * 4, [2.0, 4.0] * 4) == (0.5, 0.5)

    @pytest.mark.parametrize(
        ("parts", "wholes"),
        [
            ([1.0] * 7, [2.0] * 7),
            ([0.0] * 8, [0.0] * 8),
            ([math.nan] + [1.0] * 7, [1.0] * 8),
            ([1.0] * 8, [2.0] * 7 + [math.inf]),
            ([1.0] * 8, [0.0] * 7 + [1.0]),
        ],
    )
    def test_of_too_few_or_undefined_ones_is_none(self, parts, wholes):
        assert ratio_interval(parts, wholes) is None
