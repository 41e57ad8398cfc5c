"""Figures of the topic-structure study of unusual runs and settings. Those of usual ones are frozen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.studies.topic_structure.arms import released_arm, stage_cells
from mechclust.studies.topic_structure.config import EVERYTHING_ROWS
from mechclust.studies.topic_structure.figures import everything_trained_figure, mixing_figure
from mechclust.studies.topic_structure.stage_figures import norms_figure, stages_figure
from tests.mechclust.studies.topic_structure.made_runs import PAPER, constructed, effects

RUNS = constructed()


def points(axis, marker):
    """Return (x, y) of every point with a marker, in the order drawn."""
    lines = [line for line in axis.lines if line.get_marker() == marker]
    return np.array([xy for line in lines for xy in zip(*map(np.ravel, line.get_data()), strict=True)])


class TestStages:
    @pytest.mark.parametrize(
        ("change", "marker", "words"),
        [(0.01, "x", "attention hardly moved"), (np.nan, "+", "training diverged")],
        ids=["unmoved", "diverged"],
    )
    def test_mark_a_cell_without_a_share_below_the_others(self, change, marker, words):
        cell = stage_cells(PAPER)[0]
        (first, *others) = RUNS[cell.arm]
        spoilt = {weight: values * change if weight != "W_V" else values for weight, values in first.changes.items()}
        figure = stages_figure(PAPER, RUNS | {cell.arm: [replace(first, changes=spoilt), *others]})
        (axis,) = [axis for axis in figure.axes if len(points(axis, marker))]
        assert axis.get_title() == f"{cell.optimiser}, {cell.objective}"
        assert points(axis, marker)[:, 1] == pytest.approx(-0.08)
        assert axis.get_ylim()[0] < -0.08
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()][-1] == f"{words} in some seed"


def test_the_norms_of_the_released_network_are_drawn_for_each_seed():
    lost = RUNS[released_arm(2.0)][0]
    nothing = {weight: np.full(101, np.nan) for weight in ("W_V", "W_K", "W_Q")}
    arm = [replace(lost, changes=nothing, norms=nothing), *RUNS[released_arm(2.0)][1:]]
    figure = norms_figure(PAPER, RUNS | {released_arm(2.0): arm})
    assert [axis.get_title() for axis in figure.axes] == ["rate 0.5", "rate 1", "rate 2, 1 of 8 diverged"]
    for axis, rate in zip(figure.axes[:2], PAPER.released_rates, strict=False):
        arm = RUNS[released_arm(rate)]
        drawn = [line.get_ydata() for line in axis.lines if len(line.get_ydata()) == 101]
        for place, weight in enumerate(("W_V", "W_K", "W_Q")):
            expected = [run.norms[weight] for run in arm]
            assert np.array(drawn[place * len(arm) :][: len(arm)]) == pytest.approx(np.array(expected))
        ends = [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == ":"]
        assert ends == [run.stages.boundary for run in arm]


def test_growth_is_labelled_where_curves_of_both_losses_end():
    """Panels share their heights, and the second one has the larger values."""
    higher = {
        f"E1b squared {row}": [replace(run, effects=effects(30)) for run in RUNS["E1"]] for row in EVERYTHING_ROWS
    }
    left, _ = everything_trained_figure(PAPER, RUNS | higher).axes
    low, high = left.get_ylim()
    heights = [low + text.get_position()[1] * (high - low) for text in left.texts if text.get_text()]
    assert np.mean(heights) == pytest.approx(1, abs=0.05)  # they are moved apart


class TestMixing:
    def test_draws_the_populations_optimum_between_measured_numbers_only(self):
        (axis,) = mixing_figure(replace(PAPER, topics_per_document=(2, 3, 5)), RUNS).axes
        (population,) = [line for line in axis.lines if line.get_linestyle() == "--" and len(line.get_xdata()) > 2]
        assert list(population.get_xdata()) == [2, 3, 4, 5]

    def test_draws_the_populations_optimum_with_ten_topics_only(self):
        (axis,) = mixing_figure(replace(PAPER, topics=PAPER.topics[1:]), RUNS).axes
        assert 10 not in PAPER.topics[1:]
        assert [line for line in axis.lines if line.get_linestyle() == "--" and len(line.get_xdata()) > 2] == []

    @pytest.mark.parametrize("other", [{"words_per_topic": 5}, {"selected_share": 0.3}, {"random_share": 0.02}])
    def test_draws_no_optimum_of_other_documents(self, other):
        config = replace(PAPER, documents=replace(PAPER.documents, **other))
        (axis,) = mixing_figure(config, RUNS).axes
        assert [line for line in axis.lines if line.get_linestyle() == "--" and len(line.get_xdata()) > 2] == []
