"""What the figures of all studies share."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from mechclust.report.axes import bare_axis, direct_labels, layer_axis, outer_labels, plain_ticks, step_axis
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import category_style, layer_shades, styled
from mechclust.report.subplots import subplot_rows, subplots


@pytest.mark.parametrize(
    ("n", "columns", "inches"), [(3, None, [6, 1]), (5, 3, [6, 2]), (2, 2, [4, 1]), (1, 1, [2, 1])]
)
def test_a_figure_has_the_panels_asked_for(n, columns, inches):
    figure, axes = subplots(n, columns, size=(2, 1))
    assert figure.axes == axes
    assert len(axes) == n
    assert figure.get_size_inches().tolist() == inches


@pytest.mark.parametrize(
    ("n_titles", "ylabels", "inches"), [(2, ["a"], [4, 1]), (7, ["a"], [10, 2]), (7, ["a", "b"], [14, 2])]
)
def test_a_single_row_of_panels_is_broken_up(n_titles, ylabels, inches):
    figure, axes = subplot_rows("ABCDEFG"[:n_titles], ylabels, size=(2, 1), x_axis=layer_axis)
    assert figure.get_size_inches().tolist() == inches
    assert len(axes) == n_titles * len(ylabels)
    columns = int(inches[0] / 2)
    lines = ["a"] * int(inches[1]) if len(ylabels) == 1 else ylabels
    assert [axis.get_ylabel() for axis in axes[::columns]] == lines


def test_the_lowest_panel_of_every_column_keeps_its_numbers():
    """Five panels in three columns: below the third there is none."""
    _, axes = subplots(5, 3, size=(2, 1), sharex=True, sharey=True)
    for axis in axes:
        axis.set(xlabel="layer", ylabel="index")
    outer_labels(axes, 3)
    assert [axis.get_xlabel() for axis in axes] == ["", "", "layer", "layer", "layer"]
    assert [axis.xaxis.get_tick_params()["labelbottom"] for axis in axes] == [False, False, True, True, True]
    assert [axis.get_ylabel() for axis in axes] == ["index", "", "", "index", ""]


@pytest.mark.parametrize(("grid", "lines"), [("both", (True, True)), ("x", (True, False)), (None, (False, False))])
def test_a_grid_is_along_the_axes_asked_for(grid, lines):
    _, (axis,) = subplots(1, size=(2, 1), grid=grid)
    shown = [any(line.get_visible() for line in found) for found in (axis.get_xgridlines(), axis.get_ygridlines())]
    assert tuple(shown) == lines


def test_options_reach_matplotlib():
    _, (left, right) = subplots(2, size=(2, 1), sharey=True)
    left.set_ylim(3, 4)
    assert right.get_ylim() == (3, 4)


def test_a_curve_is_the_mean_in_a_band_from_the_least_to_the_greatest_seed():
    _, (axis,) = subplots(1, size=(2, 1))
    plot_seeds(axis, [0, 1], np.array([[1.0, 2.0], [3.0, 8.0]]), color="red", label="here")
    (line,), (band,) = axis.lines, axis.collections
    assert line.get_ydata().tolist() == [2, 5]
    assert line.get_label() == "here"
    assert isinstance(band, PolyCollection)
    assert {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()} == {(0, 1), (0, 3), (1, 2), (1, 8)}
    assert tuple(band.get_facecolor()[0][:3]) == to_rgba("red")[:3]


def test_one_seed_has_no_band():
    _, (axis,) = subplots(1, size=(2, 1))
    plot_seeds(axis, [0, 1], np.array([[1.0, 2.0]]))
    assert not axis.collections


def test_steps_begin_at_0_in_logarithmic_distances():
    _, (axis,) = subplots(1, size=(2, 1))
    step_axis(axis)
    first, second, third = (axis.transData.transform((x, 0))[0] for x in (0, 10, 100))
    assert np.isfinite([first, second, third]).all()
    assert third - second == pytest.approx((axis.transData.transform((1000, 0))[0]) - third)


def test_shades_differ_and_do_not_reach_the_light_end():
    found = layer_shades(5)
    assert found.shape == (5, 4)
    assert len({tuple(color) for color in found.tolist()}) == 5
    assert found[-1, :3].sum() < 2.5


def test_the_style_is_the_same_whatever_the_users_settings_are():
    @styled()
    def draw():
        figure, (axis,) = subplots(1, size=(2, 1))
        return figure.get_facecolor(), axis.spines["top"].get_visible(), axis.xaxis.label.get_fontsize()

    before = draw()
    with matplotlib.rc_context({"figure.facecolor": "black", "axes.spines.top": True, "font.size": 30}):
        mine = dict(matplotlib.rcParams)
        assert draw() == before
        assert dict(matplotlib.rcParams) == mine


def test_letters_of_other_scripts_are_drawn_in_installed_fonts(monkeypatch):
    monkeypatch.setattr("mechclust.report.style.get_font_names", lambda: ["Malgun Gothic", "Papyrus", "Yu Gothic"])
    with styled():
        assert matplotlib.rcParams["font.family"] == ["DejaVu Sans", "Yu Gothic", "Malgun Gothic"]


def test_classes_differ_in_colour_and_marker():
    found = [category_style(code) for code in range(64)]
    assert len(set(found)) == 64
    assert len({color for color, _ in found[:8]}) == len({marker for _, marker in found[:8]}) == 8


def test_names_of_curves_that_end_together_are_moved_apart_and_led_to():
    figure, (axis,) = subplots(1, size=(4, 3))
    axis.set_ylim(0, 2)
    direct_labels(axis, [(1.8, "c", "red"), (1.0, "a", "red"), (np.nan, "lost", "red"), (1.0, "b", "red")])
    figure.draw_without_rendering()
    names = {text.get_text(): text for text in axis.texts if text.get_text()}
    leaders = [text for text in axis.texts if not text.get_text()]
    places = [float(names[name].get_position()[1]) for name in "abc"]
    assert names.keys() == set("abc")
    assert places == pytest.approx([0.5, 0.5, 0.9], abs=0.05)
    boxes = [names[name].get_window_extent() for name in "abc"]
    assert boxes[0].y1 <= boxes[1].y0
    assert [leader.xy[1] for leader in leaders] == pytest.approx([0.5, 0.5])
    assert [leader.get_position()[1] for leader in leaders] == places[:2]
    assert min(text.get_position()[0] for text in names.values()) > leaders[0].get_position()[0] > 1


@pytest.mark.parametrize(("limits", "expected"), [((0.7, 1.5), {"0.8", "1"}), ((0.03, 2), {"0.05", "0.5", "1"})])
def test_ticks_of_logarithmic_axes_are_plain_numbers(limits, expected):
    figure, (axis,) = subplots(1, size=(2, 2))
    axis.set(yscale="log", ylim=limits)
    plain_ticks(axis)
    figure.draw_without_rendering()
    assert expected <= {label.get_text() for label in axis.get_yticklabels(which="both")}


def test_a_picture_has_a_frame_and_no_numbers():
    _, (axis,) = subplots(1, size=(2, 1))
    bare_axis(axis)
    assert not axis.get_xticks().size
    assert all(spine.get_visible() for spine in axis.spines.values())
