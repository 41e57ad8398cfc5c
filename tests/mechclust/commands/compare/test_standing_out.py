"""The rule by which tasks stand out, on numbers made up by hand."""

from __future__ import annotations

import numpy as np

from mechclust.commands.compare.layer_verdict import LayerVerdict
from mechclust.commands.compare.standing_out import common_layers, standing_out

nan = np.nan


class TestStandingOut:
    def found(self, change, spread=0.02, tolerance=0.01, factor=1.5):
        change = np.array(change)
        return standing_out(change, change - spread, change + spread, tolerance=tolerance, factor=factor).tolist()

    def test_two_groups(self):
        assert self.found([0.05, 0.8, 0.1, 0.5]) == [False, True, False, True]
        assert self.found([0.3, 0.1]) == [True, False]

    def test_the_natural_break_is_not_the_widest_gap(self):
        assert self.found([0.96, 0.41, 0.20, 0.19]) == [True, True, False, False]
        assert self.found([0.9, 0.6, 0.2, 0.05]) == [True, True, False, False]

    def test_intervals_that_meet(self):
        assert self.found([0.5, 0.5, 0.1, 0.1], spread=0.19) == [True, True, False, False]
        assert not any(self.found([0.5, 0.5, 0.1, 0.1], spread=0.21))
        change, low, high = np.array([0.5, 0.1]), np.array([0.3, 0.05]), np.array([0.6, 0.3])  # at the same number
        assert not standing_out(change, low, high, tolerance=0.01, factor=1.5).any()

    def test_the_widest_interval_of_the_others_counts(self):
        change = np.array([0.9, 0.1, 0.05])
        high = np.array([0.92, 0.12, 0.91])  # of the last, above the lower end of the first
        assert not standing_out(change, change - 0.02, high, tolerance=0.01, factor=1.5).any()

    def test_less_than_the_factor(self):
        assert not any(self.found([0.5, 0.5, 0.4, 0.4]))
        assert self.found([0.5, 0.5, 0.4, 0.4], factor=1.2) == [True, True, False, False]
        assert self.found([0.5, 0.25], factor=2.0) == [True, False]

    def test_up_to_the_tolerance_nothing_stands_out(self):
        assert not any(self.found([0.009, 1e-9, 1e-12], spread=0))
        assert self.found([0.02, 1e-9, 1e-12], spread=0) == [True, False, False]
        assert not any(self.found([0.02, 1e-9, 1e-12], spread=0, tolerance=0.1))

    def test_no_change(self):
        assert self.found([0.0, 0.0, 0.0], spread=0) == [False, False, False]

    def test_negative_cka(self):
        assert self.found([1.1, 1.05, 0.2]) == [True, True, False]

    def test_no_value_and_no_interval_are_left_open(self):
        """Neither said to stand out nor to do not: masked."""
        assert self.found([nan, 0.9, 0.1]) == [None, True, False]
        assert self.found([nan, 0.9, nan]) == [None, None, None]
        options = {"tolerance": 0.01, "factor": 1.5}
        changes = ([0.184, 0, 0, 0], [nan, -0.01, -0.01, -0.01], [nan, 0.01, 0.01, 0.01])
        assert standing_out(*map(np.array, changes), **options).tolist() == [None, False, False, False]
        changes = ([0.184, 0.5, 0, 0], [nan, 0.4, -0.01, -0.01], [nan, 0.6, 0.01, 0.01])
        assert standing_out(*map(np.array, changes), **options).tolist() == [None, True, False, False]


def test_a_change_of_the_tolerance_is_none():
    change = np.array([[0.01, 0.01, 0.02]])
    verdict = LayerVerdict(change, np.array([[0.01, nan, nan]]), change, 0.01)
    assert verdict.changed.tolist() == [[False, None, None]]
    assert verdict.maybe_changed.tolist() == [[False, False, True]]


class TestCommonLayers:
    def test_where_every_task_is_known(self):
        known = np.ones((4, 3), dtype=bool)
        known[0, 1] = known[1, 2] = False
        assert [x.tolist() for x in common_layers(known)] == [[False, False, True, True], [True, True, True]]

    def test_a_task_that_costs_too_many_layers_is_left_out(self):
        known = np.ones((5, 3), dtype=bool)
        known[:3, 1] = False
        assert [x.tolist() for x in common_layers(known)] == [[True] * 5, [True, False, True]]
        known[:4, 1] = False
        assert [x.tolist() for x in common_layers(known)] == [[True] * 5, [True, False, True]]
        known[0, 0] = False
        assert [x.tolist() for x in common_layers(known)] == [[False, *[True] * 4], [True, False, True]]

    def test_two_tasks_are_kept(self):
        known = np.array([[True, False], [True, False], [True, True]])
        assert [x.tolist() for x in common_layers(known)] == [[False, False, True], [True, True]]

    def test_none(self):
        assert [x.tolist() for x in common_layers(np.zeros((2, 2), dtype=bool))] == [[False, False], [False, False]]
        assert [x.tolist() for x in common_layers(np.array([[True, False]]))] == [[True], [True, False]]
