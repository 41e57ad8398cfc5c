"""Figures of ``mechclust clusters``: curves over layers, and what the clusters follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mechclust.commands.clusters.result import ClustersResult
from mechclust.report.text import figure_text
from probes.engine.plots import COLORS, MARKERS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _ORANGE, _GREEN = COLORS[:3]  # each curve also has a marker of its own
_MOST = len(COLORS)  # candidates shown
_THIN = 0.005  # width below which a chance band is drawn as a line


def curves_figure(result: ClustersResult) -> Figure:
    """Per label: above, the index of the clusters, also given another label; below, the linear accuracy."""
    from mechclust.report.style import layer_axis, subplots

    labels, both = result.trained.raw.coords["label"], result.trained.linear is not None
    size = (7.0 if len(labels) == 1 else 5.0, 2.7)
    figure, axes = subplots((1 + both) * len(labels), len(labels), size=size, sharex="col", sharey="row")
    everything = result.to_dataframe()
    for k, label in enumerate(labels):
        table = everything[everything["label"] == label]
        table = table[table["n_clusters"] == table["n_clusters"].iloc[0]]
        upper, lower = axes[k], axes[len(labels) + k] if both else axes[k]
        _curve(upper, table, "ari", ("null_low", "null_high"), "untrained", _BLUE, "o", "clusters")
        if "given_ari" in table:
            band = ("given_null_low", "given_null_high")
            name = f"clusters given {figure_text(result.followed.called(str(result.given)))}"
            _curve(upper, table, "given_ari", band, "untrained_given", _ORANGE, "s", name)
        if "accuracy" in table:
            band = ("linear_null_low", "linear_null_high")
            low, high = table["accuracy_low"], table["accuracy_high"]
            lower.fill_between(table["layer"], low, high, color=_GREEN, alpha=0.18, lw=0)
            _curve(lower, table, "accuracy", band, "untrained_accuracy", _GREEN, "^", "linear classifier")
        verdicts = result.verdicts[label]
        name = "the task" if label == "task" else f"'{figure_text(label)}'"
        upper.set_title(f"{name}\nclusters: {verdicts['clusters']}", fontsize="medium")
        if "accuracy" in table and "linear" in verdicts:
            lower.set_title(f"linear classifier: {verdicts['linear']}", fontsize="medium")
        layer_axis(lower)
    bottom, top = axes[0].get_ylim()  # of all in the row: they share it
    axes[0].set_ylim(min(-0.05, bottom), min(1.03, max(0.2, top)))
    axes[0].set_ylabel("adjusted Rand index")
    if both:
        axes[len(labels)].set_ylim(0, 1.03)
        axes[len(labels)].set_ylabel("accuracy")
    shown = {
        name: handle for axis in axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    } | _keys(bool(result.untrained))
    figure.legend(list(shown.values()), list(shown), loc="outside right upper", frameon=False, fontsize="small")
    return figure


def _curve(
    axis: Axes,
    table: pd.DataFrame,
    value: str,
    band: tuple[str, str],
    untrained: str,
    color: str,
    marker: str,
    name: str,
) -> None:
    """Draw a curve with its chance band, and the mean of models with random weights, shaded up to the highest."""
    if table[value].isna().all():
        return
    low, high = (table[column].to_numpy(dtype=float) for column in band)
    line = 0.8 if (high - low < _THIN).any() else 0  # a band without width would be invisible
    axis.fill_between(table["layer"], low, high, alpha=0.35, lw=line, hatch="////", facecolor="none", edgecolor=color)
    axis.plot(table["layer"], table[value], color=color, marker=marker, ms=4, label=name)
    if untrained in table:
        axis.plot(table["layer"], table[untrained], color=color, ls="--", lw=1.2)
        axis.fill_between(table["layer"], table[untrained], table[f"{untrained}_high"], color=color, alpha=0.12, lw=0)


def _keys(untrained: bool) -> dict[str, Artist]:
    """The legend's text for all curves."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dashed: dict[str, Artist] = {"random weights, mean to highest": Line2D([], [], color="#555555", ls="--", lw=1.2)}
    band = Patch(facecolor="none", edgecolor="#555555", hatch="////", lw=0, alpha=0.6)
    return {**(dashed if untrained else {}), "chance (95%)": band}


def followed_figure(result: ClustersResult) -> Figure:
    """Agreement of the clusters with every label and surface feature, by layer."""
    from mechclust.report.style import layer_axis, subplots

    figure, (axis,) = subplots(1, size=(7.0, 3.4))
    followed = result.followed
    names = list(followed.means)[:_MOST]
    if "task" in followed.means and "task" not in names:
        names[-1] = "task"
    for k, name in enumerate(names):
        table = followed.table[followed.table["name"] == name]
        strong = name in (names[0], "task", result.given)
        axis.plot(
            table["layer"],
            table["ami"],
            color=COLORS[k],
            marker=MARKERS[k],
            ms=4 if strong else 3,
            lw=2.2 if strong else 1.1,
            label=f"{figure_text(name)} ({followed.means[name]:z.2f})",
        )
        if strong and result.untrained:
            axis.plot(table["layer"], table["untrained"], color=COLORS[k], ls="--", lw=1.1)
    axis.axhline(0, color="#999999", lw=0.8, zorder=0)
    low = float(np.nanmin(followed.table["ami"])) if len(followed.table) else 0.0
    axis.set_ylim(min(-0.1, low - 0.02), 1.03)
    axis.set_ylabel("adjusted mutual information")
    axis.set_title(result.headline)
    layer_axis(axis)
    title = "clusters against (mean)"
    if result.untrained:
        title += "\ndashed: random weights (mean)"
    figure.legend(loc="outside right upper", frameon=False, title=title, fontsize="small")
    return figure
