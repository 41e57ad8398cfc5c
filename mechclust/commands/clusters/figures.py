"""Figures of ``mechclust clusters``: curves over layers, followed labels and features, and the map of prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mechclust.commands.clusters.measurements import Measurements
from mechclust.commands.clusters.readings import unit_name
from mechclust.commands.clusters.verdicts import CURVES, CurveColumns
from mechclust.report.axes import layer_axis
from mechclust.report.figure_text import figure_text
from mechclust.report.panel import Panel
from mechclust.report.prompt_map import CLUSTER, prompt_map
from mechclust.report.style import CHANCE, COLORS, MARKERS, styled
from mechclust.report.subplots import subplots
from mechclust.report.text import model_name_text

if TYPE_CHECKING:
    import pandas as pd

_BLUE, _ORANGE, _GREEN = COLORS[:3]
_MAX_CANDIDATES = len(COLORS)
_MIN_BAND_WIDTH = 0.005  # a narrower chance band is drawn with an outline
_KEY_COLOR = "#555555"


@styled()
def clusters_panels(result: Measurements) -> list[Panel]:
    """Draw the figures, in the report's order."""
    panels = [Panel("curves_by_layer", curves_figure(result), _curves_caption(result))]
    if result.followed.means:
        caption = (
            "What the clusters follow: adjusted mutual information of the clusters with the file's labels and with "
            "surface features of the prompts, by layer. 1: the same partition; 0: chance."
        )
        panels.append(Panel("what_clusters_follow", followed_figure(result), caption))
    if result.trained.held_out is not None:
        panels.append(Panel("nearest_neighbours", _nearest_figure(result), _nearest_caption(result)))
    return panels


def _curves_caption(result: Measurements) -> str:
    sentences = [
        f"By layer (0: the embedding), with bars of 95% intervals over {result.config.sampled}. Blue: adjusted Rand "
        "index between k-means clusters of the hidden states and the labels."
    ]
    if result.given is not None:
        given = result.followed.called(result.given)
        sentences.append(f"Orange: the same after subtracting the mean state of each value of {given}.")
    if result.trained.linear is not None:
        within = result.config.within
        bars = "" if within is None else f" (bars: over units ('{within}'))"
        sentences.append(f"Green: held-out accuracy of a linear classifier{bars}; nothing was subtracted.")
    return " ".join([*sentences, *_baselines_caption(result)])


def _nearest_caption(result: Measurements) -> str:
    unit = unit_name(result)
    sentence = (
        "Share of prompts whose nearest neighbour has their task, by layer. Grey: of all prompts, among which those "
        f"of one {unit} share their wording. Blue: of prompts with another {unit} only."
    )
    return " ".join([sentence, *_baselines_caption(result)])


def _baselines_caption(result: Measurements) -> Iterator[str]:
    yield "Hatched: the 95% range of chance."
    if result.untrained:
        n = len(result.untrained)
        yield f"Dashed: the same architecture with random weights, mean of {n} (shaded: to the highest)."


# ---- curves ----


def curves_figure(result: Measurements) -> Figure:
    """Draw for each label the index of the clusters, also given another label, and the classifier's accuracy."""
    n = len(result.labels)
    n_measures = 1 if result.trained.linear is None else 2
    beside = n == 1 and n_measures == 2
    figure, axes = subplots(
        n_measures * n, 2 if beside else n, size=(5.0, 2.7), sharex=True, sharey=False if beside else "row"
    )
    for k, label in enumerate(result.labels):
        _draw_index(axes[k], result, label)
        if n_measures == 2:
            _draw_accuracy(axes[n + k], result, label)
    for axis in axes if beside else axes[-n:]:
        layer_axis(axis)
    bottom, top = axes[0].get_ylim()  # of all panels in the row, which share it
    axes[0].set_ylim(min(-0.05, bottom), min(1.03, max(0.2, top)))
    axes[0].set_ylabel("adjusted Rand index")
    if n_measures == 2:
        axes[n].set_ylim(0, 1.03)
        axes[n].set_ylabel("accuracy")
    _add_legend(figure, axes, bool(result.untrained))
    return figure


def _draw_index(axis: Axes, result: Measurements, label: str) -> None:
    table = result.of_label(label)
    _draw_curve(axis, table, CURVES["raw"], "clusters", _BLUE, "o")
    if "given_ari" in table:
        given = figure_text(result.followed.called(str(result.given)))
        _draw_curve(axis, table, CURVES["given"], f"clusters given {given}", _ORANGE, "s")
    name = "the task" if label == "task" else f"'{figure_text(label)}'"
    axis.set_title(f"{name}\nclusters: {result.verdicts[label]['clusters']}", fontsize="medium")


def _draw_accuracy(axis: Axes, result: Measurements, label: str) -> None:
    table = result.of_label(label)
    _draw_curve(axis, table, CURVES["linear"], "linear classifier", _GREEN, "^")
    if "linear" in result.verdicts[label]:
        axis.set_title(f"linear classifier: {result.verdicts[label]['linear']}", fontsize="medium")


def _draw_curve(axis: Axes, table: pd.DataFrame, curve: CurveColumns, name: str, color: str, marker: str) -> None:
    """Draw a curve with its intervals and chance band, and random weights: the mean, shaded up to the highest."""
    if table[curve.value].isna().all():
        return
    layers = table["layer"]
    low = table[f"{curve.null}_low"].to_numpy(dtype=float)
    high = table[f"{curve.null}_high"].to_numpy(dtype=float)
    outline = 0.8 if (high - low < _MIN_BAND_WIDTH).any() else 0
    axis.fill_between(layers, low, high, alpha=0.35, lw=outline, hatch="////", facecolor="none", edgecolor=color)
    axis.plot(layers, table[curve.value], color=color, marker=marker, ms=4, label=name)
    if f"{curve.value}_low" in table:
        axis.vlines(layers, table[f"{curve.value}_low"], table[f"{curve.value}_high"], color=color, lw=1.2, alpha=0.7)
    if curve.untrained in table:
        mean = table[curve.untrained]
        axis.plot(layers, mean, color=color, ls="--", lw=1.2)
        axis.fill_between(layers, mean, table[f"{curve.untrained}_high"], color=color, alpha=0.12, lw=0)


def _add_legend(figure: Figure, axes: list[Axes], has_random_weights: bool) -> None:
    """Add one legend for all panels, with each name once."""
    entries: dict[str, Artist] = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        entries |= dict(zip(names, handles, strict=True))
    if has_random_weights:
        entries["random weights, mean to highest"] = Line2D([], [], color=_KEY_COLOR, ls="--", lw=1.2)
    entries[CHANCE] = Patch(facecolor="none", edgecolor=_KEY_COLOR, hatch="////", lw=0, alpha=0.6)
    figure.legend(list(entries.values()), list(entries), loc="outside right upper", frameon=False, fontsize="small")


def _nearest_figure(result: Measurements) -> Figure:
    """Draw how many prompts have a nearest neighbour with their task, of all prompts and of other templates."""
    figure, axes = subplots(1, size=(6.0, 3.0))
    axis = axes[0]
    table = result.of_label("task")
    name = figure_text(unit_name(result))
    axis.plot(table["layer"], table["nearest"], color=_KEY_COLOR, marker="s", ms=3, lw=1, label="of all prompts")
    _draw_curve(axis, table, CURVES["held_out"], f"of another {name}", _BLUE, "o")
    axis.set_ylim(-0.03, 1.03)
    axis.set_ylabel("nearest neighbour has the task")
    axis.set_title(f"neighbour of another {name}:\n{result.verdicts['task']['held_out']}", fontsize="medium")
    layer_axis(axis)
    _add_legend(figure, axes, bool(result.untrained))
    return figure


# ---- labels and features that the clusters follow ----


def followed_figure(result: Measurements) -> Figure:
    """Draw the agreement of the clusters with every label and surface feature, by layer."""
    figure, (axis,) = subplots(1, size=(7.0, 3.4))
    followed = result.followed
    names = list(followed.means)[:_MAX_CANDIDATES]
    if "task" in followed.means and "task" not in names:
        names[-1] = "task"
    for k, name in enumerate(names):
        table = followed.table[followed.table["name"] == name]
        strong = name in (names[0], "task", result.given)
        style: dict[str, Any] = {"ms": 4, "lw": 2.2} if strong else {"ms": 3, "lw": 1.1}
        label = f"{figure_text(name)} ({followed.means[name]:z.2f})"
        axis.plot(table["layer"], table["ami"], color=COLORS[k], marker=MARKERS[k], label=label, **style)
        if strong and result.untrained:
            axis.plot(table["layer"], table["untrained"], color=COLORS[k], ls="--", lw=1.1)
    axis.axhline(0, color="#999999", lw=0.8, zorder=0)
    low = float(np.nanmin(followed.table["ami"])) if len(followed.table) else 0.0
    axis.set_ylim(min(-0.1, low - 0.02), 1.03)
    axis.set_ylabel("adjusted mutual information")
    axis.set_title(f"clusters by task: {result.verdicts['task']['clusters']}")
    layer_axis(axis)
    title = "clusters against (mean)"
    if result.untrained:
        title += "\ndashed: random weights (mean)"
    figure.legend(loc="outside right upper", frameon=False, title=title, fontsize="small")
    return figure


# ---- the map ----


def prompt_views(result: Measurements) -> dict[str, str]:
    """Return the map of prompts under its title, empty if there is no map."""
    shown = result.shown
    if shown is None:
        return {}
    best = result.followed.best(result.labels)
    names = [*result.labels, *result.followed.means, *result.values]
    if best is not None:
        names.insert(0, best)
    colours = {}
    for name in dict.fromkeys(names):
        title = f"{name} (label)" if name == CLUSTER else name  # the map has a colouring of that name
        colours[title] = [result.values[name][i] for i in shown.places]
    model = model_name_text(result.model)
    html = prompt_map(
        {model: shown.planes},
        shown.layers,
        shown.texts,
        colours,
        clusters=shown.clusters,
        start=_first_shown_layer(result, best),
        variance={model: shown.variance.tolist()},
    )
    n = len(result.values["task"])
    some = "" if len(shown.places) == n else f", {len(shown.places)} of {n}"
    return {f"The prompts at each layer{some}": html}


def _first_shown_layer(result: Measurements, best: str | None) -> int | None:
    """Return the layer above the embedding at which clusters agree most with the label or feature they follow."""
    table = result.followed.table
    table = table[(table["name"] == best) & (table["layer"] > 0)].dropna(subset="ami")
    return int(table.loc[table["ami"].idxmax(), "layer"]) if len(table) else None
