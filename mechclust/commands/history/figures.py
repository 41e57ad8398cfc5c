"""The figures of ``mechclust history``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.commands.history.curves import Curve
from mechclust.commands.history.planes import spread
from mechclust.commands.history.result import HistoryResult
from mechclust.report.style import BLUE, CHANCE, RED, SOFT, chance_band, direct_labels, layer_axis, shades, subplots
from mechclust.report.text import figure_text

_CURVES = 8  # checkpoints in a figure of curves by layer
_TICKS = 12  # names along an axis of checkpoints
_MISSING = "#e5e5e5"
_LINES = 12  # layers in a figure of curves by checkpoint


def layers_figure(result: HistoryResult, curve: Curve) -> Figure:
    """Curves by layer, one per checkpoint, with the widest chance band of all checkpoints."""
    figure, (axis,) = subplots(1, size=(8.5, 4.2))
    measured = [i for i in range(len(result.series)) if not np.isnan(curve.value[i]).all()]
    chosen = [measured[k] for k in spread(len(measured), _CURVES)]
    wrong = sorted(result.flagged & {*measured})
    _band(axis, curve.layers, _over(np.nanmin, curve.low[measured]), _over(np.nanmax, curve.high[measured]), CHANCE)
    for i, colour in zip(chosen, shades(len(chosen)), strict=True):
        if i not in wrong:
            axis.plot(curve.layers, curve.value[i], color=colour, marker="o", ms=3, label=figure_text(result.names[i]))
    for i in wrong[:_CURVES]:
        style: dict[str, Any] = {"color": RED, "marker": "o", "mfc": "white", "ls": ":", "lw": 1.0}
        axis.plot(curve.layers, curve.value[i], label=f"{figure_text(result.names[i])} (flagged)", **style)
    layer_axis(axis)
    axis.set_xlabel(curve.place)
    axis.set_ylabel("debiased CKA" if curve.name.startswith("cka") else curve.title.split(" (")[-1].rstrip(")"))
    axis.set_title(curve.title, fontsize=10.5)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def steps_figure(result: HistoryResult, curve: Curve) -> Figure:
    """Curves by checkpoint, one panel per layer, with chance bands; flagged checkpoints are hollow."""
    columns = spread(len(curve.layers), _LINES)
    figure, axes = subplots(len(columns), min(4, len(columns)), size=(3.3, 2.4), sharey=True, sharex=True)
    x = np.arange(len(result.series))
    right, wrong = result.right, sorted(result.flagged)
    for axis, column in zip(axes, columns, strict=True):
        kept = [i for i in right if np.isfinite(curve.value[i, column])]
        _band(axis, x[kept], curve.low[kept, column], curve.high[kept, column])
        axis.plot(x[kept], curve.value[kept, column], color=BLUE, marker="o", ms=3)
        axis.plot(x[wrong], curve.value[wrong, column], "o", color=RED, mfc="white", ms=5)
        axis.set_title(f"{curve.place} {curve.layers[column]}", fontsize=9)
        _named_ticks(axis, result.names, few=6)
    if (known := np.isfinite(curve.high[:, columns[-1]])).any():
        last = int(np.flatnonzero(known)[-1])
        low, high = (np.nan_to_num(of[last, columns[-1]]) for of in (curve.low, curve.high))
        direct_labels(axes[-1], [((low + high) / 2, CHANCE, SOFT)], size=8)
    figure.suptitle(curve.title, fontsize=10.5)
    return figure


def map_figure(result: HistoryResult, curve: Curve) -> Figure:
    """A heat map of layers by checkpoints; flagged checkpoints are crossed out."""
    figure, (axis,) = subplots(1, size=(8.5, 0.9 + 0.28 * max(6, len(curve.layers))), grid=None)
    values = np.ma.masked_invalid(curve.value.T)
    low = min(0.0, float(values.min())) if values.count() else 0.0
    colours = matplotlib.colormaps["viridis"].with_extremes(bad=_MISSING)
    image = axis.imshow(values, aspect="auto", origin="lower", cmap=colours, vmin=low, interpolation="nearest")
    for i in result.flagged:
        axis.plot([i - 0.5, i + 0.5], [-0.5, len(curve.layers) - 0.5], color="white", lw=1)
        axis.plot([i - 0.5, i + 0.5], [len(curve.layers) - 0.5, -0.5], color="white", lw=1)
    _named_ticks(axis, result.names, few=_TICKS)
    axis.set_yticks(range(len(curve.layers)), [str(layer) for layer in curve.layers], fontsize=8)
    axis.set_ylabel(curve.place)
    axis.set_title(curve.title, fontsize=10.5)
    figure.colorbar(image, ax=axis)
    return figure


def _named_ticks(axis: Axes, names: Sequence[str], few: int) -> None:
    places = spread(len(names), few)
    axis.set_xticks(places, [figure_text(names[i], 16) for i in places], rotation=45, ha="right", fontsize=8)


def _over(widest: Callable[..., np.ndarray], ends: np.ndarray) -> np.ndarray:
    """``[layer]`` over checkpoints; NaN where none has a chance level."""
    known = np.isfinite(ends).any(axis=0)
    return np.where(known, widest(np.where(known, ends, 0.0), axis=0), np.nan)


def _band(
    axis: Axes, x: Sequence[int] | np.ndarray, low: np.ndarray, high: np.ndarray, label: str | None = None
) -> None:
    if np.isfinite(high).any():
        chance_band(axis, np.asarray(x), np.where(np.isnan(low), np.minimum(high, 0), low), high, label=label)
