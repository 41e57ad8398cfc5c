"""Figures of the study of planted layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.evidence.intervals import interval_over_seeds
from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SOFT, layer_axis, seed_curve, subplots
from mechclust.studies.planted_layers.config import (
    NONE,
    PlantedConfig,
    false_columns,
    main_column,
    planted_columns,
    whole_columns,
)
from mechclust.studies.planted_layers.measure import ALL, CONTRIBUTION, FEW, MEASURES, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.results import (
    PATCHED,
    PATCHING,
    RISE,
    SHARES,
    Row,
    SeedResults,
    chance_of,
    scores_by_row,
)

_COLORS = {RESIDUAL: BLUE, RISE: PURPLE, CONTRIBUTION: ORANGE, SAME_INPUT: GREEN, PATCHING: RED}
_MARKERS = {RESIDUAL: "o", RISE: "^", CONTRIBUTION: "s", SAME_INPUT: "D", PATCHING: "*"}
_LINES = (RESIDUAL, CONTRIBUTION, SAME_INPUT)
_SHORT = {"debiased CKA without the top component": "debiased CKA\nwithout top", "n99": "dimensions (99%)"}
_SPREAD = 0.17  # between the dots of a measure, of the distance between two measures


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


def curves(config: PlantedConfig, found: Sequence[SeedResults]) -> Figure:
    """Draw the change by layer for every plant: residual stream, what blocks add, and loss restored by patching."""
    columns = planted_columns(config)
    n_spans = len(found[0].of(columns[0]))
    figure, axes = subplots(len(columns) * n_spans, n_spans, size=(4.2, 2.9), sharey="row")
    for i, axis in enumerate(axes):
        _plant(axis, found, columns[i // n_spans], i % n_spans)
        _patching(axis, found, columns[i // n_spans], i % n_spans, last=i % n_spans == n_spans - 1)
        if not i % n_spans:
            axis.set_ylabel("1 - debiased CKA")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_LINES))
    return figure


def _plant(axis: Axes, found: Sequence[SeedResults], column: str, k: int) -> None:
    """Draw the curves of one plant with their thresholds; its layers are grey."""
    pair = found[0].of(column)[k]
    assert pair.truth is not None
    first, last = pair.truth
    layers = np.arange(1, found[0].n_layers + 1)
    axis.axvspan(first - 0.4, last + 0.4, color=GREY, alpha=0.2, lw=0)
    for view in _LINES:
        row = Row(view, "debiased CKA")
        values = np.stack([run.curve(pair, row) for run in found])
        if np.isfinite(values).all():
            seed_curve(axis, layers, values, color=_COLORS[view], marker=".", label=view)
        bars = np.stack([run.threshold(pair, row) for run in found])
        axis.plot(layers, bars.mean(axis=0), color=_COLORS[view], ls=":", lw=1)
    axis.set_title(f"{column}, layers {first}-{last}", fontsize=10)
    layer_axis(axis)


def _patching(axis: Axes, found: Sequence[SeedResults], column: str, k: int, *, last: bool) -> None:
    """Draw the share of the loss that patching restores, on an axis at the right, with numbers in the last panel."""
    restored = np.stack([run.restored[run.of(column)[k].name] for run in found])
    if not np.isfinite(restored).all():
        return
    other = axis.twinx()
    other.plot(np.arange(1, found[0].n_layers + 1), restored.mean(axis=0), color=RED, ls=":", marker=".")
    other.set_ylim(-0.1, 1.1)
    other.spines["right"].set(visible=True, color=RED)
    other.set_ylabel("loss restored" if last else "", color=RED)
    other.tick_params(labelright=last)


def errors_panels(config: PlantedConfig) -> list[DotPanel]:
    """Return two panels: the error of the first changed layer and that of the last."""
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
    none = [column for column in false_columns(config) if column != NONE]
    whole = whole_columns(config)
    return [
        *(DotPanel(f"{column}: right is 0", "share called", column, "false") for column in none),
        *(
            DotPanel(f"{column.removesuffix(' changed')}: right is 1", "share called", column, "hit")
            for column in whole
        ),
    ]


def dots(config: PlantedConfig, found: Sequence[SeedResults], panels: Sequence[DotPanel]) -> Figure:
    """Draw a score for each measure, a dot for each view, with the 95% interval over seeds; chance is dashed."""
    columns = min(3, len(panels))
    width = 8.0 if columns == 2 else 10.5
    figure, axes = subplots(len(panels), columns, size=(width / columns, 4.3), grid="x", sharey=True)
    for axis, panel in zip(axes, panels, strict=True):
        values = scores_by_row(config, found, panel.column, panel.name, panel.prompts)
        _draw_dots(axis, values, share=panel.name in SHARES)
        axis.set_title(panel.title)
        axis.set_xlabel(panel.x)
    largest = max(axis.get_xlim()[1] for axis in axes)
    for axis, panel in zip(axes, panels, strict=True):
        axis.set_xlim(-0.03 * largest, largest)
        _draw_chance(axis, chance_of(panel.column, panel.name, found[0]))
    patched = any(panel.column in planted_columns(config) for panel in panels)
    names = [_SHORT.get(measure, measure) for measure in MEASURES]
    names += [PATCHING] if patched else []
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    handles, labels = axes[0].get_legend_handles_labels()
    views = dict(zip(labels, handles, strict=True))
    figure.legend(views.values(), views.keys(), loc="outside lower center", ncols=len(views))
    return figure


def _draw_dots(axis: Axes, values: dict[Row, Float[np.ndarray, " seed"]], *, share: bool) -> None:
    for row, seeds in values.items():
        if not len(seeds) or not np.isfinite(seeds).all():
            continue
        y = _height(row)
        low, high = interval_over_seeds(seeds.tolist(), share=share) or (seeds.mean(), seeds.mean())
        color = _COLORS[row.view]
        axis.plot([low, high], [y, y], color=color, lw=1, alpha=0.6)
        label = row.view if row.measure == MEASURES[0] else None
        axis.plot(seeds.mean(), y, color=color, marker=_MARKERS[row.view], ms=5, ls="", label=label)


def _height(row: Row) -> float:
    """Return where a row's dot lies: measures from above, the views of a measure one below the other."""
    if row == PATCHED:
        return float(len(MEASURES))
    views = list(_COLORS)[:-1]
    return MEASURES.index(row.measure) + _SPREAD * (views.index(row.view) - (len(views) - 1) / 2)


def _draw_chance(axis: Axes, chance: float) -> None:
    """Draw a dashed line, with its name on the side that has room."""
    if not np.isfinite(chance):
        return
    side = "right" if chance > 0.6 * axis.get_xlim()[1] else "left"
    axis.axvline(chance, color=SOFT, lw=1, ls="--")
    axis.text(chance, len(MEASURES) + 0.3, " a random layer ", color=SOFT, fontsize=8, va="center", ha=side)
