"""Null curves: what they take away, and what they leave as it was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.report.task_curves import TaskCurves
from tasks import InputError
from tests.mechclust.report.test_task_curves import curves

DRAW = np.random.default_rng(0)
BASE = 1 - np.cumsum(DRAW.random((40, 12)) * 0.05, axis=1)
FOUND = replace(
    curves(BASE, BASE + 0.1, held_out=[False] * 30 + [True] * 10, covariates={"x": np.arange(40.0)}),
    null=BASE - 0.3,
    dims={"tuned": np.arange(12.0)},
)


def drawn(null, count=100, found: TaskCurves = FOUND, **options):
    return [null(found, np.random.default_rng(i), **options) for i in range(count)]


def test_swapped_has_no_direction_and_keeps_the_numbers_of_each_task():
    gaps = [float(np.mean(c.tuned - c.base)) for c in drawn(nulls.swapped)]
    assert abs(np.mean(gaps)) < 0.01
    one = nulls.swapped(FOUND, DRAW)
    assert np.allclose(one.base + one.tuned, FOUND.base + FOUND.tuned)


def test_exchanged_controls_do_so_for_the_null():
    differences = [float(np.mean(c.tuned - c.null)) for c in drawn(nulls.exchanged_controls)]
    assert abs(np.mean(differences)) < 0.05
    assert np.array_equal(nulls.exchanged_controls(FOUND, DRAW).base, FOUND.base)


def test_layers_move_together():
    one = nulls.permuted_layers(FOUND, np.random.default_rng(1))
    order = one.dims["tuned"].astype(int)
    assert sorted(order) == list(range(12))
    assert list(order) != list(range(12))
    for name in ("base", "tuned", "null"):
        assert np.array_equal(getattr(one, name), getattr(FOUND, name)[:, order])


def test_as_many_tasks_are_held_out():
    counts = [c.held_out.sum() for c in drawn(nulls.permuted_held_out, 20)]
    assert set(counts) == {10}
    assert any(c.held_out[:30].any() for c in drawn(nulls.permuted_held_out, 20))


def test_covariates_stay_among_seen_and_among_held_out_tasks():
    for one in drawn(nulls.permuted_covariates, 20):
        assert sorted(one.covariates["x"][:30]) == list(range(30))
        assert sorted(one.covariates["x"][30:]) == list(range(30, 40))


class TestWandering:
    def test_starts_where_it_was_measured_and_is_at_most_1(self):
        for one in drawn(nulls.wandering, 20):
            assert (one.base <= 1).all()
            expected = FOUND.base[:, 0]
            assert one.base[:, 0] == pytest.approx(np.minimum(expected, 2 - expected))

    def test_a_curve_without_roughness_stays(self):
        flat = replace(FOUND, base=np.tile(FOUND.base[:, :1] - 0.5, (1, FOUND.base.shape[1])))
        assert np.allclose(nulls.wandering(flat, DRAW).base, flat.base)

    def test_has_no_drift_and_the_measured_roughness(self):
        """Measured: steps of -.1 on average, deviation .02 common to all tasks, .01 of each task."""
        draw = np.random.default_rng(2)
        steps = -0.1 + 0.02 * draw.standard_normal(400) + 0.01 * draw.standard_normal((60, 400))
        found = curves(np.zeros((60, 401)) - 50 + np.concatenate([np.zeros((60, 1)), np.cumsum(steps, axis=1)], axis=1))
        made = np.diff(nulls.wandering(found, draw).base)
        assert abs(made.mean()) < 0.005
        assert made.mean(axis=0).std() == pytest.approx(0.02, rel=0.15)
        assert (made - made.mean(axis=0)).std() == pytest.approx(0.01, rel=0.15)

    def test_what_is_undefined_stays_so(self):
        base = BASE.copy()
        base[0, 0] = np.nan
        one = nulls.wandering(curves(base), DRAW)
        assert np.isnan(one.base[0, 0])
        assert np.isfinite(one.base).sum() == base.size - 1

    def test_two_layers_have_no_roughness(self):
        with pytest.raises(InputError) as refused:
            nulls.wandering(curves(np.ones((3, 2))), DRAW)
        assert str(refused.value) == "the curves have 2 layers; expected at least 3 for a random walk"
