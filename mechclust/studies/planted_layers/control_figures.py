"""Figures of MOSSA's readings if the truth is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.axes import layer_axis
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import COLORS, GREY
from mechclust.report.subplots import subplots
from mechclust.studies.planted_layers.config import PlantedConfig
from mechclust.studies.planted_layers.figures import shade_layers
from mechclust.studies.planted_layers.measure import ALL, FEW
from mechclust.studies.planted_layers.reading import (
    CONTROL_MEASURES,
    FIRST_LAYER_SCORES,
    LAST_LAYER_SCORES,
    OF_GROUPS,
    SeedReadings,
    TrioReading,
    curve_place,
    read_scores,
    reading_chance,
)
from mechclust.studies.planted_layers.rows import RESIDUAL
from mechclust.studies.planted_layers.trios import CROSSED, SAME

_ERRORS = (*FIRST_LAYER_SCORES, *LAST_LAYER_SCORES)
_MEASURE_COLORS = dict(zip(CONTROL_MEASURES, COLORS, strict=False))
_HATCHED = {"fill": False, "edgecolor": GREY, "hatch": "//"}
_PANELS_IN_A_ROW = 4


def gains_figure(config: PlantedConfig, runs: Sequence[SeedReadings]) -> Figure:
    """Draw the gain by layer of every trio, by every measure."""
    by_trio = list(zip(*[run.readings for run in runs], strict=True))
    figure, axes = subplots(len(by_trio), _PANELS_IN_A_ROW, size=(3.6, 2.7), sharey=True)
    for axis, readings in zip(axes, by_trio, strict=True):
        _shade_trained(axis, readings[0], runs[0])
        axis.axhline(config.gain_margin, color=GREY, lw=0.8, ls="--")
        _draw_gain(axis, readings)
    for axis in axes[::_PANELS_IN_A_ROW]:
        axis.set_ylabel("gain over the base")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _shade_trained(axis: Axes, reading: TrioReading, run: SeedReadings) -> None:
    """Draw the layers in which E was trained in grey, and its controls' layers hatched if they differ."""
    trio = reading.trio
    if trio.column in (SAME, *CROSSED):
        shade_layers(axis, trio.truth)
    if trio.column in CROSSED:
        for same in run.of(SAME):
            if same.trio.controls == trio.controls:
                shade_layers(axis, same.trio.truth, _HATCHED)


def _draw_gain(axis: Axes, readings: Sequence[TrioReading]) -> None:
    layers = np.arange(1, readings[0].n_layers + 1)
    for measure, color in _MEASURE_COLORS.items():
        values = np.stack([reading.gain[curve_place(RESIDUAL, measure)] for reading in readings])
        if np.isfinite(values).all():
            plot_seeds(axis, layers, values, color=color, marker=".", label=measure)
    trio = readings[0].trio
    title = f"{trio.column}, {trio.truth[0]}-{trio.truth[1]}" if trio.column == SAME else trio.column
    axis.set_title(title, fontsize=9)
    layer_axis(axis)


def reading_errors_figure(config: PlantedConfig, runs: Sequence[SeedReadings]) -> Figure:
    """Draw how far each reading is from the layers that were trained, by measure."""
    figure, axes = subplots(2, size=(6.2, 3.4), grid=None)
    scores = read_scores(runs, SAME, config.gain_margin)
    chances = [reading_chance(runs[0].of(SAME), name) for name in _ERRORS]
    largest = runs[0].readings[0].n_layers / 3
    names = [f"groups: {name}" if name in OF_GROUPS else f"gain: {name}" for name in _ERRORS]
    for axis, prompts in zip(axes, (ALL, FEW), strict=True):
        rows = []
        for measure in CONTROL_MEASURES:
            rows.append([scores[name][:, *curve_place(RESIDUAL, measure, prompts)].mean() for name in _ERRORS])
        _draw_cells(axis, np.array([*rows, chances]), largest)
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
        axis.set_yticks(range(len(rows) + 1), [*CONTROL_MEASURES, "chance, a random layer"], fontsize=7)
        axis.set_title("error in layers" if prompts == ALL else "error in layers, few prompts", fontsize=10)
    return figure


def _draw_cells(axis: Axes, table: Float[np.ndarray, "row column"], largest: float) -> None:
    axis.imshow(table, cmap="viridis_r", vmin=0, vmax=largest, aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            color = "white" if value > 0.6 * largest else "black"
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=color)
