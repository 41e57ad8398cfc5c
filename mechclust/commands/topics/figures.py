"""Figures of ``mechclust topics``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from mechclust.commands.topics.result import TopicsResult
from mechclust.report.analysis import Panel
from mechclust.report.style import BLUE, CHANCE, RED, chance_band, direct_labels, layer_axis, shades, styled, subplots

if TYPE_CHECKING:
    import pandas as pd

_INK = "#1d2733"
_OVERLAP = {False: (BLUE, "o", "words of one topic only"), True: (RED, "s", "words of several topics too")}


@styled()
def topics_panels(result: TopicsResult) -> list[Panel]:
    """One figure per table."""
    tables = result.tables
    thresholds = sorted({variant.threshold for variant in result.variants})
    dashed = " Dashed: the same architecture, untrained (random weights)." if result.untrained else ""
    return [
        Panel(
            "attention_by_head",
            _heads(tables["attention"], thresholds),
            "Mean attention between different words of one topic over that between words of different topics, compared "
            "within documents, by block and head, one panel per threshold. White is 1. Dot: within the central 95% "
            "under random relabelling of the words.",
        ),
        Panel(
            "by_threshold",
            _by_threshold(tables["summary"], result.by_measure(), thresholds),
            "Same topic against different topic by ambiguity threshold: ratio (above) and difference (below), in the "
            f"token embedding matrix and in attention over all layers and heads.{dashed} Hatched: 95% under random "
            "relabelling, words of one topic only (for attention, only for the ratio). Axes fit the model's values; "
            "summary.csv has those outside them.",
        ),
        Panel(
            "by_layer",
            _by_layer(tables["layers"], thresholds),
            "Cosine of the words' mean hidden states by layer (0: the embedding), words of one topic only: same topic "
            f"over (left) and minus (right) different topic.{dashed}",
        ),
    ]


def _heads(table: pd.DataFrame, thresholds: Sequence[float]) -> Figure:
    layers, heads = sorted(set(table["layer"])), sorted(set(table["head"]))
    size = (max(2.2, 0.24 * len(heads)) + 0.8, max(1.6, 0.24 * len(layers)) + 0.85)
    figure, axes = subplots(2 * len(thresholds), len(thresholds), size=size, grid=None)
    ratios = table["ratio"].to_numpy(float)
    logs = np.abs(np.log(ratios[np.isfinite(ratios) & (ratios > 0)]))
    top = max(float(np.exp(np.quantile(logs, 0.98))) if len(logs) else 2.0, 1.1)
    norm = LogNorm(1 / top, top)  # half and double are as far from 1
    extent, image = (heads[0] - 0.5, heads[-1] + 0.5, layers[0] - 0.5, layers[-1] + 0.5), None
    for axis, (overlap, threshold) in zip(axes, product((False, True), thresholds), strict=True):
        part = table[(table["threshold"] == threshold) & (table["overlap"] == overlap)].sort_values(["layer", "head"])
        ratio, low, high = (
            part[name].to_numpy(float).reshape(len(layers), len(heads)) for name in ("ratio", "null_low", "null_high")
        )
        axis.set_title(f"{threshold:g}, {'with' if overlap else 'without'} overlap", fontsize=10)
        axis.set(xlim=extent[:2], ylim=extent[2:])
        axis.locator_params(integer=True)
        if np.isnan(ratio).all():
            axis.text(0.5, 0.5, "no pairs left", ha="center", va="center", transform=axis.transAxes, color="#5b6875")
            continue
        image = axis.imshow(ratio, cmap="RdBu_r", norm=norm, origin="lower", extent=extent, aspect="auto")
        y, x = np.nonzero((low <= ratio) & (ratio <= high))
        axis.plot(heads[0] + x, layers[0] + y, "o", color=_INK, mec="white", mew=0.6, ms=3.6)
    for axis in axes[:: len(thresholds)]:
        axis.set_ylabel("block")
    for axis in axes[len(thresholds) :]:
        axis.set_xlabel("head")
    if image is not None:
        bar = figure.colorbar(image, ax=axes, label="same topic / different topic", extend="both", shrink=0.8)
        ticks = [t for t in (0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10) if 1 / top <= t <= top]
        bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
        bar.minorticks_off()
    return figure


def _by_threshold(table: pd.DataFrame, measures: pd.DataFrame, thresholds: Sequence[float]) -> Figure:
    figure, axes = subplots(6, 3, size=(3.7, 2.8), sharex=True)
    titles = {"cosine": "cosine, token embeddings", "dot": "dot, token embeddings", "attention": "attention"}
    parts = {overlap: table[table["overlap"] == overlap].sort_values("threshold") for overlap in _OVERLAP}
    hollow: dict[bool, dict[str, Any]] = {False: {}, True: {"mfc": "none", "ms": 9}}  # visible if both coincide
    places, handles = range(len(thresholds)), dict[str, Any]()
    for axis, (suffix, name) in zip(axes, product(("", "_difference"), titles), strict=True):
        for overlap, (color, marker, label) in _OVERLAP.items():
            axis.plot(
                places, parts[overlap][f"{name}{suffix}"], color=color, marker=marker, label=label, **hollow[overlap]
            )
        axis.axhline(0 if suffix else 1, color=_INK, lw=0.7)
        axis.margins(y=0.25)
        limits = axis.get_ylim()
        if not suffix:
            axis.set_title(titles[name])
            low, high = (parts[False][f"{name}_null_{end}"].to_numpy(float) for end in ("low", "high"))
        else:
            measured = measures[~measures["overlap"] & (measures["measure"] == f"{name}, difference")]
            low, high = (measured.sort_values("threshold")[f"null_{end}"].to_numpy(float) for end in ("low", "high"))
        if len(low):
            chance_band(axis, list(places), low, high, label=CHANCE)
        for overlap, (color, marker, label) in _OVERLAP.items():
            if (column := f"{name}{suffix}_untrained") in table:
                axis.plot(places, parts[overlap][column], f"{marker}--", color=color, ms=4, label=f"{label}, untrained")
        axis.set_ylim(limits)
        axis.set_xticks(list(places), [f"{threshold:g}" for threshold in thresholds])
        handles.update(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    for axis in axes[3:]:
        axis.set_xlabel("ambiguity threshold")
    axes[0].set_ylabel("same / different topic")
    axes[3].set_ylabel("same minus different topic")
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _by_layer(table: pd.DataFrame, thresholds: Sequence[float]) -> Figure:
    figure, axes = subplots(2, size=(5, 3.8))
    colors = shades(len(thresholds))
    shown = (
        ("cosine_ratio", "cosine_untrained", 1, "same / different topic"),
        ("cosine_difference", "cosine_difference_untrained", 0, "same minus different topic"),
    )
    for axis, (measure, other, equal, title) in zip(axes, shown, strict=True):
        labels = []
        for threshold, color in zip(thresholds, colors, strict=True):
            part = table[(table["threshold"] == threshold) & ~table["overlap"]]
            if part[measure].isna().all():
                continue
            axis.plot(part["layer"], part[measure], color=color, marker="o", ms=4)
            labels.append((float(part[measure].iloc[-1]), f"threshold {threshold:g}", color))
            if other in part:
                axis.plot(part["layer"], part[other], color=color, ls="--", lw=1)
        axis.axhline(equal, color=_INK, lw=0.7)
        axis.set_ylabel(title)
        layer_axis(axis)
        direct_labels(axis, labels)
    return figure
