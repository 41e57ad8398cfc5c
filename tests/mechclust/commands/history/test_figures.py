"""What the figures draw are the curve's numbers."""

from __future__ import annotations

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from mechclust.commands.history.figures import history_panels, map_figure, steps_figure
from mechclust.report.style import RED
from tests.mechclust.commands.history.made import made_curve, made_result

LAYERS = [0, 2, 5]
FLAGGED = (1, 3)


@pytest.fixture(scope="module")
def curve():
    """Five checkpoints and three layers; nothing is known of one layer at one checkpoint."""
    found = made_curve(np.full((5, 3), 0.5), layers=LAYERS)
    for values in (found.value, found.low, found.high):
        values[2, 1] = np.nan
    return found


@pytest.fixture(scope="module")
def result(curve):
    return made_result([curve], FLAGGED)


def points(line):
    return [(float(x), pytest.approx(float(y))) for x, y in zip(*line.get_data(), strict=True)]


def is_red(line):
    return to_hex(line.get_color()) == to_hex(RED)


def is_hollow(line):
    return to_hex(line.get_markerfacecolor()) == "#ffffff"


def band(axis):
    """Lower and upper end of the hatched area at each x."""
    (area,) = [found for found in axis.collections if found.get_hatch()]
    found = {}
    for path in area.get_paths():
        for x, y in path.vertices:
            found.setdefault(float(x), set()).add(float(y))
    return {x: (pytest.approx(min(ys)), pytest.approx(max(ys))) for x, ys in sorted(found.items())}


def test_the_heat_map_has_the_curves_values(result, curve):
    (axis, *_) = map_figure(result, curve).axes
    (image,) = axis.images
    shown = image.get_array()
    assert shown.mask.T.tolist() == np.isnan(curve.value).tolist()
    values = shown.filled(np.nan).T
    assert values == pytest.approx(curve.value, nan_ok=True)
    left, right, bottom, top = image.get_extent()
    assert (left, right, bottom, top) == (-0.5, 4.5, -0.5, 2.5)  # checkpoints to the right, layers upwards
    assert [text.get_text() for text in axis.get_yticklabels()] == ["0", "2", "5"]
    assert [text.get_text() for text in axis.get_xticklabels()] == result.names


def test_the_heat_map_crosses_flagged_checkpoints_out(result, curve):
    (axis, *_) = map_figure(result, curve).axes
    strokes = sorted(tuple(sorted(zip(*map(list, line.get_data()), strict=True))) for line in axis.lines)
    crosses = [((i - 0.5, y), (i + 0.5, 2 - y)) for i in FLAGGED for y in (-0.5, 2.5)]
    assert strokes == sorted(crosses)
    assert map_figure(made_result([curve]), curve).axes[0].lines[:] == []


def test_panels_by_checkpoint(result, curve):
    axes = steps_figure(result, curve).axes
    assert len(axes) == len(LAYERS)
    for column, axis in enumerate(axes):
        kept = [i for i in (0, 2, 4) if np.isfinite(curve.value[i, column])]
        line, hollow = axis.lines
        assert points(line) == [(i, curve.value[i, column]) for i in kept]
        assert points(hollow) == [(i, curve.value[i, column]) for i in FLAGGED]
        assert (is_red(line), is_red(hollow), is_hollow(hollow)) == (False, True, True)
        assert band(axis) == {i: (curve.low[i, column], curve.high[i, column]) for i in kept}
        assert axis.get_title() == f"layer {LAYERS[column]}"


def test_captions_name_the_bars_and_bands_that_are_there():
    p = np.full((3, 2), 0.5)
    none = np.full((3, 2), np.nan)
    ends = {"value_low": p, "value_high": p}
    curves = [
        made_curve(p, **ends),
        made_curve(p, "heads"),
        made_curve(none, "cka_last", low=none, high=none),
        made_curve(none, "LinearDecodability_accuracy", **ends),
        made_curve(p, "topics", **ends),
    ]
    result = made_result(curves)
    result = replace(result, config=replace(result.config, units="template"))
    hatched = " Hatched: central 95% of the chance distribution."
    endings = [panel.caption.split("One panel per layer.")[1] for panel in history_panels(result)[len(curves) :]]
    assert endings == [
        f" Bars: 95% intervals over units ('template').{hatched}",
        hatched,
        "",
        f" Bars: 95% intervals over prompts.{hatched}",
        f" Bars: 95% intervals over documents.{hatched}",
    ]


def test_what_was_not_measured_has_a_colour_of_its_own(result, curve):
    (image,) = map_figure(result, curve).axes[0].images
    drawn = image.cmap(image.norm(image.get_array()))
    assert to_hex(drawn[1, 2]) not in {to_hex(colour) for colour in matplotlib.colormaps["viridis"].colors}


def test_captions_say_how_many_layers_are_drawn_and_what_grey_is(result):
    heat_map, curves = history_panels(result)
    assert "Grey: undefined." in heat_map.caption
    assert "One panel per layer." in curves.caption
    deep = made_curve(np.full((3, 33), 0.5))
    heat_map, curves = history_panels(made_result([deep]))
    assert "Grey" not in heat_map.caption
    assert len(curves.figure.axes) == 12
    assert "One panel per layer (12 of 33)." in curves.caption
