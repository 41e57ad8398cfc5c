"""The layer-group rule: the paper's groups on the paper's curves, and the edges."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mechclust.mossa.crossovers import crossover
from mechclust.mossa.layer_groups import (
    LayerGroups,
    LayerGroupsInterval,
    group_boundaries,
    layer_groups_interval,
)
from mechclust.mossa.published import GROUPS
from mechclust.mossa.task_curves import TaskCurves
from tests.mechclust.mossa.layer_groups_of_curves import layer_groups

_DATA = Path(__file__).parents[2] / "data" / "mossa"


def _curves(name: str) -> tuple[list[float], list[float], list[float]]:
    with open(_DATA / name) as file:
        rows = [{k: float(v) if v else math.nan for k, v in row.items()} for row in csv.DictReader(file)]
    base, tuned = ([row[f"{kind}_median"] for row in rows] for kind in ("pre", "sft"))
    return base, tuned, [row["sft_q3"] - row["sft_q1"] for row in rows]


class TestPublished:
    def test_seen_tasks_with_dimensions(self):
        dims = [math.nan] * 32
        dims[10 - 1], dims[15 - 1] = 1004.0, 1720.0
        found = layer_groups(*_curves("fig2_seen_tasks.csv"), dims)
        assert found == LayerGroups(range(1, 10), range(10, 16), range(16, 33))

    def test_seen_tasks_without_dimensions(self):
        found = layer_groups(*_curves("fig2_seen_tasks.csv"))
        assert str(found) == "shared 1-9, transition 10-15, refinement 16-32"
        assert {name: (layers[0], layers[-1]) for name, layers in vars(found).items()} == GROUPS

    def test_unseen_tasks_have_no_transition(self):
        found = layer_groups(*_curves("fig7_unseen_tasks.csv"))
        assert not found.transition
        assert str(found) == "shared 1-16, no transition, refinement 17-32"

    def test_crossovers(self):
        assert crossover(*_curves("fig2_seen_tasks.csv")[:2]) == 9
        assert crossover(*_curves("fig7_unseen_tasks.csv")[:2]) == 13

    def test_an_error_of_reading_moves_the_boundaries_by_little(self):
        """With .005 in every point the first boundary is mostly 8 or 9; unseen tasks never have a transition."""
        draw, ends, transitions = np.random.default_rng(0), [], 0
        for _ in range(200):
            for name in ("fig2_seen_tasks.csv", "fig7_unseen_tasks.csv"):
                found = layer_groups(*(np.array(c) + draw.uniform(-0.005, 0.005, 32) for c in _curves(name)))
                if name.startswith("fig2"):
                    ends.append(len(found.shared))
                else:
                    transitions += bool(found.transition)
        assert transitions == 0
        assert np.isin(ends, (8, 9)).mean() > 0.9
        assert 0.3 < np.mean(np.array(ends) == 9) < 0.8


class TestRule:
    def test_one_exception_is_allowed_and_two_are_not(self):
        base, up, down = [0.5] * 6, 0.6, 0.5
        assert crossover(base, [down, up, up, down, up, up]) == 2
        assert crossover(base, [down, up, down, up, down, up]) == 4

    def test_never_above(self):
        assert crossover([0.5] * 3, [0.5] * 3) == 4
        found = layer_groups([0.5] * 3, [0.5] * 3, [0.0] * 3)
        assert found == LayerGroups(range(1, 4), range(4, 4), range(4, 4))
        assert str(found) == "shared 1-3, no transition, no refinement"

    def test_bounds_are_within(self):
        """A spread of .1 is narrow, and .95 of the most dimensions are full."""
        assert layer_groups([0.1] * 3, [0.9] * 3, [0.1] * 3, [1, 19, 20]).transition == range(1, 3)

    def test_dimensions_that_are_not_known_are_left_out(self):
        curves = [0.1] * 4, [0.9] * 4, [0.05, 0.05, 0.2, 0.2]
        assert layer_groups(*curves, [math.nan] * 4) == layer_groups(*curves)


def _drawn(name: str, n_tasks: int, scale: float = 1.0) -> TaskCurves:
    """Tasks at even quantiles of a distribution with the published medians and quartiles."""
    with open(_DATA / name) as file:
        rows = list(csv.DictReader(file))
    place = np.linspace(-1, 1, n_tasks)[:, None] * 2
    tables = {}
    for kind in ("pre", "sft"):
        low, median, high = (
            np.array([float(row[f"{kind}_{q}"] or "nan") for row in rows]) for q in ("q1", "median", "q3")
        )
        tables[kind] = median + scale * place * np.where(place > 0, high - median, median - low)
    seen = np.zeros(n_tasks, dtype=bool)
    return TaskCurves(
        tuple(map(str, range(n_tasks))), tuple(map(str, range(32))), tables["pre"], tables["sft"], None, None, seen,
        (None,) * n_tasks,
    )  # fmt: skip


class TestInterval:
    def test_published_curves_keep_their_groups(self):
        found = layer_groups_interval(_drawn("fig2_seen_tasks.csv", 61))
        assert str(found.groups) == "shared 1-9, transition 10-15, refinement 16-32"
        (low, high), (early, late) = found.shared_end, found.transition_end
        assert low <= 9 <= high
        assert early <= 15 <= late
        assert found.no_transition < 0.05

    def test_groups_and_intervals_are_those_of_each_draw(self):
        curves = _drawn("fig2_seen_tasks.csv", 13)
        drawn, ends = curves.resampled(60, seed=3), []
        for base, tuned in zip(drawn.base, drawn.tuned, strict=True):
            low, high = np.quantile(tuned, (0.25, 0.75), axis=0)
            found = layer_groups(np.median(base, axis=0), np.median(tuned, axis=0), high - low)
            ends.append((len(found.shared), found.transition[-1] if found.transition else 0))
        interval = layer_groups_interval(curves, draws=60, seed=3)
        shared, end = np.array(ends).T
        low, high = np.quantile(shared, (0.025, 0.975))
        assert interval.shared_end == (math.floor(low), math.ceil(high))
        assert interval.no_transition == pytest.approx((end == 0).mean())
        low, high = np.quantile(end[end > 0], (0.025, 0.975))
        assert interval.transition_end == (math.floor(low), math.ceil(high))

    def test_held_out_tasks_have_no_transition(self):
        found = layer_groups_interval(_drawn("fig7_unseen_tasks.csv", 41))
        assert found.no_transition > 0.9
        assert "no transition, " in str(found)

    def test_dimensions_are_the_same_in_every_draw_and_said_so(self):
        dims = np.where(np.arange(1, 33) < 20, 100.0, 1000.0)
        found = layer_groups_interval(replace(_drawn("fig2_seen_tasks.csv", 21), dims={"tuned": dims}))
        assert found.transition_end == (20, 20)
        assert any("the same in every draw" in note for note in found.notes)

    def test_one_task_has_none(self):
        found = layer_groups_interval(_drawn("fig2_seen_tasks.csv", 1))
        assert (found.shared_end, found.transition_end, found.draws) == (None, None, 0)
        assert found.notes == ("1 task: boundaries have no interval over tasks, which needs 6",)
        assert str(found) == str(found.groups)


class TestUndefinedDraws:
    """Of 8 tasks, base is undefined at layer 3 in all but some: a draw without these has no median there."""

    def curves(self, n_known):
        base = np.repeat([[1.0, 0.9, 0.6, 0.5]], 8, axis=0)
        base[n_known:, 2] = np.nan
        tuned = np.repeat([[1.0, 0.5, 0.9, 0.9]], 8, axis=0)
        none = np.zeros(8, dtype=bool)
        return TaskCurves(tuple("abcdefgh"), tuple("1234"), base, tuned, None, None, none, (None,) * 8)

    @pytest.mark.parametrize(("n_known", "n_draws"), [(4, 997), (8, 1000)])
    def test_a_few_are_left_out(self, n_known, n_draws):
        found = layer_groups_interval(self.curves(n_known))
        assert found.draws == n_draws
        assert (found.groups.shared, found.shared_end, found.no_transition) == (range(1, 3), (2, 2), 0)
        assert found.farther == (2,)
        assert found.notes == ("intervals are over 8 tasks drawn with replacement",)

    def test_with_many_there_is_no_interval(self):
        found = layer_groups_interval(self.curves(2))
        assert (found.shared_end, found.transition_end, found.draws) == (None, None, 0)
        assert found.notes == ("boundaries have no interval: undefined in more than 5% of the draws of tasks",)

    def test_a_layer_with_few_undefined_draws_can_be_farther(self):
        curves = self.curves(4)
        base = np.where(np.isnan(curves.base), np.nan, 0.9)
        found = layer_groups_interval(replace(curves, base=base, tuned=np.full((8, 4), 0.5)))
        assert found.farther == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            LayerGroupsInterval(LayerGroups(range(1, 10), range(10, 16), range(16, 33)), (8, 9), (14, 18), 0.02, 1000),
            "shared 1-9 (95% over tasks: end at 8 to 9), transition 10-15 (end at 14 to 18; none in 2% of draws), "
            "refinement 16-32",
        ),
        (
            LayerGroupsInterval(LayerGroups(range(1, 4), range(4, 4), range(4, 4)), (2, 3), (3, 3), 0.95, 1000),
            "shared 1-3 (95% over tasks: end at 2 to 3), no transition (there is one in 5% of draws), no refinement",
        ),
        (
            LayerGroupsInterval(LayerGroups(range(1, 4), range(4, 4), range(4, 4)), None, (3, 3), 0.998, 1000),
            "shared 1-3, no transition (there is one in under 1% of draws), no refinement",
        ),
        (
            LayerGroupsInterval(LayerGroups(range(1, 2), range(2, 4), range(4, 4)), None, (3, 3), 0.998, 1000),
            "shared 1, transition 2-3 (end at 3; none in over 99% of draws), no refinement",
        ),
        (
            LayerGroupsInterval(LayerGroups(range(1, 1), range(1, 2), range(2, 4)), (0, 1), None, 0.0, 100),
            "no shared (95% over tasks: end at 0 to 1), transition 1, refinement 2-3",
        ),
    ],
)
def test_in_words(found, said):
    assert str(found) == said


def test_rows():
    groups = LayerGroups(range(1, 3), range(3, 3), range(3, 4))
    found = LayerGroupsInterval(groups, (0, 2), (3, 3), 0.9, 100)
    assert found.rows() == [
        {"group": "shared", "first_layer": 1, "last_layer": 2, "end_low": 0, "end_high": 2, "tuned_alone": ""},
        {
            "group": "transition",
            "first_layer": None,
            "last_layer": None,
            "end_low": 3,
            "end_high": 3,
            "tuned_alone": "",
        },
        {
            "group": "refinement",
            "first_layer": 3,
            "last_layer": 3,
            "end_low": None,
            "end_high": None,
            "tuned_alone": "",
        },
    ]


def planted_below(n=8, noise=0.0, seed=0):
    """Curves of ``n`` tasks by 8 layers: tuned was changed from layer 2 on, the controls from layer 5 on."""
    draw = np.random.default_rng(seed)
    base = np.repeat([[1.0, 1, 1, 1, 0.8, 0.7, 0.7, 0.7]], n, axis=0)
    tuned = np.repeat([[1.0, 0.44, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3]], n, axis=0)
    tuned = tuned + noise * draw.standard_normal(tuned.shape)
    layers = tuple(map(str, range(1, 9)))
    return TaskCurves(tuple(map(str, range(n))), layers, base, tuned, None, None, np.zeros(n, bool), (None,) * n)


def exchangeable(seed: int, n: int = 9, n_layers: int = 12) -> TaskCurves:
    """Curves that differ by noise only, which neighbouring layers share."""
    noise = np.random.default_rng(seed).standard_normal((2, n, n_layers))
    for layer in range(1, n_layers):
        noise[..., layer] = 0.8 * noise[..., layer - 1] + 0.6 * noise[..., layer]
    base, tuned = 0.8 + 0.05 * noise
    layers = tuple(map(str, range(1, n_layers + 1)))
    return TaskCurves(tuple(map(str, range(n))), layers, base, tuned, None, None, np.zeros(n, bool), (None,) * n)


class TestTunedAlone:
    @pytest.mark.parametrize("n", [4, 8])  # with and without an interval
    def test_layers_where_controls_are_like_the_base(self, n):
        found = layer_groups_interval(planted_below(n))
        assert found.groups.shared == range(1, 9)
        assert found.tuned_alone == (2, 3, 4)
        assert found.farther == (2, 3, 4, 5, 6, 7, 8)
        assert "tuned alone changed at 2-4" in str(found)
        assert [row["tuned_alone"] for row in found.rows()] == ["2-4", "", ""]

    def test_a_difference_within_the_interval_is_not_one(self):
        found = layer_groups_interval(planted_below(6, noise=3.0))
        assert not found.tuned_alone
        assert "alone" not in str(found)

    def test_seldom_where_nothing_differs(self):
        n_found = sum(layer_groups_interval(exchangeable(seed), draws=300).farther != () for seed in range(60))
        assert n_found <= 3  # 9 if each layer has an interval of its own

    def test_nothing_changed(self):
        curves = planted_below()
        assert layer_groups_interval(replace(curves, tuned=curves.base)).farther == ()


def plain_rule(base, tuned, spread, dims):
    """The rule's text, layer by layer: the last shared layer and the last of the transition."""
    n = len(base)
    above = [t - b > 0.02 for b, t in zip(base, tuned, strict=True)]
    starts = [i for i in range(n) if above[i] and sum(not x for x in above[i:]) <= 1]
    if not starts:
        return n, n
    start = starts[0]
    known = {i: spread[i] for i in range(start, n) if not math.isnan(spread[i])}
    if not known or min(known.values()) > 0.10:
        return start, start
    if dims is not None:
        full = [i for i in range(start, n) if dims[i] >= 0.95 * max(dims)]
        return start, (full[0] if full else start) + 1
    least = min(known, key=known.get)
    left = [i for i in known if i > least and known[i] > known[least] + 0.02]
    return start, left[0] if left else n


def test_many_curves_at_once_are_judged_by_the_rule():
    draw = np.random.default_rng(0)
    base, tuned, spread = (draw.random((400, 6)) for _ in range(3))
    base, spread, dims = base * 0.5, spread * 0.3, draw.random((400, 6))
    spread[draw.random(spread.shape) < 0.2] = np.nan
    for n_dims in (None, dims):
        of_curves = [None] * 400 if n_dims is None else n_dims
        expected = [plain_rule(*curves) for curves in zip(base, tuned, spread, of_curves, strict=True)]
        assert np.transpose(group_boundaries(base, tuned, spread, n_dims)).tolist() == [list(pair) for pair in expected]
        assert len(set(expected)) > 10
