"""The figures of a run: which there are, what stands in them, and that no size or name breaks them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

from mechclust.commands.mossa.curve_figures import (
    boxes_figure,
    clusters_figure,
    correlations_figure,
    groups_figure,
)
from mechclust.commands.mossa.model_figures import answers_figure, dims_figure, picture_figure
from mechclust.report.pictures import png_bytes
from tests.faults.hostile import HOSTILE
from tests.mechclust.commands.mossa.made import ELEVEN, made_result

pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="module")
def result():
    return made_result(learnt=("aqua", "creak"))


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def line(axis, color, index=0):
    return [curve for curve in axis.lines if curve.get_color() == color][index]


def test_every_figure_of_the_paper_and_what_it_lacks(undrawn):
    panels = made_result(n_layers=4).panels()
    assert [panel.name for panel in panels] == [
        "cka_by_layer", "layer_groups", "clusters", "held_out", "answers", "hidden_states", "neighbours", "dimensions",
        "correlations", "second_opinions",
    ]  # fmt: skip
    captions = " ".join(panel.caption for panel in panels)
    assert all(f"The paper's figure {number}:" in captions for number in range(2, 8))


def test_what_was_not_measured_is_not_drawn(undrawn):
    result = made_result(n_answers=0, trained=False, held_out=(), ceilings=0, n_layers=4)
    result = replace(result, of_model={kind: {"dims": of["dims"]} for kind, of in result.of_model.items()})
    of_task = {
        task: {name: found for name, found in of.items() if not name.endswith((".rbf", ".without-top"))}
        for task, of in result.of_task.items()
    }
    assert [panel.name for panel in replace(result, of_task=of_task).panels()] == [
        "cka_by_layer", "layer_groups", "clusters", "dimensions", "correlations", "second_opinions",
    ]  # fmt: skip


def captions(result):
    return {panel.name: panel.caption for panel in result.panels()}


def test_captions_name_what_is_drawn(result, undrawn):
    shown = captions(result)
    for name in ("cka_by_layer", "layer_groups", "clusters", "second_opinions"):
        assert "Green, dotted: ceiling" in shown[name]
        assert "Hatched: null" in shown[name]
    assert "Hatched: null" in shown["held_out"]
    assert "ceiling" not in shown["held_out"]  # no held-out task's control is trained twice
    assert "Bars on top: 95% of where the shared layers (grey) and the transition (orange) end" in shown["layer_groups"]
    assert "bands: 95%" not in shown["clusters"]  # of clusters of few tasks
    assert "bands: 95% by bootstrap over tasks" in shown["second_opinions"]
    assert "bands: 95% over tasks, by Fisher's transformation" in shown["correlations"]
    assert "bootstrap" not in shown["correlations"]
    assert "Red, not learnt" in shown["answers"]
    assert "; the next figure counts neighbours" in shown["hidden_states"]


def test_captions_do_not_name_what_is_not_drawn(undrawn):
    result = made_result({"a": ["v", "w", "x", "y", "z"]}, held_out=(), ceilings=0, n_layers=4, learnt=tuple("vwxyz"))
    of_task = {
        task: {name: found for name, found in of.items() if not name.startswith("other")}
        for task, of in result.of_task.items()
    }
    of_model = {kind: {"projection": of["projection"]} for kind, of in result.of_model.items()}
    shown = captions(replace(result, of_task=of_task, of_model=of_model))
    assert not any(
        each in " ".join(shown.values())
        for each in (
            "ceiling", "ull", "controls of other tasks", "bootstrap", "Bars on top", "ands: ", "Fisher", "dimensions",
            "Red", "Form only", "held out", "next figure", "five layers",
        )
    )  # fmt: skip
    assert "hidden states at 4 layers" in shown["hidden_states"]
    three = captions(made_result({"a": ["x", "y", "z"]}, held_out=(), n_layers=4))["layer_groups"]
    assert three.startswith("What layer groups are read from, of the seen tasks. None are named. Above: ")


def test_the_most_dimensions_are_those_of_the_task_of_most_prompts(result):
    of_task = {}
    for place, (task, of) in enumerate(result.of_task.items()):
        base = of["base.cka"]
        n = base["n"] * 0 + (20 if place else 140)
        of_task[task] = {**of, "base.cka": replace(base, values={**base.values, "n": n})}
    by_task = dims_figure(replace(result, of_task=of_task)).axes[1]
    assert by_task.get_title() == "each seen task separately (median and quartiles, n ≥ 20)"
    assert "maximum possible (139)" in texts(by_task)


def test_boxes_show_medians_ceiling_and_null(result):
    figure = boxes_figure(result)
    assert {"pre", "tuned", "ceiling", "null", "layer"} <= set(texts(figure))
    drawn = [np.asarray(curve.get_ydata(), dtype=float) for curve in figure.axes[0].lines]
    for which in ("base", "tuned", "ceiling", "null"):
        median = result.curves().seen.median(which)
        assert any(len(y) == 18 and np.allclose(y, median) for y in drawn), which
    assert len(figure.axes[0].patches) == 2 * 18  # a box of each at every layer


def test_few_tasks_are_points_not_boxes(result):
    figure = boxes_figure(result, held_out=True)
    assert not figure.axes[0].patches
    assert {"tuned without it", "tuned on it too", "pre"} <= set(texts(figure))


def test_panels_of_clusters(result):
    titles = [axis.get_title() for axis in clusters_figure(result).axes]
    assert titles == ["arithmetic (2 tasks)", "explanation (3 tasks)", "multiple_choice (2 tasks)", "yes_no (2 tasks)"]


def test_groups_are_named_and_their_ends_have_intervals(result):
    figure = groups_figure(result)
    assert {"shared", "transition"} <= set(texts(figure))
    shared = result.groups.shared_end
    at = [tuple(curve.get_xdata()) for curve in figure.axes[0].lines]
    assert (shared[0] + 0.5, shared[1] + 0.5) in at


def test_many_layers_stay_readable():
    figure = boxes_figure(made_result(n_layers=80))
    wide = figure.get_size_inches()[0]
    assert wide <= 18
    assert len(figure.axes[0].patches) == 160


def test_a_correlation_that_is_undefined_is_said(result):
    figure = correlations_figure(replace(result, n_train=[100] * 11))
    assert "no correlation: it is the same for all tasks" in texts(figure)
    figure = correlations_figure(replace(result, readability={}))
    assert [axis.get_title() for axis in figure.axes] == ["number of training examples"]


def test_not_learnt_is_marked(result):
    figure = answers_figure(result)
    assert texts(figure).count("not learnt") == 1
    ticks = {tick.get_text(): tick.get_color() for tick in figure.axes[0].get_yticklabels()}
    assert [task for task, color in ticks.items() if color != "black"] == ["qasc *"]
    assert ticks["aqua"] == "black"


def test_pictures_have_five_layers_and_name_clusters(result):
    figure = picture_figure(result)
    assert [axis.get_title() for axis in figure.axes[:5]] == [f"layer {layer}" for layer in (4, 7, 11, 14, 18)]
    assert len(figure.axes) == 10
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*ELEVEN]
    alone = made_result({"a": ["x", "y"], None: ["odd", "z"]}, held_out=(), n_layers=5)
    assert [text.get_text() for text in picture_figure(alone).legends[0].get_texts()] == ["a", "no cluster"]


HARD = ["boxed formula", "bad formula", "29 Chinese characters", "long", "newline", "nul", "hidden", "empty"]


def test_hostile_names_are_drawn():
    names = [HOSTILE[name] for name in HARD]
    clusters = {name: [name] for name in names}
    clusters[names[0]].append("seen")
    result = made_result(clusters, held_out=(names[0],), n_layers=3)
    for figure in (clusters_figure, answers_figure, picture_figure):  # the others show no names
        assert png_bytes(figure(result)).startswith(b"\x89PNG")
