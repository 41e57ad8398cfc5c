"""Figures of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from mechclust.commands.compare.by_layer import ALL
from mechclust.commands.compare.measurements import Measurements
from mechclust.report.axes import layer_axis, plot_band
from mechclust.report.figure_text import figure_text
from mechclust.report.panel import Panel
from mechclust.report.style import CHANCE, COLORS, SOFT, TEXT, styled
from mechclust.report.subplots import subplots

if TYPE_CHECKING:
    import pandas as pd

    Tables = Mapping[str, pd.DataFrame]

MAX_COLORED_TASKS = 7
_GREY = "#bbbbbb"
_BLOCK_COLUMNS = ("block_cka", "block_low", "block_high")
_RESIDUAL_COLUMNS = ("debiased_cka", "low", "high")


@styled()
def compare_panels(result: Measurements, tables: Tables) -> list[Panel]:
    """Draw the figures, in the report's order.

    Args:
        result: the measurements.
        tables: as ``CompareResult.tables``.
    """
    return [
        *_output_panels(result, tables),
        _cka_panel(result, tables),
        _change_panel(result, tables["tasks"]),
    ]


def _cka_panel(result: Measurements, tables: Tables) -> Panel:
    table = tables["compare"]
    of_tasks = table[table["task"] != ALL]
    summary = tables["tasks"]
    figure, (axis,) = subplots(1, size=(9, 4.4))
    bottom = min(-0.03, float(table["debiased_cka"].fillna(0).min()) - 0.03)
    hatched = ""
    if "null_high" in table:
        hatched = " Hatched: up to the highest chance level of any task."
        chance = of_tasks.groupby("layer")["null_high"].max()
        floor = np.full(len(chance), bottom)
        hatch = {"facecolor": "none", "edgecolor": SOFT, "hatch": "////", "alpha": 0.6, "lw": 0, "label": CHANCE}
        plot_band(axis, chance.index.to_numpy(), floor, chance.to_numpy(), **hatch)
    _draw_tasks(axis, tables, _RESIDUAL_COLUMNS)
    _draw_together(axis, table, "debiased_cka")
    axis.axhline(1, color=TEXT, lw=0.6)
    ends = (min(result.layer_numbers) - 0.2, max(result.layer_numbers) + 0.2)
    axis.set(ylabel="debiased CKA, tuned with base", xlim=ends, ylim=(bottom, 1.03))
    legend = figure.legend(loc="outside right upper", frameon=False)
    outstanding = set(map(figure_text, summary.loc[summary["stands_out"].eq(True), "task"]))
    for text in legend.get_texts():
        text.set_fontweight("bold" if text.get_text() in outstanding else "normal")
    return Panel(
        "cka_by_layer",
        figure,
        "Debiased CKA between the tuned and the base model by layer (0: the embedding), one line per task "
        f"with its 95% interval over {result.config.sampled}; 1: the same geometry. Dashed: all prompts together."
        f"{hatched} Bold in the legend: tasks that stand out over all layers.",
    )


def _output_panels(result: Measurements, tables: Tables) -> Iterator[Panel]:
    """Yield how much each layer changed, next to how much patching it restores of the output."""
    if result.patching is None:
        return
    figure, axes = subplots(2, size=(4.5, 3.6))
    columns = _RESIDUAL_COLUMNS if result.blocks is None else _BLOCK_COLUMNS
    value, low, high = columns
    changes = tables["compare"].assign(**{column: 1 - tables["compare"][column] for column in columns})
    _draw_tasks(axes[0], {**tables, "compare": changes}, (value, high, low))
    axes[0].axhline(result.config.tolerance, color=SOFT, ls=":", lw=1)
    changed = "the residual stream changed" if result.blocks is None else "the block changed"
    axes[0].set(title=f"how much {changed}", ylabel="1 - debiased CKA, tuned with base")
    _draw_tasks(axes[1], tables, ("restored", "restored_low", "restored_high"))
    together = _draw_together(axes[1], tables["compare"], "restored")
    axes[1].plot(together["layer"], together["chance_restored"], color=SOFT, ls=":", label="another prompt's stream")
    least = float(np.nanmin([0.0, *together["restored"]]))
    axes[1].set(title="what patching it restores", ylabel="share of the output", ylim=(max(least, -1.0) - 0.08, 1.08))
    for axis in axes:
        axis.set_xlim(min(result.layer_numbers) - 0.2, max(result.layer_numbers) + 0.2)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    what = "of the residual stream" if result.blocks is None else "of what each block adds to the base's hidden states"
    yield Panel(
        "changed_and_restored",
        figure,
        f"Left: 1 - debiased CKA {what}, which decides which layers changed (dotted: the tolerance). Right: share of "
        "the difference between both models' outputs that is restored by patching the tuned model's residual stream "
        "into the base at that layer. Where it rises, a layer matters to the output. 0: the base as it is, 1: the "
        "tuned model. Dotted: chance, the stream of another prompt of the task (it may lie below the figure). One line "
        f"per task with its 95% interval over {result.config.sampled}.",
    )


def _draw_tasks(axis: Axes, tables: Tables, columns: tuple[str, str, str]) -> None:
    """Draw a number of each task by layer with its interval, from its column and its interval's ends."""
    for i, task in enumerate(tables["tasks"]["task"]):
        part = tables["compare"][tables["compare"]["task"] == task].set_index("layer")
        value, low, high = (part[column] for column in columns)
        color = COLORS[i] if i < MAX_COLORED_TASKS else _GREY
        label = figure_text(task) if i < MAX_COLORED_TASKS else None
        if i == MAX_COLORED_TASKS:
            label = "other tasks"
        _draw_band(axis, value, low, high, color, label)
    layer_axis(axis)


def _change_panel(result: Measurements, summary: pd.DataFrame) -> Panel:
    order = [result.tasks.index(task) for task in summary["task"]]
    names = [figure_text(result.tasks[k]) for k in order]
    change = result.change.T[order]
    width = 3.4 + 0.36 * len(result.layer_numbers) + 0.06 * max(map(len, names))
    figure, (axis,) = subplots(1, size=(min(14.0, width), 1.3 + 0.3 * len(names)), grid=None)
    top = max(0.1, min(1.0, float(np.nanmax(change)))) if np.isfinite(change).any() else 1.0
    colors = matplotlib.colormaps["Blues"].with_extremes(bad="#d9dde2")
    image = axis.imshow(change, cmap=colors, vmin=0, vmax=top, aspect="auto", interpolation="none")
    unchanged = result.known & ~result.changed.filled(False)
    undecided = np.isfinite(result.change) & ~result.known
    for marker, color, edge, mask in (
        ("o", "#f2a33a", TEXT, result.stands_out.filled(False)),
        ("x", SOFT, SOFT, unchanged),
        ("$?$", TEXT, TEXT, undecided),
    ):
        y, x = np.nonzero(mask.T[order])
        outline = [withStroke(linewidth=1.8, foreground="white")]  # without it, crosses are lost in dark cells
        axis.plot(x, y, marker=marker, ls="none", color=color, mec=edge, mew=0.7, ms=5, path_effects=outline)
    axis.set_yticks(range(len(names)), names)
    step = -(-len(result.layer_numbers) // 20)
    ticks = range(0, len(result.layer_numbers), step)
    axis.set_xticks(ticks, [str(result.layer_numbers[i]) for i in ticks])
    axis.set_xlabel("layer")
    figure.colorbar(image, ax=axis, label="1 - CKA")
    of_blocks = "" if result.blocks is None else "of 1 - block CKA "
    return Panel(
        "change_by_task_and_layer",
        figure,
        "1 - debiased CKA by task and layer, the most changed task first. Dot: the task stands out at that "
        f"layer. Cross: its interval {of_blocks}reaches down to the tolerance. Question mark: a change with no "
        "interval, so neither can be decided. Grey: no CKA.",
    )


def _draw_together(axis: Axes, table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Draw a number of all prompts together by layer, with a dash if it is one layer, and return their rows."""
    together = table[table["task"] == ALL]
    marks: dict[str, Any] = {"marker": "_", "ms": 9} if together[column].notna().sum() == 1 else {}
    axis.plot(together["layer"], together[column], color=TEXT, ls="--", lw=1.3, label="all prompts together", **marks)
    return together


def _draw_band(axis: Axes, values: pd.Series, low: pd.Series, high: pd.Series, color: str, label: str | None) -> None:
    """Draw values by layer in the band of their intervals."""
    zorder = 1.5 if color == _GREY else 2.0  # the named tasks lie above all others
    plot_band(axis, values.index.to_numpy(), low.to_numpy(), high.to_numpy(), color=color, alpha=0.16, lw=0)
    axis.plot(values.index, values, color=color, label=label, marker="o", ms=4, zorder=zorder)
