"""Statistics of curves: against plain computations, on curves that were made for them, and of many draws at once."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from mechclust.mossa import correlations
from mechclust.mossa import gaps_and_spreads as of
from mechclust.mossa.layer_groups import (
    has_all_layer_groups,
    shared_layers_end_distance,
    transition_layers_end_distance,
)
from mechclust.mossa.task_bootstrap import task_bootstrap_interval
from tests.mechclust.mossa.test_task_curves import curves

DRAW = np.random.default_rng(4)
RANDOM = replace(
    curves(
        DRAW.random((9, 16)), DRAW.random((9, 16)), held_out=[False] * 6 + [True] * 3, covariates={"x": DRAW.random(9)}
    ),
    ceiling=DRAW.random((9, 16)) + 1,
    null=DRAW.random((9, 16)),
)
BASE, TUNED = np.median(RANDOM.base, axis=0), np.median(RANDOM.tuned, axis=0)


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [
        (of.upper_half_gap, (TUNED - BASE)[8:].mean()),
        (of.gap_after_first_third, (TUNED - BASE)[5:].mean()),
        (
            partial(correlations.gain_correlation, covariate="x"),
            np.corrcoef((RANDOM.tuned - RANDOM.base)[:, 8:].mean(axis=1), RANDOM.covariates["x"])[0, 1],
        ),
        (
            partial(correlations.band_correlation, which="tuned", covariate="x", start=5 / 32, end=7 / 32),
            np.mean([np.corrcoef(RANDOM.tuned[:, i], RANDOM.covariates["x"])[0, 1] for i in (2, 3)]),
        ),
        (
            partial(correlations.band_correlation, which="base", covariate="x", start=0, end=0),
            np.corrcoef(RANDOM.base[:, 0], RANDOM.covariates["x"])[0, 1],
        ),
        (of.own_control_advantage, np.median((RANDOM.tuned - RANDOM.null)[:, 8:].mean(axis=1))),
    ],
    ids=lambda x: getattr(x, "__name__", None) or getattr(getattr(x, "func", None), "__name__", ""),
)
def test_is_what_it_says(statistic, expected):
    """Those that the study has no finding of: ``studies/mossa/test_findings`` counts the others by hand."""
    assert statistic(RANDOM) == pytest.approx(expected)


def test_many_draws_at_once_are_those_one_by_one():
    """Every statistic, also those of layer groups."""
    drawn = RANDOM.resampled(12)
    given = {"covariate": "x", "which": "tuned", "start": 0.0, "end": 0.25}
    statistics = [
        value
        for module in (correlations, of)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
        and name not in ("correlation", "correlation_interval", "n_known")
    ]  # fmt: skip
    assert len(statistics) >= 16
    for statistic in (*statistics, has_all_layer_groups, shared_layers_end_distance, transition_layers_end_distance):
        options = {k: v for k, v in given.items() if k in inspect.signature(statistic).parameters}
        together = statistic(drawn, **options)
        for i in range(12):
            arrays = {k: getattr(drawn, k)[i] for k in ("base", "tuned", "ceiling", "null")}
            one = replace(drawn, **arrays, covariates={"x": drawn.covariates["x"][i]})
            alone = statistic(one, **options)
            assert np.asarray(together[i]) == pytest.approx(np.asarray(alone), nan_ok=True), statistic


class TestLayers:
    def test_bands_are_shares_of_the_depth(self):
        thirty_two, two = curves(np.zeros((1, 32))), curves(np.zeros((1, 2)))
        assert [*range(1, 33)][of._second_eighth(thirty_two)] == [5, 6, 7, 8]
        assert [*range(1, 33)][of._second_quarter(thirty_two)] == [*range(9, 17)]
        assert [1, 2][of._second_eighth(two)] == [of._second_quarter(two).start + 1]

    def test_distance_of_the_boundaries_from_the_papers(self):
        base, tuned = np.tile([1.0, 1.0, 0.5, 0.4], (3, 1)), np.tile([1.0, 1.0, 0.9, 0.9], (3, 1))
        found = curves(base, tuned)  # shared 1-2, transition 3-4
        assert float(shared_layers_end_distance(found)) == pytest.approx(2 / 4 - 9 / 32)
        assert float(transition_layers_end_distance(found)) == pytest.approx(4 / 4 - 15 / 32)
        assert np.isnan(shared_layers_end_distance(curves(base)))  # no transition
        assert np.isnan(transition_layers_end_distance(curves(base)))

    def test_all_groups(self):
        base, tuned = np.tile([1.0, 1.0, 0.5, 0.4], (4, 1)), np.tile([1.0, 1.0, 0.9, 0.9], (4, 1))
        to_the_top, apart = curves(base, tuned), tuned.copy()
        apart[:2, 3] -= 0.1  # tasks differ by .1 at the last layer, where refinement begins
        none_shared = curves(0.5 * base, apart)
        found = [has_all_layer_groups(c) for c in (to_the_top, curves(base), none_shared, curves(base, apart))]
        assert list(map(float, found)) == [0, 0, 0, 1]


class TestUndefined:
    def test_layer_groups_are_unknown_if_a_layer_is(self):
        base, tuned = np.tile([1.0, 1.0, 0.5, 0.4], (6, 1)), np.tile([1.0, 1.0, 0.9, 0.9], (6, 1))
        tuned[:3, 3] -= 0.1
        statistics = (has_all_layer_groups, shared_layers_end_distance, transition_layers_end_distance)
        assert np.isfinite([statistic(curves(base, tuned)) for statistic in statistics]).all()
        tuned[:, 2] = np.nan
        assert np.isnan([statistic(curves(base, tuned)) for statistic in statistics]).all()

    def test_a_task_without_numbers_changes_nothing(self):
        lost = np.full((1, 16), np.nan)
        more = curves(np.concatenate([RANDOM.base, lost]), np.concatenate([RANDOM.tuned, lost]))
        for statistic in (
            correlations.base_median_depth_correlation,
            of.upper_half_gap,
            of.upper_half_spread_ratio,
            of.second_eighth_gap,
        ):
            assert statistic(more) == pytest.approx(float(statistic(RANDOM)))

    def test_correlations_need_three_tasks_and_variance(self):
        found = curves(np.random.default_rng(0).random((4, 2)), covariates={"x": np.array([1.0, 2.0, np.nan, np.nan])})
        assert np.isnan(correlations.covariate_correlation(found, "base", "x")).all()
        flat = replace(found, covariates={"x": np.ones(4)})
        assert np.isnan(correlations.covariate_correlation(flat, "base", "x")).all()

    @pytest.mark.parametrize("n", [6, 20])
    def test_the_interval_of_unrelated_numbers_excludes_zero_in_one_of_twenty_samples(self, n):
        numbers = np.random.default_rng(0).standard_normal((2, 4000, n))
        low, high = correlations.correlation_interval(correlations.correlation(*numbers), n)
        assert 0.018 < np.mean(low > 0) < 0.032
        assert 0.018 < np.mean(high < 0) < 0.032

    def test_tasks_without_similarity_are_not_behind_a_correlation(self):
        found = curves(np.random.default_rng(0).random((8, 16)), covariates={"x": np.arange(8.0)})
        assert correlations.n_known(found, "x") == 8
        lost = found.tuned.copy()
        lost[3:, 8:] = np.nan  # of five tasks
        lost[:, 0] = np.nan  # of all
        assert correlations.n_known(replace(found, tuned=lost), "x") == 3
        assert correlations.n_known(replace(found, tuned=0 * lost * np.nan), "x") == 0

    def test_the_interval_needs_six_tasks(self):
        assert np.isnan(correlations.correlation_interval(np.array([0.5, 0.9]), 5)).all()
        assert np.isfinite(correlations.correlation_interval(1.0, 6)).all()

    def test_a_covariate_is_constant_relative_to_its_size(self):
        found = curves(np.random.default_rng(0).random((4, 2)))
        for covariate, undefined in (
            (1e8 * np.full(4, 0.1), True),
            (1e-9 * np.arange(4), False),
        ):
            correlation = correlations.covariate_correlation(replace(found, covariates={"x": covariate}), "base", "x")
            assert np.isnan(correlation).all() == undefined

    def test_depth_is_ranked_among_the_layers_with_a_value(self):
        lost = RANDOM.base.copy()
        lost[:, 2:5] = np.nan
        median = np.median(np.delete(lost, [2, 3, 4], axis=1), axis=0)
        expected = stats.spearmanr(np.arange(13), median).statistic
        assert correlations.base_median_depth_correlation(curves(lost)) == pytest.approx(expected)

    def test_the_way_to_a_ceiling_that_is_no_further(self):
        found = curves(np.full((3, 2), 0.9), ceiling=np.full((3, 2), 0.905))
        assert np.isnan(of.ceiling_gap_share(found))

    def test_tasks_without_a_ceiling_are_left_out_of_it(self):
        ceiling = np.full((4, 2), np.nan)
        ceiling[:2] = 1.0
        base, tuned = np.array([[0.5] * 2] * 2 + [[0.0] * 2] * 2), np.array([[0.75] * 2] * 2 + [[0.0] * 2] * 2)
        assert of.ceiling_gap_share(curves(base, tuned, ceiling=ceiling)) == 0.5

    def test_draws_of_tasks_that_have_a_ceiling_all_have_one(self):
        """Of draws from all tasks, some would have none."""
        there = [1, 4, 6, 7, 8, 9, 10]
        ceiling = np.full((12, 2), np.nan)
        ceiling[there] = 1.0
        all_tasks = curves(np.full((12, 2), 0.5), np.linspace(0.6, 0.9, 12)[:, None] * [1, 1], ceiling=ceiling)
        few = replace(all_tasks, ceiling=np.where(np.arange(12)[:, None] == 4, ceiling, np.nan))
        assert np.isnan(task_bootstrap_interval(few, of.ceiling_gap_share)[1]).all()
        own = all_tasks.with_ceiling
        assert own.tasks == tuple(f"t{i}" for i in there)
        value, (low, high) = task_bootstrap_interval(own, of.ceiling_gap_share)
        at = 2 * (all_tasks.tuned[there, 0] - 0.5)
        assert value == pytest.approx(at[3])
        assert at[0] <= low < value < high <= at[-1]
