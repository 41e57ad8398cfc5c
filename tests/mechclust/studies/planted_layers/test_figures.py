"""Figures of planted layers: they draw the curves, scores and chance levels of curves made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.report.style import BLUE, ORANGE, RED
from mechclust.studies import get_study
from mechclust.studies.planted_layers.config import NONE, TRAINED, TWICE_STEPS, false_columns
from mechclust.studies.planted_layers.figures import (
    call_panels,
    curves_figure,
    dots_figure,
    errors_panels,
    separation_panels,
    unplanted_panels,
)
from mechclust.studies.planted_layers.measure import DEBIASED, MEASURES
from mechclust.studies.planted_layers.results import PATCHING, Row, scores_by_row
from mechclust.studies.planted_layers.rows import CONTRIBUTION, RESIDUAL
from mechclust.studies.planted_layers.study import Results
from tests.mechclust.studies.planted_layers.test_findings import LAYERS, PAPER, L, measured

GIVEN = replace(PAPER, model="somewhere", prompts="prompts.jsonl")

VIEW_COLORS = {RESIDUAL: BLUE, CONTRIBUTION: ORANGE, PATCHING: RED}


@pytest.fixture(scope="module")
def runs():
    return [measured(seed) for seed in range(4)]


def line_of(axis, color):
    """Return the values of the one solid line of a colour with a point at every layer."""
    (line,) = [line for line in axis.lines if line.get_color() == color and line.get_marker() == "."]
    return np.asarray(line.get_ydata())


class TestCurves:
    def test_draw_the_mean_over_seeds_in_the_panel_of_their_plant(self, runs):
        figure = curves_figure(PAPER, runs)
        pairs = runs[0].of(TRAINED)
        by_title = {axis.get_title(): axis for axis in figure.axes}
        for pair in pairs:
            axis = by_title[f"trained, layers {pair.truth[0]}-{pair.truth[1]}"]
            for view in (RESIDUAL, CONTRIBUTION):
                expected = np.mean([run.curve(pair, Row(view, DEBIASED)) for run in runs], axis=0)
                assert line_of(axis, VIEW_COLORS[view]) == pytest.approx(expected)
            thresholds = [line.get_ydata() for line in axis.lines if line.get_linestyle() == ":"]
            assert np.array(thresholds) == pytest.approx(np.full((3, L), 0.5))
            assert axis.lines[0].get_xdata() == pytest.approx(LAYERS)

    def test_shade_the_layers_that_were_planted(self, runs):
        axis = curves_figure(PAPER, runs).axes[0]
        first, last = runs[0].of(TRAINED)[0].truth
        band = axis.patches[0].get_extents().transformed(axis.transData.inverted())
        assert (band.x0, band.x1) == pytest.approx((first - 0.4, last + 0.4))

    def test_draw_the_loss_that_patching_restores_at_the_right(self, runs):
        figure = curves_figure(PAPER, runs)
        pairs = runs[0].of(TRAINED)
        right = [axis for axis in figure.axes if axis.get_ylim() == (-0.1, 1.1)]
        for axis, pair in zip(right, pairs, strict=False):
            assert line_of(axis, VIEW_COLORS[PATCHING]) == pytest.approx((pair.truth[0] <= LAYERS).astype(float))
        assert [axis.get_ylabel() for axis in right[: len(pairs)]] == [*[""] * (len(pairs) - 1), "loss restored"]

    def test_leave_patching_out_if_a_loss_cannot_be_restored(self, runs):
        restored = {name: np.full(L, np.nan) for name in runs[0].restored}
        figure = curves_figure(PAPER, [replace(run, restored=restored) for run in runs])
        assert [axis for axis in figure.axes if axis.get_ylabel() == "loss restored"] == []

    def test_leave_a_measure_out_if_it_is_undefined_in_a_seed(self, runs):
        (pair, *_) = runs[0].of(TRAINED)
        undefined = {**runs[1].curves, pair.name: np.full_like(runs[1].curves[pair.name], np.nan)}
        axis = curves_figure(PAPER, [runs[0], replace(runs[1], curves=undefined)]).axes[0]
        assert [line for line in axis.lines if line.get_marker() == "."] == []


class TestDots:
    def test_lie_at_the_mean_score_with_the_interval_over_seeds(self, runs):
        panels = errors_panels(PAPER)
        axes = dots_figure(PAPER, runs, panels).axes
        for axis, panel in zip(axes, panels, strict=True):
            expected = scores_by_row(PAPER, runs, panel.column, panel.name)
            drawn = [float(line.get_xdata()[0]) for line in axis.lines if line.get_marker() not in ("None", "")]
            finite = [values.mean() for values in expected.values() if np.isfinite(values).all()]
            assert sorted(drawn) == pytest.approx(sorted(finite))

    def test_measures_lie_from_above_and_patching_below_them(self, runs):
        axis = dots_figure(PAPER, runs, separation_panels(PAPER)[:1]).axes[0]
        names = [label.get_text() for label in axis.get_yticklabels()]
        assert len(names) == len(MEASURES) + 1
        assert names[-1] == PATCHING
        low, high = axis.get_ylim()
        assert low > high
        (patched,) = [line for line in axis.lines if line.get_marker() == "*"]
        assert patched.get_ydata()[0] == len(MEASURES)

    def test_chance_is_dashed_where_there_is_one(self, runs):
        def chances(panels):
            axes = dots_figure(PAPER, runs, panels).axes
            return [[line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == "--"] for axis in axes]

        assert chances(separation_panels(PAPER)) == [[0.5]] * len(separation_panels(PAPER))
        first, last = chances(errors_panels(PAPER))
        assert len(first) == len(last) == 1
        assert chances(call_panels(PAPER)) == [[], [], []]

    def test_other_layers_have_no_patching(self, runs):
        axis = dots_figure(PAPER, runs, unplanted_panels(PAPER)).axes[0]
        assert PATCHING not in [label.get_text() for label in axis.get_yticklabels()]

    def test_panels_say_which_share_is_right(self):
        titles = [panel.title for panel in unplanted_panels(PAPER)]
        assert all(title.endswith(("right is 0", "right is 1")) for title in titles)
        assert not any(title.startswith(NONE) for title in titles)
        assert "other order: right is 0" in titles

    def test_a_given_model_has_no_order_of_data(self):
        titles = [panel.title for panel in unplanted_panels(GIVEN)]
        assert "two draws of small noise: right is 0" in titles
        assert not any("order" in title for title in titles)


def test_twice_the_steps_is_a_comparison_of_trained_networks_only():
    assert TWICE_STEPS in false_columns(PAPER)
    assert TWICE_STEPS not in false_columns(GIVEN)
    assert len(false_columns(GIVEN)) == len(false_columns(PAPER)) - 1


def test_captions_name_the_dashed_line_where_there_is_one(runs):
    panels = get_study("planted-layers").report(PAPER, Results(runs, [])).panels
    dots = {panel.name: panel for panel in panels if "95% interval over seeds" in panel.caption}
    assert set(dots) == {"auc", "errors", "calls", "unplanted"}
    for panel in dots.values():
        dashed = [line for axis in panel.figure.axes for line in axis.lines if line.get_linestyle() == "--"]
        assert ("dashed: a random layer" in panel.caption) is bool(dashed)


def test_the_title_of_one_layer_names_one(runs):
    run = runs[0]
    pair = run.of(TRAINED)[0]
    one = replace(pair, truth=(2, 2))
    curves = {**run.curves, one.name: run.curves[pair.name]}
    restored = {**run.restored, one.name: run.restored[pair.name]}
    pairs = tuple(one if each is pair else each for each in run.pairs)
    figure = curves_figure(PAPER, [replace(run, pairs=pairs, curves=curves, restored=restored)])
    assert figure.axes[0].get_title() == "trained, layer 2"
