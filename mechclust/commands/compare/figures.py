"""Figures of ``mechclust compare``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from mechclust.commands.compare.group_figures import clusters_figure, layer_groups_figure
from mechclust.commands.compare.opinions import OPINIONS
from mechclust.commands.compare.result import CompareResult
from mechclust.commands.compare.tables import ALL
from mechclust.report.analysis import Panel
from mechclust.report.style import BLUE, CHANCE, COLORS, GREEN, ORANGE, RED, layer_axis, styled, subplots
from mechclust.report.text import figure_text
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

_TUNED, _BASE = BLUE, RED
_CHANCE, _INK, _SOFT = "#bbbbbb", "#1d2733", "#5b6875"
_NEIGHBOURS = "share of a prompt's ten nearest neighbours that are of its own task"
_NAMED = 7  # tasks with a colour of their own
_BOXES = 5  # controls that make a box plot


@styled()
def compare_panels(result: CompareResult) -> list[Panel]:
    """Figures in the report's order."""
    widths = _of_models(result)
    if not result.diagonal:
        caption = (
            "Debiased CKA of every layer of the tuned model with every layer of the base model, over all prompts and "
            "for each task. Dot: a tuned layer is more similar to this base layer than to the one at its relative "
            "depth (p at most .05 for the largest CKA over all base layers, by Holm over the tuned layers, and the 95% "
            "interval of the difference lies above 0). Grey: no CKA."
        )
        return [Panel("every_layer_with_every_other", _all_pairs(result), caption), *widths]
    panels = [
        Panel(
            "cka_by_layer",
            _by_layer(result),
            "Debiased CKA between the tuned and the base model by layer (0: the embedding), one line per task "
            "with its 95% interval over prompts; 1: the same geometry. Dashed: all prompts together. Hatched: up to "
            "the highest chance level of any task. Bold in the legend: tasks that stand out over all layers.",
        ),
        Panel(
            "change_by_task_and_layer",
            _heat_map(result),
            "1 - debiased CKA by task and layer, the most changed task first. Dot: the task stands out at that "
            "layer. Cross: its interval reaches down to the tolerance. Question mark: a change with no interval, "
            "so neither can be decided. Grey: no CKA.",
        ),
    ]
    if result.controls:
        caption = (
            "Debiased CKA of models tuned on one task alone with the tuned model and with the base model, over that "
            "task's prompts: one point per task, line: median; box plots from five tasks (Zhao, Ziser & Cohen "
            "2024, arXiv 2410.20008)."
        )
        panels.append(Panel("controls", _controls(result.tables["controls"]), caption))
    return [*panels, *_of_groups(result), *_of_opinions(result), *widths]


def _of_groups(result: CompareResult) -> list[Panel]:
    """Layer groups and clusters of tasks, where there are any."""
    panels = []
    if "layer_groups" in result.tables and result.groups is not None:
        caption = (
            "Debiased CKA with the controls by layer: median over the tasks that are not held out, band: quartiles. "
            "Shades and names: layer groups; bars on top: 95% of where a group ends, by bootstrap over tasks."
        )
        panels.append(Panel("layer_groups", layer_groups_figure(result.groups), caption))
    if "clusters" in result.tables:
        what = (
            "Debiased CKA of the controls with the tuned and with the base model"
            if result.controls
            else "Debiased CKA between the tuned and the base model"
        )
        figure = clusters_figure(result.tables["clusters_by_layer"], list(result.tables["clusters"]["cluster"]))
        caption = f"{what}, by cluster of tasks and layer: median over the cluster's tasks, band: minimum to maximum."
        panels.append(Panel("clusters", figure, caption))
    return panels


def _of_opinions(result: CompareResult) -> list[Panel]:
    if not result.opinions:
        return []
    told = "; ".join(f"{OPINIONS[name].column}: {OPINIONS[name].told}" for name in result.opinions)
    caption = f"Second opinions next to debiased CKA by layer (median over tasks, band: quartiles): {told}."
    return [Panel("second_opinions", _opinions(result), caption)]


def _of_models(result: CompareResult) -> list[Panel]:
    """Dimensions and neighbour purity of each model, if requested."""
    parts = []
    if result.n_dims is not None:
        parts.append(("dimensions", "dimensions that hold 99% of the variance over all prompts"))
    if result.purity is not None:
        parts.append(("purity", f"{_NEIGHBOURS} (dotted: by chance)"))
    if not parts:
        return []
    names, told = zip(*parts, strict=True)
    caption = f"Hidden states of each model by layer: {'; and '.join(told)}."
    return [Panel("_and_".join(names), _dimensions(result), caption)]


def _colors(tasks: Sequence[str]) -> dict[str, Any]:
    """The most changed tasks have colours of their own, the others are grey."""
    return {task: COLORS[i] if i < _NAMED else _CHANCE for i, task in enumerate(tasks)}


def _by_layer(result: CompareResult) -> Figure:
    table, summary = result.tables["compare"], result.tables["tasks"]
    figure, (axis,) = subplots(1, size=(9, 4.4))
    colors = _colors(list(summary["task"]))
    low = min(-0.03, float(table["debiased_cka"].fillna(0).min()) - 0.03)
    if "null_high" in table:
        chance = table[table["task"] != ALL].groupby("layer")["null_high"].max()
        axis.fill_between(
            chance.index, low, chance, facecolor="none", edgecolor=_SOFT, hatch="////", alpha=0.6, lw=0, label=CHANCE
        )
    for i, task in enumerate(summary["task"]):
        part = table[table["task"] == task]
        label = figure_text(task) if i < _NAMED else ("other tasks" if i == _NAMED else None)
        axis.fill_between(part["layer"], part["low"], part["high"], color=colors[task], alpha=0.16, lw=0)
        axis.plot(part["layer"], part["debiased_cka"], color=colors[task], marker="o", ms=4, label=label)
    part = table[table["task"] == ALL]
    axis.plot(part["layer"], part["debiased_cka"], color=_INK, ls="--", lw=1.3, label="all prompts together")
    axis.axhline(1, color=_INK, lw=0.6)
    ends = (min(result.layer_numbers) - 0.2, max(result.layer_numbers) + 0.2)
    axis.set(ylabel="debiased CKA, tuned with base", xlim=ends, ylim=(low, 1.03))
    layer_axis(axis)
    legend = figure.legend(loc="outside right upper", frameon=False)
    bold = set(map(figure_text, summary.loc[summary["stands_out"].eq(True), "task"]))
    for text in legend.get_texts():
        text.set_fontweight("bold" if text.get_text() in bold else "normal")
    return figure


def _heat_map(result: CompareResult) -> Figure:
    tasks = list(result.tables["tasks"]["task"])
    order = [result.tasks.index(task) for task in tasks]
    change, known = result.change.T[order], result.known.T[order]
    out, changed = (x.filled(False).T[order] for x in (result.stands_out, result.changed))
    rows, columns = change.shape
    names = list(map(figure_text, tasks))
    size = (min(14.0, 3.4 + 0.36 * columns + 0.06 * max(map(len, names))), 1.3 + 0.3 * rows)
    figure, (axis,) = subplots(1, size=size, grid=None)
    top = max(0.1, min(1.0, float(np.nanmax(change)))) if np.isfinite(change).any() else 1.0
    image = axis.imshow(_masked(change), cmap=_map("Blues"), vmin=0, vmax=top, aspect="auto", interpolation="none")
    unknown = np.isfinite(change) & ~known
    for mask, marker, color in ((out, "o", "#f2a33a"), (known & ~changed, "x", _SOFT), (unknown, "$?$", _INK)):
        y, x = np.nonzero(mask)
        axis.plot(x, y, marker=marker, ls="none", color=color, mec=_INK if marker == "o" else color, mew=0.7, ms=5)
    axis.set_yticks(range(rows), names)
    step = -(-columns // 20)
    axis.set_xticks(range(0, columns, step), [str(layer) for layer in result.layer_numbers[::step]])
    axis.set_xlabel("layer")
    figure.colorbar(image, ax=axis, label="1 - CKA")
    return figure


def _all_pairs(result: CompareResult) -> Figure:
    labels = result.cka.coords["label"]
    columns = min(4, len(labels))
    figure, axes = subplots(len(labels), columns, size=(3.1, 2.9), grid=None)
    theirs = [result.cka.layers[site] for site in result.cka.coords["other_site"]]
    image: Any = None
    for k, (label, axis) in enumerate(zip(labels, axes, strict=True)):
        grid = result.cka["debiased_cka"][:, :, k].numpy()
        extent = (theirs[0] - 0.5, theirs[-1] + 0.5, result.layer_numbers[0] - 0.5, result.layer_numbers[-1] + 0.5)
        image = axis.imshow(_masked(grid), cmap=_map("viridis"), vmin=0, vmax=1, origin="lower", extent=extent)
        for i in range(len(grid)):
            if result.best_pair is not None and result.elsewhere(i, k):
                best = int(result.best_pair["best"][i, k])
                axis.plot(theirs[best], result.layer_numbers[i], "o", color="white", mec=_INK, ms=4)
        axis.set_title("all prompts" if label == ALL else figure_text(label), fontsize=10)
        axis.set(xlabel="base layer", ylabel="tuned layer")
        axis.locator_params(integer=True)
    figure.colorbar(image, ax=axes, label="debiased CKA", shrink=0.8)
    return figure


def _controls(table: pd.DataFrame) -> Figure:
    figure, (axis,) = subplots(1, size=(9, 4.2), grid="y")
    layers = sorted(set(table["layer"]))
    for place, column, color in ((-0.19, "control_base", _BASE), (0.19, "control_tuned", _TUNED)):
        values = [table.loc[table["layer"] == layer, column].dropna().to_numpy() for layer in layers]
        x = np.concatenate([np.full(len(v), layer + place) for layer, v in zip(layers, values, strict=True)])
        if table["task"].nunique() < _BOXES:
            axis.plot(layers, [np.median(v) if len(v) else np.nan for v in values], color=color, lw=1.4)
            axis.plot(x - place, np.concatenate(values), "o", color=color, ms=5, mec="white", mew=0.6)
            continue
        axis.plot(x, np.concatenate(values), ".", color=color, ms=5, mec="white", mew=0.4)
        axis.boxplot(
            values,
            positions=np.array(layers) + place,
            widths=0.32,
            patch_artist=True,
            manage_ticks=False,
            showfliers=False,
            boxprops={"facecolor": color, "alpha": 0.35, "linewidth": 0.8},
            medianprops={"color": color, "linewidth": 2},
            whiskerprops={"linewidth": 0.8},
            capprops={"linewidth": 0.8},
        )
    axis.set(ylabel="debiased CKA with the controls", xlim=(layers[0] - 0.6, layers[-1] + 0.6))
    layer_axis(axis)
    handles = [Patch(facecolor=c, alpha=0.45, label=n) for c, n in ((_BASE, "base"), (_TUNED, "tuned"))]
    axis.legend(handles=handles, frameon=False)
    return figure


def _opinions(result: CompareResult) -> Figure:
    table = result.tables["compare"]
    table = table[table["task"] != ALL]
    figure, (axis,) = subplots(1, size=(9, 3.8))
    shown = {"debiased_cka": (_INK, "o")}
    for name, style in zip(result.opinions, ((BLUE, "s"), (ORANGE, "^"), (GREEN, "v")), strict=False):
        shown[OPINIONS[name].column] = style
    for column, (color, marker) in shown.items():
        by_layer = table.groupby("layer")[column]
        low, middle, high = (by_layer.quantile(share) for share in (0.25, 0.5, 0.75))
        axis.fill_between(middle.index, low, high, color=color, alpha=0.14, lw=0)
        axis.plot(middle.index, middle, color=color, marker=marker, ms=4, label=column)
    axis.set(ylabel="tuned with base, median over tasks", ylim=(None, 1.03))
    layer_axis(axis)
    axis.legend(frameon=False)
    return figure


def _dimensions(result: CompareResult) -> Figure:
    figure, axes = subplots((result.n_dims is not None) + (result.purity is not None), size=(4.5, 3.4))
    if result.n_dims is not None:
        _of_both(axes[0], result.n_dims, result.n_dims.sel("n_dims", label=ALL))
        axes[0].set_ylabel("dimensions for 99% variance")
        axes[0].set_ylim(bottom=0)
    if result.purity is not None:
        _of_both(axes[-1], result.purity, result.purity["neighbour_purity"])
        axes[-1].axhline(float(result.purity["chance"]), color=_SOFT, ls=":")
        axes[-1].set(ylabel="neighbours of the same task", ylim=(0, 1.04))
    axes[0].legend(frameon=False)
    return figure


def _of_both(axis: Axes, found: ProbeResult, values: Tensor) -> None:
    """A curve over layers for each model; ``values`` are by site."""
    for model, color in (("base", _BASE), ("tuned", _TUNED)):
        places = [i for i, site in enumerate(found.coords["site"]) if site.startswith(f"{model}/")]
        layers = [found.layers[found.coords["site"][i]] for i in places]
        wide = {"lw": 3, "ms": 6} if model == "base" else {"lw": 1.4, "ms": 4}  # visible where they coincide
        axis.plot(layers, values[places], color=color, marker="o", label=model, **wide)
    layer_axis(axis)


def _masked(grid: np.ndarray) -> np.ndarray:
    return np.ma.masked_invalid(grid)  # type: ignore[no-any-return,no-untyped-call]


def _map(name: str) -> Any:
    return matplotlib.colormaps[name].with_extremes(bad="#d9dde2")
