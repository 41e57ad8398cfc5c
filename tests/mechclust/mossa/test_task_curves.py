"""Curves by task and layer: what is undefined is left out, tasks are drawn anew, intervals cover."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.mossa.gaps_and_spreads import last_layer_gap
from mechclust.mossa.nan_statistics import nan_mean, nan_quantile_over_tasks
from mechclust.mossa.task_bootstrap import task_bootstrap_ends, task_bootstrap_interval
from mechclust.mossa.task_curves import TaskCurves
from tasks import InputError


def curves(base, tuned=None, held_out=None, **others) -> TaskCurves:
    base = np.asarray(base, dtype=float)
    n, layers = base.shape
    values = {"ceiling": None, "null": None, "clusters": (None,) * n, **others}
    return TaskCurves(
        tasks=tuple(f"t{i}" for i in range(n)),
        layers=tuple(str(i + 1) for i in range(layers)),
        base=base,
        tuned=base if tuned is None else np.asarray(tuned, dtype=float),
        held_out=np.zeros(n, dtype=bool) if held_out is None else np.asarray(held_out),
        **values,
    )


class TestOverTasks:
    @pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 0.025])
    def test_leaves_out_what_is_undefined(self, share):
        draw = np.random.default_rng(0)
        values = draw.random((3, 9, 4))
        values[draw.random(values.shape) < 0.3] = np.nan
        assert nan_quantile_over_tasks(values, share) == pytest.approx(
            np.nanquantile(values, share, axis=-2), nan_ok=True
        )

    def test_is_the_median_where_all_is_defined(self):
        values = np.random.default_rng(0).random((8, 5))
        assert np.array_equal(nan_quantile_over_tasks(values, 0.5), np.median(values, axis=0))
        assert nan_quantile_over_tasks(values, 0.25) == pytest.approx(np.quantile(values, 0.25, axis=0))

    def test_of_no_tasks_and_of_undefined_ones(self):
        assert np.isnan(nan_quantile_over_tasks(np.zeros((0, 3)), 0.5)).all()
        assert np.isnan(nan_quantile_over_tasks(np.full((2, 3), np.nan), 0.5)).all()

    def test_mean_of_what_is_defined(self):
        values = np.array([[1.0, np.nan, 2.0], [np.nan] * 3])
        assert nan_mean(values) == pytest.approx(np.array([1.5, np.nan]), nan_ok=True)
        assert np.isnan(nan_mean(np.zeros((2, 0)))).all()


class TestSelection:
    FOUND = curves(
        [[1.0, 0.1], [1.0, 0.2], [1.0, 0.3]],
        held_out=[False, True, False],
        clusters=("nli", "nli", None),
        dims={"tuned": np.array([3.0, 4.0])},
        covariates={"size": np.array([10.0, 20.0, 30.0])},
        ceiling=np.array([[1.0, 0.9], [np.nan, np.nan], [1.0, 0.7]]),
    )

    def test_by_mask(self):
        found = self.FOUND.select(np.array([False, True, True]))
        assert found.tasks == ("t1", "t2")
        assert found.clusters == ("nli", None)
        assert found.held_out.tolist() == [True, False]
        assert found.base[:, 1].tolist() == [0.2, 0.3]
        assert found.ceiling[1].tolist() == [1.0, 0.7]
        assert found.covariates["size"].tolist() == [20.0, 30.0]
        assert found.dims == {}

    def test_dimensions_are_those_of_the_seen_tasks(self):
        assert self.FOUND.seen.dims == self.FOUND.dims
        assert self.FOUND.unseen.dims == {}
        assert (self.FOUND.seen.tasks, self.FOUND.unseen.tasks) == (("t0", "t2"), ("t1",))

    def test_curves_that_were_not_measured(self):
        with pytest.raises(InputError, match=r"^the curves have no null; measure it, or look at base and tuned$"):
            self.FOUND.median("null")

    def test_a_median_that_was_handed_out_is_not_the_one_that_is_kept(self):
        self.FOUND.median("base")[:] = 7
        assert self.FOUND.median("base").tolist() == [1.0, 0.2]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"tuned": np.zeros((3, 1))}, "tuned has the shape (3, 1); expected (3, 2), tasks by layers"),
            ({"held_out": np.zeros(2, bool)}, "held_out has the shape (2,); expected one for each of 3 tasks"),
            ({"clusters": ("a",)}, "clusters has the shape (1,); expected one for each of 3 tasks"),
            ({"covariates": {"size": np.zeros(4)}}, "size has the shape (4,); expected one for each of 3 tasks"),
            ({"dims": {"base": np.zeros(3)}}, "dims of base have the shape (3,); expected one for each layer"),
        ],
    )
    def test_refusals(self, change, message):
        with pytest.raises(InputError) as refused:
            replace(self.FOUND, **change)
        assert str(refused.value) == message


class TestBootstrap:
    def test_draws_held_out_tasks_among_held_out_ones(self):
        held_out = np.array([False] * 4 + [True] * 2)
        drawn = curves(np.arange(6.0)[:, None], held_out=held_out).resampled(200)
        assert drawn.base.shape == (200, 6, 1)
        assert set(drawn.base[:, ~held_out].ravel()) == {0.0, 1.0, 2.0, 3.0}
        assert set(drawn.base[:, held_out].ravel()) == {4.0, 5.0}

    def test_all_that_belongs_to_a_task_goes_with_it(self):
        values = np.arange(5.0)[:, None]
        drawn = curves(values, values + 10, ceiling=values + 20, covariates={"x": values[:, 0]}).resampled(50)
        assert np.array_equal(drawn.tuned, drawn.base + 10)
        assert np.array_equal(drawn.ceiling, drawn.base + 20)
        assert np.array_equal(drawn.covariates["x"], drawn.base[..., 0])

    def test_is_what_a_loop_over_draws_gives(self):
        draw = np.random.default_rng(3)
        found = curves(draw.random((7, 3)), draw.random((7, 3)))
        drawn = found.resampled(40, seed=5)
        one_by_one = [
            float(np.median(t[:, -1]) - np.median(b[:, -1])) for b, t in zip(drawn.base, drawn.tuned, strict=True)
        ]
        value, ends = task_bootstrap_interval(found, last_layer_gap, draws=40, seed=5)
        assert value == float(np.median(found.tuned[:, -1]) - np.median(found.base[:, -1]))
        assert ends == pytest.approx(np.quantile(one_by_one, (0.025, 0.975)))

    def test_covers_the_truth_about_as_often_as_it_says(self):
        draw, inside = np.random.default_rng(0), 0
        for _ in range(200):
            _, (low, high) = task_bootstrap_interval(
                curves(draw.normal(0.5, 0.1, (30, 1))), lambda c: c.median("base")[..., 0], 300
            )
            inside += low <= 0.5 <= high
        assert 0.88 < inside / 200 < 0.99

    def test_of_every_layer_at_once(self):
        value, (low, high) = task_bootstrap_interval(
            curves(np.random.default_rng(0).random((6, 4))), lambda c: c.median("base")
        )
        assert value.shape == low.shape == high.shape == (4,)
        assert (low < high).all()

    def test_one_task_has_no_interval(self):
        value, ends = task_bootstrap_interval(curves([[0.5]]), lambda c: c.median("base")[..., 0])
        assert value == 0.5
        assert np.isnan(ends).all()

    def test_is_undefined_where_too_many_draws_are(self):
        draws = np.arange(100.0)
        assert np.isfinite(task_bootstrap_ends(np.where(draws < 5, np.nan, draws))).all()
        assert np.isnan(task_bootstrap_ends(np.where(draws < 6, np.nan, draws))).all()

    def test_seeds_repeat(self):
        found = curves(np.random.default_rng(0).random((6, 2)))
        assert task_bootstrap_interval(found, last_layer_gap, 50, 1) == task_bootstrap_interval(
            found, last_layer_gap, 50, 1
        )
        one, other = (found.resampled(50, seed).base for seed in (1, 2))
        assert not np.array_equal(one, other)
