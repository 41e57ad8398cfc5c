"""Figures of the study of planted layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.evidence.intervals import interval_over_seeds
from mechclust.report.axes import layer_axis
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SOFT
from mechclust.report.subplots import subplots
from mechclust.studies.planted_layers.config import (
    NONE,
    ORDER,
    Pair,
    PlantedConfig,
    false_columns,
    main_column,
    planted_columns,
    whole_columns,
)
from mechclust.studies.planted_layers.measure import ALL, DEBIASED, FEW, MEASURES
from mechclust.studies.planted_layers.results import (
    PATCHED,
    PATCHING,
    RISE,
    SHARES,
    BySeed,
    Row,
    SeedResults,
    chance_of,
    scores_by_row,
)
from mechclust.studies.planted_layers.rows import CONTRIBUTION, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.score import Span

_VIEW_COLORS = {RESIDUAL: BLUE, RISE: PURPLE, CONTRIBUTION: ORANGE, SAME_INPUT: GREEN, PATCHING: RED}
_VIEW_MARKERS = {RESIDUAL: "o", RISE: "^", CONTRIBUTION: "s", SAME_INPUT: "D", PATCHING: "*"}
_CURVE_VIEWS = (RESIDUAL, CONTRIBUTION, SAME_INPUT)
_SHORT_NAMES = {"debiased CKA without the top component": "debiased CKA\nwithout top", "n99": "dimensions (99%)"}
_SHADED = {"color": GREY, "alpha": 0.2}
_DOT_SPREAD = 0.17  # between the dots of a measure, of the distance between two measures


class DotPanel(NamedTuple):
    """A panel of dots, one for each view and measure.

    Attributes:
        title: above it.
        x: the name of its axis.
        column: the kind of comparison.
        name: the score.
        prompts: all, or few.
    """

    title: str
    x: str
    column: str
    name: str
    prompts: str = ALL


# ---- curves ----


def curves_figure(config: PlantedConfig, runs: Sequence[SeedResults]) -> Figure:
    """Draw the change by layer for every plant: residual stream, block contributions, and loss restored by patching."""
    columns = planted_columns(config)
    n_spans = len(runs[0].of(columns[0]))
    figure, axes = subplots(len(columns) * n_spans, n_spans, size=(4.2, 2.9), sharey="row")
    pairs = list(chain.from_iterable(map(runs[0].of, columns)))
    for i, (axis, pair) in enumerate(zip(axes, pairs, strict=True)):
        place = i % n_spans
        _draw_plant(axis, runs, pair)
        _draw_patching(axis, runs, pair, last=place == n_spans - 1)
        if place == 0:
            axis.set_ylabel(f"1 - {DEBIASED}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_CURVE_VIEWS))
    return figure


def shade_layers(axis: Axes, span: Span, style: Mapping[str, Any] = _SHADED) -> None:
    """Draw a band over a span of layers."""
    axis.axvspan(span[0] - 0.4, span[1] + 0.4, lw=0, **style)


def _draw_plant(axis: Axes, runs: Sequence[SeedResults], pair: Pair) -> None:
    """Draw the curves of one plant with their thresholds. Its layers are grey."""
    assert pair.truth is not None
    shade_layers(axis, pair.truth)
    layers = np.arange(1, runs[0].n_layers + 1)
    for view in _CURVE_VIEWS:
        row = Row(view, DEBIASED)
        values = np.stack([run.curve(pair, row) for run in runs])
        if np.isfinite(values).all():
            plot_seeds(axis, layers, values, color=_VIEW_COLORS[view], marker=".", label=view)
        bars = np.stack([run.threshold(pair, row) for run in runs])
        axis.plot(layers, bars.mean(axis=0), color=_VIEW_COLORS[view], ls=":", lw=1)
    first, last = pair.truth
    axis.set_title(f"{pair.column}, {f'layer {first}' if first == last else f'layers {first}-{last}'}", fontsize=10)
    layer_axis(axis)


def _draw_patching(axis: Axes, runs: Sequence[SeedResults], pair: Pair, *, last: bool) -> None:
    """Draw the share of the loss that patching restores, on an axis at the right, with numbers in the last panel."""
    restored = np.stack([run.restored[pair.name] for run in runs])
    if not np.isfinite(restored).all():
        return
    other = axis.twinx()
    other.plot(np.arange(1, runs[0].n_layers + 1), restored.mean(axis=0), color=RED, ls=":", marker=".")
    other.set_ylim(-0.1, 1.1)
    other.spines["right"].set(visible=True, color=RED)
    other.set_ylabel("loss restored" if last else "", color=RED)
    other.tick_params(labelright=last)


# ---- dots ----


def errors_panels(config: PlantedConfig) -> list[DotPanel]:
    """Return two panels: the errors of the first and of the last changed layer."""
    main = main_column(config)
    return [
        DotPanel("first changed layer", "error in layers", main, "onset"),
        DotPanel("last changed layer", "error in layers", main, "end"),
    ]


def separation_panels(config: PlantedConfig) -> list[DotPanel]:
    """Return a panel for each kind of plant: the area under the ROC curve."""
    return [DotPanel(column, "area under the ROC curve", column, "auc") for column in planted_columns(config)]


def call_panels(config: PlantedConfig) -> list[DotPanel]:
    """Return three panels: the share of the changed layers called, with all prompts and few, and of the others."""
    main = main_column(config)
    return [
        DotPanel("changed layers", "share called", main, "hit"),
        DotPanel("changed layers, few prompts", "share called", main, "hit", FEW),
        DotPanel("other layers", "share called", main, "false"),
    ]


def unplanted_panels(config: PlantedConfig) -> list[DotPanel]:
    """Return a panel for each comparison in which no layer, or every layer, was singled out: the share called."""
    panels = []
    for column in false_columns(config):
        if column != NONE:
            is_noise = column == ORDER and config.model is not None  # a given model is not tuned
            title = "two draws of small noise" if is_noise else column
            panels.append(DotPanel(f"{title}: right is 0", "share called", column, "false"))
    for column in whole_columns(config):
        title = f"{column}: right is 1"
        panels.append(DotPanel(title, "share called", column, "hit"))
    return panels


def dots_figure(config: PlantedConfig, runs: Sequence[SeedResults], panels: Sequence[DotPanel]) -> Figure:
    """Draw a score for each measure, a dot for each view, with the 95% interval over seeds. Chance is dashed."""
    columns = min(3, len(panels))
    width = 8.0 if columns == 2 else 10.5
    figure, axes = subplots(len(panels), columns, size=(width / columns, 4.3), grid="x", sharey=True)
    for axis, panel in zip(axes, panels, strict=True):
        values = scores_by_row(config, runs, panel.column, panel.name, panel.prompts)
        _draw_dots(axis, values, share=panel.name in SHARES)
        axis.set_title(panel.title)
        axis.set_xlabel(panel.x)
    largest = max(axis.get_xlim()[1] for axis in axes)
    for axis, panel in zip(axes, panels, strict=True):
        axis.set_xlim(-0.03 * largest, largest)
        _draw_chance(axis, chance_of(panel.column, panel.name, runs[0]))
    names = [_SHORT_NAMES.get(measure, measure) for measure in MEASURES]
    if any(panel.column in planted_columns(config) for panel in panels):
        names.append(PATCHING)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    handles, labels = axes[0].get_legend_handles_labels()
    views = dict(zip(labels, handles, strict=True))
    figure.legend(views.values(), views.keys(), loc="outside lower center", ncols=len(views))
    return figure


def _draw_dots(axis: Axes, values: Mapping[Row, BySeed], *, share: bool) -> None:
    for row, seeds in values.items():
        if not len(seeds) or not np.isfinite(seeds).all():
            continue
        y = _height(row)
        low, high = interval_over_seeds(seeds.tolist(), share=share) or (seeds.mean(), seeds.mean())
        color = _VIEW_COLORS[row.view]
        axis.plot([low, high], [y, y], color=color, lw=1, alpha=0.6)
        label = row.view if row.measure == MEASURES[0] else None
        axis.plot(seeds.mean(), y, color=color, marker=_VIEW_MARKERS[row.view], ms=5, ls="", label=label)


def _height(row: Row) -> float:
    """Return the height of a row's dot: measures from above, the views of a measure one below the other."""
    if row == PATCHED:
        return float(len(MEASURES))
    views = list(_VIEW_COLORS)[:-1]
    return MEASURES.index(row.measure) + _DOT_SPREAD * (views.index(row.view) - (len(views) - 1) / 2)


def _draw_chance(axis: Axes, chance: float) -> None:
    """Draw a dashed line, with its name on the side that has room."""
    if not np.isfinite(chance):
        return
    side = "right" if chance > 0.6 * axis.get_xlim()[1] else "left"
    axis.axvline(chance, color=SOFT, lw=1, ls="--")
    axis.text(chance, len(MEASURES) + 0.3, " a random layer ", color=SOFT, fontsize=8, va="center", ha=side)
