"""Figures of ``mechclust compare`` by groups: of layers, and of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.commands.compare.control_groups import REST, ControlGroups
from mechclust.report.style import BLUE, GREY, ORANGE, RED, layer_axis, outer_labels, subplots
from mechclust.report.text import figure_text

if TYPE_CHECKING:
    import pandas as pd

_SHADES = {"shared": "#eef1f4", "transition": "#fdf0dc", "refinement": "#e3eef6"}
_NAMES = {"refinement": REST}
_TOP = 1.03  # of the axis that similarities are drawn on, and of the strip above it for the groups
_STRIP = 0.16


def layer_groups_figure(groups: ControlGroups) -> Figure:
    """Medians and quartiles over tasks by layer, with the groups and the intervals of their ends."""
    curves, found = groups.curves.seen, groups.found
    assert found is not None
    figure, (axis,) = subplots(1, size=(9, 4.2), grid="y")
    layers = np.arange(1, curves.n_layers + 1)
    for which, color in (("base", RED), ("tuned", BLUE)):
        low, high = curves.quartiles(which)  # type: ignore[arg-type]
        axis.fill_between(layers, low, high, color=color, alpha=0.16, lw=0)
        axis.plot(layers, curves.median(which), color=color, marker="o", ms=4, label=which)  # type: ignore[arg-type]
    for name, color in _SHADES.items():
        group = getattr(found.groups, name)
        if group:
            axis.axvspan(group[0] - 0.5, group[-1] + 0.5, color=color, zorder=0, lw=0)
            axis.text(
                (group[0] + group[-1]) / 2,
                _TOP + 0.6 * _STRIP,
                _NAMES.get(name, name),
                ha="center",
                va="center",
                fontsize=9,
            )
    for ends, color in ((found.shared_end, GREY), (found.transition_end, ORANGE)):
        if ends is not None:
            places, heights = [end + 0.5 for end in ends], 2 * [_TOP + 0.15 * _STRIP]
            axis.plot(places, heights, color=color, lw=5, solid_capstyle="butt")
            axis.plot(places, heights, "|", color=color, ms=9, mew=1.6)
    least = np.nanmin([curves.quartiles("base")[0], curves.quartiles("tuned")[0]])
    axis.set(ylabel="debiased CKA with the controls", xlim=(0.4, curves.n_layers + 0.6))
    axis.set_ylim(min(0.0, float(least)) - 0.02, _TOP + _STRIP)
    axis.set_yticks(np.arange(0, 1.01, 0.2))
    if tuple(curves.layers) != tuple(str(layer) for layer in layers):
        axis.set_xticks(layers, list(curves.layers))
    layer_axis(axis)
    axis.legend(frameon=False, loc="lower left")
    return figure


def clusters_figure(table: pd.DataFrame, clusters: Sequence[str]) -> Figure:
    """One panel per cluster: medians and ranges over its tasks by layer."""
    columns = {"control_base": (RED, "base"), "control_tuned": (BLUE, "tuned")}
    controlled = "control_base" in table
    n = len(clusters)
    figure, axes = subplots(n, min(4, n), size=(3.4 if n > 1 else 6.0, 2.8), sharex=True, sharey=True)
    for axis, cluster in zip(axes, clusters, strict=True):
        part = table[table["cluster"] == cluster]
        if controlled:
            for column, (color, label) in columns.items():
                _band(axis, part, [part[f"{column}{end}"] for end in ("", "_least", "_most")], color, label)
            many = int(part["control_tuned_tasks"].max())
        else:
            _band(axis, part, [1 - part[f"change{end}"] for end in ("", "_most", "_least")], BLUE, "tuned with base")
            many = int(part["change_tasks"].max())
        axis.set_title(f"{figure_text(cluster, 28)} ({many} task{'s' * (many != 1)})", fontsize=10)
        axis.set_ylim(top=1.03)
        layer_axis(axis)
    outer_labels(axes, min(4, n))
    for axis in axes[:: min(4, n)]:
        axis.set_ylabel("debiased CKA with the controls" if controlled else "debiased CKA, tuned with base", fontsize=9)
    if controlled:
        axes[0].legend(frameon=False, fontsize=8)
    return figure


def _band(axis: Axes, part: pd.DataFrame, curves: Sequence[pd.Series], color: str, label: str) -> None:
    """A median with the band from minimum to maximum."""
    median, least, most = curves
    axis.fill_between(part["layer"], least, most, color=color, alpha=0.16, lw=0)
    axis.plot(part["layer"], median, color=color, marker="o", ms=3.5, lw=1.4, label=label)
