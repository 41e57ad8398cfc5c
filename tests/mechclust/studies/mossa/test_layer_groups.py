"""The layer-group rule: the paper's groups on the paper's curves, and the edges."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from mechclust.studies.mossa.layer_groups import LayerGroups, crossover, layer_groups
from tasks import InputError

_DATA = Path(__file__).parent


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
        assert crossover(base, [down, up, down, up, down, up], exceptions=0) == 6

    def test_the_start_itself_is_above(self):
        assert crossover([0.5] * 3, [0.5, 0.6, 0.6]) == 2

    def test_never_above(self):
        assert crossover([0.5] * 3, [0.5] * 3) == 4
        found = layer_groups([0.5] * 3, [0.5] * 3, [0.0] * 3)
        assert found == LayerGroups(range(1, 4), range(4, 4), range(4, 4))
        assert str(found) == "shared 1-3, no transition, no refinement"

    def test_nothing_shared(self):
        found = layer_groups([0.1] * 3, [0.9] * 3, [0.05, 0.05, 0.2])
        assert found == LayerGroups(range(1, 1), range(1, 3), range(3, 4))

    def test_dimensions_decide_before_the_spread(self):
        curves = [0.1] * 4, [0.9] * 4, [0.05, 0.05, 0.2, 0.2]
        assert layer_groups(*curves, [10, 20, 39, 40]).transition == range(1, 4)
        assert layer_groups(*curves).transition == range(1, 3)

    def test_dimensions_that_are_not_known_are_left_out(self):
        curves = [0.1] * 4, [0.9] * 4, [0.05, 0.05, 0.2, 0.2]
        assert layer_groups(*curves, [math.nan] * 4) == layer_groups(*curves)

    def test_dimensions_that_fall_from_the_start_leave_one_layer(self):
        curves = [0.9, 0.1, 0.1], [0.9] * 3, [0.05] * 3
        assert layer_groups(*curves, [40, 20, 10]).transition == range(2, 3)

    def test_a_wide_spread_has_no_transition_whatever_the_dimensions(self):
        found = layer_groups([0.1] * 3, [0.9] * 3, [0.101] * 3, [1, 2, 3])
        assert found == LayerGroups(range(1, 1), range(1, 1), range(1, 4))

    def test_refuses_curves_of_different_lengths(self):
        with pytest.raises(InputError) as refused:
            layer_groups([0.1] * 3, [0.9] * 3, [0.1] * 2)
        assert str(refused.value) == "the curves have 3, 3, 2 layers; expected one number each"
