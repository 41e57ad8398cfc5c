"""Figures of groups of layers and of clusters of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.commands.compare.layer_groups import REST, ControlGroups
from mechclust.mossa.layer_groups import LayerGroupsInterval
from mechclust.report.style import BLUE, GREY, ORANGE, RED, layer_axis, outer_labels, subplots
from mechclust.report.text import figure_text

if TYPE_CHECKING:
    import pandas as pd

_SHADES = {"shared": "#eef1f4", "transition": "#fdf0dc", "refinement": "#e3eef6"}
_TOP = 1.03  # of the axis that similarities are drawn on
_STRIP = 0.16  # height of the strip above it for the groups


def layer_groups_figure(groups: ControlGroups, interval: LayerGroupsInterval) -> Figure:
    """Draw medians and quartiles over tasks by layer, with the groups and the intervals of their ends."""
    curves = groups.curves.seen
    figure, (axis,) = subplots(1, size=(9, 4.2), grid="y")
    layers = np.arange(1, curves.n_layers + 1)
    bottom = 0.0
    for model, color in (("base", RED), ("tuned", BLUE)):
        low, high = curves.quartiles(model)  # type: ignore[arg-type]
        bottom = min(bottom, float(np.nanmin(low)))
        axis.fill_between(layers, low, high, color=color, alpha=0.16, lw=0)
        axis.plot(layers, curves.median(model), color=color, marker="o", ms=4, label=model)  # type: ignore[arg-type]
    _shade_groups(axis, interval)
    axis.set(ylabel="debiased CKA with the controls", xlim=(0.4, curves.n_layers + 0.6))
    axis.set_ylim(bottom - 0.02, _TOP + _STRIP)
    axis.set_yticks(np.arange(0, 1.01, 0.2))
    axis.set_xticks(layers, list(curves.layers))
    axis.set_xlabel("layer")
    axis.legend(frameon=False, loc="lower left")
    return figure


def _shade_groups(axis: Axes, interval: LayerGroupsInterval) -> None:
    """Shade the layers of each group, and draw where the groups end."""
    for name, color in _SHADES.items():
        group = getattr(interval.groups, name)
        if group:
            axis.axvspan(group[0] - 0.5, group[-1] + 0.5, color=color, zorder=0, lw=0)
            middle = ((group[0] + group[-1]) / 2, _TOP + 0.6 * _STRIP)
            axis.text(*middle, REST if name == "refinement" else name, ha="center", va="center", fontsize=9)
    for ends, color in ((interval.shared_end, GREY), (interval.transition_end, ORANGE)):
        if ends is not None:
            places = [end + 0.5 for end in ends]
            heights = [_TOP + 0.15 * _STRIP] * 2
            axis.plot(places, heights, color=color, lw=5, solid_capstyle="butt")
            axis.plot(places, heights, "|", color=color, ms=9, mew=1.6)


def clusters_figure(table: pd.DataFrame, clusters: Sequence[str]) -> Figure:
    """Draw one panel per cluster: medians and ranges over its tasks by layer."""
    controlled = "control_base" in table
    columns = min(4, len(clusters))
    size = (3.4 if len(clusters) > 1 else 6.0, 2.8)
    figure, axes = subplots(len(clusters), columns, size=size, sharex=True, sharey=True)
    for axis, cluster in zip(axes, clusters, strict=True):
        part = table[table["cluster"] == cluster]
        if controlled:
            for name, color in (("base", RED), ("tuned", BLUE)):
                _draw_band(axis, part["layer"], _spread(part, f"control_{name}"), color, name)
        else:
            _draw_band(axis, part["layer"], [1 - x for x in _spread(part, "change")], BLUE, "tuned with base")
        n = int(part["control_tuned_tasks" if controlled else "change_tasks"].max())
        axis.set_title(f"{figure_text(cluster, 28)} (n = {n})", fontsize=10)
        axis.set_ylim(top=1.03)
        layer_axis(axis)
    outer_labels(axes, columns)
    for axis in axes[::columns]:
        axis.set_ylabel("debiased CKA with the controls" if controlled else "debiased CKA, tuned with base", fontsize=9)
    if controlled:
        axes[0].legend(frameon=False, fontsize=8)
    return figure


def _spread(part: pd.DataFrame, column: str) -> list[pd.Series]:
    """Return median, minimum and maximum of a column."""
    return [part[f"{column}{end}"] for end in ("", "_least", "_most")]


def _draw_band(axis: Axes, layers: pd.Series, spread: Sequence[pd.Series], color: str, label: str) -> None:
    """Draw a median with the band from minimum to maximum."""
    median, least, most = spread
    axis.fill_between(layers, least, most, color=color, alpha=0.16, lw=0)
    axis.plot(layers, median, color=color, marker="o", ms=3.5, lw=1.4, label=label)
