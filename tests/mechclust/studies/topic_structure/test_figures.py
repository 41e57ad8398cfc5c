"""Figures of the topic-structure study: they draw the measurements of runs made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.studies.topic_structure.arms import DECAYED, Cell, released_arm, stage_cells
from mechclust.studies.topic_structure.attention_figures import attention_figure
from mechclust.studies.topic_structure.attention_table import TABLE, attention_means
from mechclust.studies.topic_structure.config import EVERYTHING_ROWS
from mechclust.studies.topic_structure.figures import everything_trained_figure, mixing_figure
from mechclust.studies.topic_structure.labelling import RIGHT, SHIFTED
from mechclust.studies.topic_structure.optimum_figures import optimum_figure
from mechclust.studies.topic_structure.results import THEORY_G, mixing_values, shares_of, ways_of
from mechclust.studies.topic_structure.stage_figures import norms_figure, stages_figure
from tests.mechclust.studies.topic_structure.made_runs import PAPER, constructed, effects, minimisers, noise_of

RUNS = constructed()


def points(axis, marker):
    """Return (x, y) of every point with a marker, in the order drawn."""
    lines = [line for line in axis.lines if line.get_marker() == marker]
    return np.array([xy for line in lines for xy in zip(*map(np.ravel, line.get_data()), strict=True)])


class TestStages:
    def test_draw_the_share_of_every_seed_by_start_and_rate(self):
        figure = stages_figure(PAPER, RUNS)
        factorial, shares = shares_of(PAPER, RUNS)
        by_title = {axis.get_title(): axis for axis in figure.axes}
        for optimiser in ("SGD", "Adam"):
            rates = sorted({cell.rate for cell in factorial if cell.optimiser == optimiser})
            axis = by_title[f"{optimiser}, cross-entropy"]
            assert [text.get_text() for text in axis.get_xticklabels()] == [f"{rate:g}" for rate in rates]
            for init, marker, side in (("near-zero", "o", -0.09), ("default", "s", 0.09)):
                drawn = points(axis, marker)
                places = [factorial.index(Cell(init, optimiser, "cross-entropy", rate)) for rate in rates]
                assert drawn[:, 1] == pytest.approx(shares[:, places].T.ravel())
                assert drawn[:, 0] == pytest.approx(np.repeat(np.arange(len(rates)) + side, len(shares)))

    def test_draw_the_mean_of_a_cell_as_a_line_around_its_points(self):
        (axis,) = [axis for axis in stages_figure(PAPER, RUNS).axes if axis.get_title() == "SGD, squared"]
        factorial, shares = shares_of(PAPER, RUNS)
        rates = sorted({cell.rate for cell in factorial if cell.optimiser == "SGD"})
        bars = [line for line in axis.lines if line.get_marker() == "None" and line.get_linestyle() == "-"]
        first = shares[:, factorial.index(Cell("near-zero", "SGD", "squared", rates[0]))].mean()
        assert bars[0].get_xdata() == pytest.approx([-0.16, -0.02])
        assert bars[0].get_ydata() == pytest.approx([first, first])
        assert len(bars) == 2 * len(rates)

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


def test_growth_is_drawn_by_step_loss_and_row():
    figure = everything_trained_figure(PAPER, RUNS)
    assert [axis.get_title() for axis in figure.axes] == ["cross-entropy", "squared"]
    for axis in figure.axes:
        arms = [f"E1b {axis.get_title()} {row}" for row in EVERYTHING_ROWS]
        ends = [1 + np.mean([noise_of(arm, seed) for seed in PAPER.everything_seeds]) for arm in arms]
        drawn = [line for line in axis.lines if len(line.get_xdata()) == 3]
        assert [line.get_ydata()[-1] for line in drawn] == pytest.approx(ends)
        assert list(drawn[0].get_xdata()) == [0, 500, 20_000]


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
    def test_draws_g_of_every_seed_with_the_bounds(self):
        (axis,) = mixing_figure(PAPER, RUNS).axes
        values = mixing_values(PAPER, RUNS)
        drawn = points(axis, "o")
        assert sorted(drawn[:, 1]) == pytest.approx(sorted(np.concatenate([g.ravel() for g in values.values()])))
        levels = {float(np.ravel(line.get_ydata())[0]) for line in axis.lines if len(set(line.get_ydata())) == 1}
        assert {1.0, *map(float, values)} <= levels
        (population,) = [line for line in axis.lines if line.get_linestyle() == "--" and len(line.get_xdata()) > 2]
        assert list(population.get_ydata()) == pytest.approx(list(THEORY_G.values()))

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


def test_the_published_table_is_drawn_beside_both_readings():
    means = attention_means(PAPER, RUNS)
    axes = attention_figure(means).axes
    assert [axis.get_title() for axis in axes] == ["same word", "same topic", "different topic"]
    for bucket, axis in enumerate(axes):
        assert points(axis, "|")[:, 0] == pytest.approx(TABLE[:, bucket])
        assert points(axis, "o")[:, 0] == pytest.approx(means[RIGHT][:, :, 0, bucket].T.ravel())
        assert points(axis, "s")[:, 0] == pytest.approx(means[SHIFTED][:, :, 1, bucket].T.ravel())
        assert axis.get_xlim()[1] >= points(axis, "s")[:, 0].max()


def test_the_optimum_is_drawn_by_documents_and_by_step():
    found = minimisers(PAPER)
    left, right = optimum_figure(PAPER, RUNS, found).axes
    distances = np.mean([result["distance"].numpy() for result in found], axis=0)
    curves = [line for line in left.lines if line.get_marker() == "."]
    assert np.array([line.get_ydata() for line in curves]) == pytest.approx(distances)
    assert curves[0].get_xdata() == pytest.approx(PAPER.optimum_documents)
    (slope,) = [line for line in left.lines if line.get_linestyle() == "--"]
    documents = np.array(PAPER.optimum_documents)
    assert slope.get_ydata() == pytest.approx(distances[0, 0] * (documents / documents[0]) ** -0.5)
    ways = {name: values.mean(axis=0) for name, values in ways_of(RUNS[DECAYED]).items()}
    drawn = {line.get_label(): line.get_ydata() for line in right.lines if line.get_marker() == "."}
    assert drawn["its own minimiser"] == pytest.approx(ways["own"])
    assert drawn["the closed form"] == pytest.approx(ways["closed"])
