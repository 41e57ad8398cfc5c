"""Draws change what they say and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from mechclust.report.draws import (
    at_bound,
    coins,
    exchanged,
    exchanged_by_column,
    in_random_order,
    moved_to,
    one_column,
    one_of,
    random_signs,
    random_walk,
    relabelled,
    replaced,
)
from mechclust.report.verdicts import Bound


class TestDraws:
    DATA = {"a": np.arange(12.0).reshape(4, 3), "b": -np.arange(12.0).reshape(4, 3)}
    RNG = np.random.default_rng(0)

    def test_the_same_seeds_are_exchanged_in_all_pairs(self):
        data = {**self.DATA, "c": np.zeros(4), "d": np.ones(4)}
        new = exchanged(("a", "b"), ("c", "d"))(data, np.random.default_rng(1))
        assert np.array_equal(new["c"] == 1, (new["a"] <= 0).all(1) & (new["a"] < 0).any(1))
        assert 0 < new["c"].sum() < 4

    def test_exchange_by_column_is_the_same_in_all_seeds(self):
        new = exchanged_by_column("a", "b")(self.DATA, np.random.default_rng(1))
        assert np.array_equal(new["a"] + new["b"], np.zeros((4, 3)))
        moved = (new["a"] != self.DATA["a"])[1:]  # the first seed has a zero, which is the same either way
        assert (moved == moved[0]).all()
        assert 0 < moved[0].sum() < 3

    def test_a_seed_is_replaced_whole(self):
        new = replaced(a="b")(self.DATA, self.RNG)["a"]
        assert {tuple(row) for row in new} <= {tuple(row) for row in self.DATA["b"]}
        assert new.shape == self.DATA["b"].shape

    def test_moved_values_keep_their_spread(self):
        rng, draw = np.random.default_rng(0), moved_to(a=np.array([1.0, 2.0, 3.0]))
        new = np.concatenate([draw(self.DATA, rng)["a"] for _ in range(4000)])
        assert np.allclose(new.mean(axis=0), [1, 2, 3], atol=0.1)
        assert np.allclose(np.cov(new.T), np.cov(self.DATA["a"].T), rtol=0.1)

    def test_order_differs_along_axes_between(self):
        data = {"a": np.tile(np.arange(6.0), (3, 4, 1))}
        new = in_random_order("a")(data, self.RNG)["a"]
        assert np.array_equal(np.sort(new, -1), data["a"])
        assert len({tuple(row) for row in new.reshape(12, 6)}) > 6

    def test_coins_share_one_chance_of_several(self):
        data = {"a": np.zeros(300), "b": np.zeros(300)}
        means = [
            tuple(coins("a", "b", chance=(0.1, 0.9))(data, np.random.default_rng(i))[name].mean() for name in "ab")
            for i in range(20)
        ]
        assert all(min(abs(a - p) for p in (0.1, 0.9)) < 0.08 and abs(a - b) < 0.15 for a, b in means)
        assert {round(a) for a, _ in means} == {0, 1}
        assert coins("a", chance=0)(data, self.RNG)["a"].sum() == 0

    def test_labels_and_signs_keep_what_they_change(self):
        data = {"a": np.arange(1.0, 9.0)}
        assert sorted(relabelled("a")(data, self.RNG)["a"]) == data["a"].tolist()
        new = random_signs("a")(data, self.RNG)["a"]
        assert np.array_equal(np.abs(new), data["a"])
        assert (new < 0).any()

    def test_one_of_several_draws(self):
        draw = one_of(moved_to(v=0.0), moved_to(v=1.0))
        means = {float(draw({"v": np.ones(3)}, np.random.default_rng(i))["v"].mean()) for i in range(20)}
        assert means == {0.0, 1.0}

    def test_exchange_keeps_pairs(self):
        new = exchanged(("a", "b"))(self.DATA, self.RNG)
        assert np.array_equal(new["a"] + new["b"], self.DATA["a"] + self.DATA["b"])
        assert np.array_equal(np.abs(new["a"]), self.DATA["a"])

    def test_order_is_the_same_for_all_names(self):
        new = in_random_order("a", "b")(self.DATA, np.random.default_rng(1))
        assert np.array_equal(new["a"], -new["b"])
        assert np.array_equal(np.sort(new["a"], 1), self.DATA["a"])
        assert not np.array_equal(new["a"], self.DATA["a"])

    def test_walks_have_the_measured_steps(self):
        new = random_walk("a")(self.DATA, self.RNG)["a"]
        assert np.array_equal(np.abs(np.diff(new, axis=1)), np.ones((4, 2)))
        assert np.array_equal(new[:, 0], self.DATA["a"][:, 0])

    def test_one_column(self):
        new = one_column("a", "b")(self.DATA, self.RNG)["a"]
        assert ((new != self.DATA["a"]).any(0)).sum() == 1

    @pytest.mark.parametrize("relation", ["<=", ">="])
    def test_at_a_bound_is_outside_of_it(self, relation):
        bound = Bound(relation, 0.5)
        same = at_bound("v", bound)({"v": np.full(5, 0.9)}, self.RNG)["v"]
        assert not bound.met(float(same.mean()))
        assert same == pytest.approx(0.5, abs=1e-6)
