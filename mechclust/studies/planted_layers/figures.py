"""Figures of the study of planted layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, RED, layer_axis, seed_curve, subplots
from mechclust.studies.planted_layers.config import PlantedConfig, planted_columns
from mechclust.studies.planted_layers.measure import ALL, CONTRIBUTION, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.results import Row, SeedResults, chance_of, columns_of, keys_of, table_values

_LINES = {RESIDUAL: (BLUE, "-"), CONTRIBUTION: (ORANGE, "-"), SAME_INPUT: (GREEN, "-")}


def curves(config: PlantedConfig, found: Sequence[SeedResults]) -> Figure:
    """Change by layer for every plant: residual stream, block contributions, and loss restored by patching."""
    columns = planted_columns(config)
    spans = [pair.truth for pair in found[0].of(columns[0])]
    figure, axes = subplots(len(columns) * len(spans), len(spans), size=(4.2, 2.9), sharey="row")
    layers = np.arange(1, found[0].n_layers + 1)
    for i, axis in enumerate(axes):
        column, k = columns[i // len(spans)], i % len(spans)
        span = found[0].of(column)[k].truth
        assert span is not None
        axis.axvspan(span[0] - 0.4, span[1] + 0.4, color=GREY, alpha=0.2, lw=0)
        for view, (color, line) in _LINES.items():
            values = np.stack([m.curve(m.of(column)[k], Row(view, "debiased CKA")) for m in found])
            if np.isfinite(values).all():
                seed_curve(axis, layers, values, color=color, ls=line, marker=".", label=view)
            bars = np.stack([m.bar(m.of(column)[k], Row(view, "debiased CKA"), ALL, 0.0) for m in found])
            axis.plot(layers, bars.mean(axis=0), color=color, ls=":", lw=1)
        restored = np.stack([m.restored[m.of(column)[k].name] for m in found])
        if np.isfinite(restored).all():
            other = axis.twinx()
            other.plot(layers, restored.mean(axis=0), color=RED, ls=":", marker=".")
            other.set_ylim(-0.1, 1.1)
            other.spines["right"].set(visible=True, color=RED)
            other.set_ylabel("loss restored" if k == len(spans) - 1 else "", color=RED)
            other.tick_params(labelright=k == len(spans) - 1)
        axis.set_title(f"{column}, layers {span[0]}-{span[1]}", fontsize=10)
        layer_axis(axis)
        if not k:
            axis.set_ylabel("1 - debiased CKA")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_LINES))
    return figure


def auc(config: PlantedConfig, found: Sequence[SeedResults]) -> Figure:
    """Area under the ROC curve of every measure in every condition with layers to find."""
    figure, (axis,) = subplots(1, size=(3.6 + 1.0 * len(keys_of(columns_of(config, "planted"))), 7.2), grid=None)
    _heat(axis, config, found, "auc", "planted", "viridis", (0.0, 1.0))
    axis.set_title("area under the ROC curve")
    return figure


def errors(config: PlantedConfig, found: Sequence[SeedResults]) -> Figure:
    """How far the first and the last layer called are from those that were changed."""
    figure, axes = subplots(2, size=(3.6 + 1.0 * len(keys_of(columns_of(config, "planted"))), 7.2), grid=None)
    for axis, name, title in zip(axes, ("onset", "end"), ("first layer", "last layer"), strict=True):
        _heat(axis, config, found, name, "planted", "viridis_r", (0.0, found[0].n_layers / 3))
        axis.set_title(f"{title}: error in layers")
    return figure


def false_calls(config: PlantedConfig, found: Sequence[SeedResults]) -> Figure:
    """Share of layers called changed if none was singled out."""
    figure, (axis,) = subplots(1, size=(3.6 + 1.0 * len(keys_of(columns_of(config, "none"))), 7.2), grid=None)
    _heat(axis, config, found, "false", "none", "magma_r", (0.0, 1.0))
    axis.set_title("share of layers called changed")
    return figure


def _heat(
    axis: Axes,
    config: PlantedConfig,
    found: Sequence[SeedResults],
    name: str,
    which: str,
    colors: str,
    limits: tuple[float, float],
) -> None:
    keys = keys_of(columns_of(config, which))
    values = {str(row): own for row, own in table_values(config, found, name, which).items()}
    table = np.array([[seeds.mean() if len(seeds) else np.nan for seeds in own] for own in values.values()])
    chances = [chance_of(column, name, found[0]) for column, _ in keys]
    if name != "auc" and np.isfinite(chances).any():
        values["chance, a random layer"] = []
        table = np.concatenate([table, [chances]])
    axis.imshow(table, cmap=colors, vmin=limits[0], vmax=limits[1], aspect="auto")
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            dark = (value - limits[0]) / (limits[1] - limits[0]) > 0.6
            white = dark == colors.endswith("_r")
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if white else "black")
    labels = [column if prompts == ALL else f"{column},\nfew prompts" for column, prompts in keys]
    axis.set_xticks(range(len(keys)), labels, rotation=45, ha="right", fontsize=8)
    axis.set_yticks(range(len(values)), list(values), fontsize=8)
