"""Figures of groups of layers and of clusters of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.commands.compare.control_curves import REST
from mechclust.mossa.layer_groups import LayerGroupsInterval
from mechclust.report.axes import layer_axis, outer_labels
from mechclust.report.figure_text import figure_text
from mechclust.report.style import BLUE, GREY, ORANGE, RED
from mechclust.report.subplots import subplots

if TYPE_CHECKING:
    import pandas as pd

MODEL_COLORS = {"base": RED, "tuned": BLUE}
_SHADES = {"shared": "#eef1f4", "transition": "#fdf0dc", "refinement": "#e3eef6"}
_TOP = 1.03  # of the axis that similarities are drawn on
_STRIP = 0.16  # height of the strip above it for the groups


def controls_figure(controls: pd.DataFrame) -> Figure:
    """Draw CKA with each control by layer, with its median and quartiles.

    Args:
        controls: by task and layer, see ``CompareResult.control_table``.
    """
    figure, (axis,) = subplots(1, size=(9, 4.2), grid="y")
    by_layer = controls.groupby("layer")
    for (model, color), shift in zip(MODEL_COLORS.items(), (-0.05, 0.05), strict=True):
        column = f"control_{model}"
        axis.plot(controls["layer"] + shift, controls[column], "o", color=color, ms=3, mec="white", mew=0.4)
        low, median, high = (by_layer[column].quantile(share) for share in (0.25, 0.5, 0.75))
        draw_band(axis, median, low, high, color, model)
    axis.set(ylabel="debiased CKA with the controls")
    layer_axis(axis)
    axis.legend(frameon=False, loc="lower left")
    return figure


def layer_groups_figure(controls: pd.DataFrame, interval: LayerGroupsInterval) -> Figure:
    """Draw ``controls_figure`` with the groups and the intervals of their ends. Layers are counted from 1."""
    figure = controls_figure(controls)
    figure.axes[0].set_ylim(top=_TOP + _STRIP)
    _shade_groups(figure.axes[0], interval)
    return figure


def _shade_groups(axis: Axes, interval: LayerGroupsInterval) -> None:
    """Shade the layers of each group, and draw the ends of the groups."""
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
    curves = {"change": ("tuned with base", BLUE)}
    if "control_base" in table:
        curves = {"control_base": ("base", RED), "control_tuned": ("tuned", BLUE)}
    columns = min(4, len(clusters))
    size = (3.4 if len(clusters) > 1 else 6.0, 2.8)
    figure, axes = subplots(len(clusters), columns, size=size, sharex=True, sharey=True)
    for axis, cluster in zip(axes, clusters, strict=True):
        part = table[table["cluster"] == cluster].set_index("layer")
        for column, (label, color) in curves.items():
            spread = [part[f"{column}{end}"] for end in ("", "_least", "_most")]
            median, least, most = [1 - values for values in spread] if column == "change" else spread
            draw_band(axis, median, least, most, color, label, lw=1.4)
            n = int(part[f"{column}_tasks"].max())
        axis.set_title(f"{figure_text(cluster, 28)} (n = {n})", fontsize=10)
        axis.set_ylim(top=1.03)
        layer_axis(axis)
    outer_labels(axes, columns)
    for axis in axes[::columns]:
        axis.set_ylabel("debiased CKA with the controls" if len(curves) > 1 else "debiased CKA, tuned with base")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def draw_band(
    axis: Axes, median: pd.Series, low: pd.Series, high: pd.Series, color: str, label: str | None, **style: Any
) -> None:
    """Draw a median by layer in a band, such as from the least to the most or of quartiles."""
    axis.fill_between(median.index, low, high, color=color, alpha=0.16, lw=0)
    axis.plot(median.index, median, color=color, label=label, **{"marker": "o", "ms": 3.5, **style})
