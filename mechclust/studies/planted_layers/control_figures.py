"""Figures of what MOSSA reads if the truth is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mechclust.report.style import COLORS, GREY, layer_axis, seed_curve, subplots
from mechclust.studies.planted_layers.config import PlantedConfig
from mechclust.studies.planted_layers.measure import ALL, FEW, RESIDUAL
from mechclust.studies.planted_layers.reading import (
    CONTROL_MEASURES,
    OF_GROUPS,
    SeedReadings,
    place,
    read_scores,
    reading_chance,
)
from mechclust.studies.planted_layers.trios import CROSSED, SAME

_COLORS = dict(zip(CONTROL_MEASURES, COLORS, strict=False))
_ERRORS = ("onset", "crossing", "shared", "end", "transition", "by spread")


def gains(config: PlantedConfig, found: Sequence[SeedReadings]) -> Figure:
    """Gain by layer of every trio, by every measure."""
    trios = [reading.trio for reading in found[0].readings]
    figure, axes = subplots(len(trios), 4, size=(3.6, 2.7), sharey=True)
    layers = np.arange(1, found[0].readings[0].n_layers + 1)
    for i, (axis, trio) in enumerate(zip(axes, trios, strict=False)):
        if trio.column in (SAME, *CROSSED):
            axis.axvspan(trio.truth[0] - 0.4, trio.truth[1] + 0.4, color=GREY, alpha=0.2, lw=0)
        if trio.column in CROSSED:
            (first, last) = next(t.truth for t in trios if t.column == SAME and t.controls == trio.controls)
            axis.axvspan(first - 0.4, last + 0.4, fill=False, edgecolor=GREY, hatch="//", lw=0)
        axis.axhline(config.gain_margin, color=GREY, lw=0.8, ls="--")
        for measure, color in _COLORS.items():
            values = np.stack([m.readings[i].gain[place(RESIDUAL, measure)] for m in found])
            if np.isfinite(values).all():
                seed_curve(axis, layers, values, color=color, marker=".", label=measure)
        title = f"{trio.column}, {trio.truth[0]}-{trio.truth[1]}" if trio.column == SAME else trio.column
        axis.set_title(title, fontsize=9)
        layer_axis(axis)
        if not i % 4:
            axis.set_ylabel("gain over the base")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def reading_errors(config: PlantedConfig, found: Sequence[SeedReadings]) -> Figure:
    """How far each reading is from the layers that were trained, by measure."""
    figure, axes = subplots(2, size=(6.2, 3.4), grid=None)
    for axis, prompts in zip(axes, (ALL, FEW), strict=True):
        table = np.array([
            [
                read_scores(found, SAME, name, config.gain_margin)[:, *place(RESIDUAL, measure, prompts)].mean()
                for name in _ERRORS
            ]
            for measure in CONTROL_MEASURES
        ])  # fmt: skip
        table = np.concatenate([table, [[reading_chance(found[0].of(SAME), name) for name in _ERRORS]]])
        most = found[0].readings[0].n_layers / 3
        axis.imshow(table, cmap="viridis_r", vmin=0, vmax=most, aspect="auto")
        for (i, j), value in np.ndenumerate(table):
            if np.isfinite(value):
                color = "white" if value > 0.6 * most else "black"
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color=color)
        names = [f"groups: {name}" if name in OF_GROUPS else f"gain: {name}" for name in _ERRORS]
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
        axis.set_yticks(range(len(table)), [*CONTROL_MEASURES, "chance, a random layer"], fontsize=7)
        axis.set_title("error in layers" + (", few prompts" if prompts == FEW else ""), fontsize=10)
    return figure
