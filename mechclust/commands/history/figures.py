"""The figures of ``mechclust history``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.commands.history.curves import TITLES, Curve
from mechclust.commands.history.measurements import Measurements
from mechclust.commands.history.planes import evenly_spaced
from mechclust.commands.history.readings import capitalised
from mechclust.report.axes import direct_labels, plot_chance_band
from mechclust.report.figure_text import figure_text
from mechclust.report.panel import Panel
from mechclust.report.style import BLUE, CHANCE, RED, SOFT, TEXT, styled
from mechclust.report.subplots import subplots

MAX_NAMES = 12  # names along an axis
MAX_LEVEL_NAMES = 8  # names along an axis that fit beside each other
MAX_PANELS = 12  # layers in a figure of curves by checkpoint
_MISSING = "#e5e5e5"
_BAR: dict[str, Any] = {"lw": 1.2, "alpha": 0.7}
_DOT: dict[str, Any] = {"s": 32, "color": "white", "edgecolors": TEXT, "linewidths": 1.0, "zorder": 3}


@styled()
def history_panels(result: Measurements) -> list[Panel]:
    """Draw a heat map of each measure, and then its curves by checkpoint."""
    crossed = " Checkpoints with findings are crossed out." if result.flagged else ""
    hollow = " Checkpoints with findings are red and hollow." if result.flagged else ""
    heat_maps = []
    curves = []
    for name, curve in result.curves.items():
        if not curve.measured:
            continue
        title = capitalised(curve.title)
        place = curve.place
        dots = f" Dot: the {place} crosses chance." if name in result.tested else ""
        n = len(curve.layers)
        some = f" ({MAX_PANELS} of {n})" if n > MAX_PANELS else ""
        grey = "" if np.isfinite(curve.value).all() else " Grey: undefined."
        by_checkpoint = f"{title}, by checkpoint. One panel per {place}{some}.{_marks(result, curve)}{hollow}"
        heat_map = f"{title}, {place} by checkpoint.{dots}{grey}{crossed}"
        heat_maps.append(Panel(f"{name}_map", map_figure(result, curve), heat_map))
        curves.append(Panel(f"{name}_by_checkpoint", steps_figure(result, curve), by_checkpoint))
    return [*heat_maps, *curves]


def _marks(result: Measurements, curve: Curve) -> str:
    """Return what bars and hatching are, if there are any."""
    marks = ""
    if np.isfinite(curve.value_low).any():
        of_prompts = result.config.sampled if curve.name in TITLES else "prompts"
        marks += f" Bars: 95% intervals over {'documents' if curve.name == 'topics' else of_prompts}."
    if np.isfinite(curve.high).any():
        marks += " Hatched: central 95% of the chance distribution."
    return marks


def map_figure(result: Measurements, curve: Curve) -> Figure:
    """Draw a heat map of layers by checkpoints, with a dot at crossings of chance.

    Flagged checkpoints are crossed out.
    """
    n = len(curve.layers)
    figure, (axis,) = subplots(1, size=(10.5, min(3.4, 1.2 + 0.22 * max(6, n))), grid=None)
    values = np.ma.masked_invalid(curve.value.T)
    low = min(0.0, float(values.min())) if values.count() else 0.0
    colours = matplotlib.colormaps["viridis"].with_extremes(bad=_MISSING)
    image = axis.imshow(values, aspect="auto", origin="lower", cmap=colours, vmin=low, interpolation="nearest")
    for i in result.flagged:
        axis.plot([i - 0.5, i + 0.5], [-0.5, n - 0.5], color="white", lw=1)
        axis.plot([i - 0.5, i + 0.5], [n - 0.5, -0.5], color="white", lw=1)
    if curve.name in result.tested:
        table = result.crossings_of(curve).dropna(subset="crosses_at")
        checkpoints = [result.names.index(name) for name in table["crosses_at"]]
        axis.scatter(checkpoints, table.index, **_DOT)
    _name_ticks(axis, result.names, MAX_NAMES, rotation=0 if len(result.names) <= MAX_LEVEL_NAMES else 45)
    places = evenly_spaced(n, MAX_NAMES)
    axis.set_yticks(places, [str(curve.layers[i]) for i in places], fontsize=8)
    axis.set_ylabel(curve.place)
    axis.set_title(curve.title, fontsize=10.5)
    figure.colorbar(image, ax=axis)
    return figure


def steps_figure(result: Measurements, curve: Curve) -> Figure:
    """Draw curves by checkpoint, one panel per layer, with chance bands. Flagged checkpoints are hollow."""
    columns = evenly_spaced(len(curve.layers), MAX_PANELS)
    figure, axes = subplots(len(columns), min(4, len(columns)), size=(3.3, 2.4), sharey=True, sharex=True)
    x = np.arange(len(result.series))
    wrong = sorted(result.flagged)
    for axis, column in zip(axes, columns, strict=True):
        kept = [i for i in result.right if np.isfinite(curve.value[i, column])]
        _draw_band(axis, x[kept], curve.low[kept, column], curve.high[kept, column])
        axis.vlines(x[kept], curve.value_low[kept, column], curve.value_high[kept, column], color=BLUE, **_BAR)
        axis.plot(x[kept], curve.value[kept, column], color=BLUE, marker="o", ms=3)
        axis.plot(x[wrong], curve.value[wrong, column], "o", color=RED, mfc="white", ms=5)
        axis.set_title(f"{curve.place} {curve.layers[column]}", fontsize=9)
        _name_ticks(axis, result.names, 6)
    _label_chance(axes[-1], curve, columns[-1])
    figure.suptitle(curve.title, fontsize=10.5)
    return figure


def _label_chance(axis: Axes, curve: Curve, column: int) -> None:
    """Name the band of chance at its last checkpoint."""
    known = np.flatnonzero(np.isfinite(curve.high[:, column]))
    if len(known):
        ends = [np.nan_to_num(ends[known[-1], column]) for ends in (curve.low, curve.high)]
        direct_labels(axis, [(float(np.mean(ends)), CHANCE, SOFT)], size=8)


def _name_ticks(axis: Axes, names: Sequence[str], most: int, rotation: int = 45) -> None:
    places = evenly_spaced(len(names), most)
    side = "right" if rotation else "center"
    axis.set_xticks(places, [figure_text(names[i], 16) for i in places], rotation=rotation, ha=side, fontsize=8)


def _draw_band(
    axis: Axes, x: Shaped[np.ndarray, "n"], low: Float[np.ndarray, "n"], high: Float[np.ndarray, "n"]
) -> None:
    if np.isfinite(high).any():
        plot_chance_band(axis, x, np.where(np.isnan(low), np.minimum(high, 0), low), high, label=None)
