"""Figures of ``mechclust topics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.commands.topics.head_maps import as_map, draw_head_maps
from mechclust.report.axes import direct_labels, layer_axis, plot_chance_band
from mechclust.report.panel import Panel
from mechclust.report.style import BLUE, CHANCE, RED, TEXT, layer_shades, styled
from mechclust.report.subplots import subplots

if TYPE_CHECKING:
    import pandas as pd

_OVERLAP_STYLES: dict[bool, dict[str, Any]] = {
    False: {"color": BLUE, "marker": "o", "label": "words of one topic only"},
    True: {"color": RED, "marker": "s", "label": "words of several topics too"},
}
_BAR: dict[str, Any] = {"lw": 1.2, "alpha": 0.7}
_HOLLOW: dict[bool, dict[str, Any]] = {False: {}, True: {"mfc": "none", "ms": 9}}  # visible if both coincide
_TITLES = {"cosine": "cosine, token embeddings", "dot": "dot, token embeddings", "attention": "attention"}
_LAYER_MEASURES = (
    ("cosine_ratio", "cosine_untrained", 1, "same / different topic"),
    ("cosine_difference", "cosine_difference_untrained", 0, "same minus different topic"),
)


@styled()
def topics_panels(tables: Mapping[str, pd.DataFrame], measures: pd.DataFrame) -> list[Panel]:
    """Draw the figures, in the report's order.

    Args:
        tables: as ``TopicsResult.tables``.
        measures: as ``TopicsResult.by_measure``.
    """
    thresholds = sorted(set(tables["summary"]["threshold"]))
    dashed = " Dashed: the same architecture, untrained (random weights)." if "untrained" in measures else ""
    bars = " Bars: 95% intervals over documents." if "ratio_low" in tables["attention"] else ""
    return [
        Panel(
            "by_threshold",
            _by_threshold(tables["summary"], measures, thresholds),
            "Same topic against different topic by ambiguity threshold: ratio (above) and difference (below), in the "
            f"token embedding matrix and in attention over all layers and heads.{dashed} Hatched: 95% under random "
            f"relabelling, words of one topic only (for attention, only for the ratio).{bars} Axes fit the model's "
            "values; summary.csv has those outside them.",
        ),
        Panel(
            "attention_by_head",
            _heads(tables["attention"], thresholds),
            "Mean attention between different words of one topic over that between words of different topics, compared "
            "within documents, by block and head, one panel per threshold. White is 1. Dot: within the central 95% "
            "under random relabelling of the words.",
        ),
        Panel(
            "by_layer",
            _by_layer(tables["layers"], thresholds),
            "Cosine of the words' mean hidden states by layer (0: the embedding), words of one topic only: same topic "
            f"over (left) and minus (right) different topic.{dashed}",
        ),
    ]


def _heads(table: pd.DataFrame, thresholds: Sequence[float]) -> Figure:
    parts = [
        table[(table["threshold"] == threshold) & (table["overlap"] == overlap)]
        for overlap, threshold in product((False, True), thresholds)
    ]
    titles = [
        f"{threshold:g}, {'with' if overlap else 'without'} overlap"
        for overlap, threshold in product((False, True), thresholds)
    ]
    figure, axes = draw_head_maps(titles, [as_map(part, "ratio") for part in parts], table, len(thresholds))
    for axis, part in zip(axes, parts, strict=True):
        by_chance = part[part["ratio"].between(part["null_low"], part["null_high"])]
        axis.plot(by_chance["head"], by_chance["layer"], "o", color=TEXT, mec="white", mew=0.6, ms=3.6)
    return figure


def _by_threshold(table: pd.DataFrame, measures: pd.DataFrame, thresholds: Sequence[float]) -> Figure:
    figure, axes = subplots(6, 3, size=(3.7, 2.3), sharex=True)
    handles: dict[str, Any] = {}
    for axis, (suffix, name) in zip(axes, product(("", "_difference"), _TITLES), strict=True):
        _draw_measure(axis, table, measures, name, suffix)
        axis.set_xticks(range(len(thresholds)), [f"{threshold:g}" for threshold in thresholds])
        lines, labels = axis.get_legend_handles_labels()
        handles |= dict(zip(labels, lines, strict=True))
    for axis, title in zip(axes[:3], _TITLES.values(), strict=True):
        axis.set_title(title)
    for axis in axes[3:]:
        axis.set_xlabel("ambiguity threshold")
    axes[0].set_ylabel("same / different topic")
    axes[3].set_ylabel("same minus different topic")
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_measure(axis: Axes, table: pd.DataFrame, measures: pd.DataFrame, name: str, suffix: str) -> None:
    """Draw a ratio, or with a suffix a difference, with chance and untrained models, on axes that fit the values."""
    parts = {overlap: table[table["overlap"] == overlap].sort_values("threshold") for overlap in _OVERLAP_STYLES}
    column = f"{name}{suffix}"
    places = range(len(parts[False]))
    for overlap, style in _OVERLAP_STYLES.items():
        axis.plot(places, parts[overlap][column], **style, **_HOLLOW[overlap])
        if f"{column}_low" in table:
            low, high = (parts[overlap][f"{column}_{end}"] for end in ("low", "high"))
            axis.vlines(places, low, high, color=style["color"], **_BAR)
    axis.axhline(0 if suffix else 1, color=TEXT, lw=0.7)
    axis.margins(y=0.25)
    limits = axis.get_ylim()
    ends = [parts[False][f"{name}_null_{end}"] for end in ("low", "high")]
    if suffix:
        is_measure = ~measures["overlap"] & (measures["measure"] == f"{name}, difference")
        chance = measures[is_measure].sort_values("threshold")
        ends = [chance["null_low"], chance["null_high"]]
    if len(ends[0]):
        low, high = (end.to_numpy(float) for end in ends)
        plot_chance_band(axis, list(places), low, high, label=CHANCE)
    for overlap, style in _OVERLAP_STYLES.items():
        if f"{column}_untrained" in table:
            label = f"{style['label']}, untrained"
            axis.plot(places, parts[overlap][f"{column}_untrained"], ls="--", ms=4, **{**style, "label": label})
    axis.set_ylim(limits)


def _by_layer(table: pd.DataFrame, thresholds: Sequence[float]) -> Figure:
    figure, axes = subplots(2, size=(5, 3.8))
    colors = layer_shades(len(thresholds))
    for axis, (measure, untrained, even, title) in zip(axes, _LAYER_MEASURES, strict=True):
        labels = []
        for threshold, color in zip(thresholds, colors, strict=True):
            part = table[(table["threshold"] == threshold) & ~table["overlap"]]
            if part[measure].isna().all():
                continue
            axis.plot(part["layer"], part[measure], color=color, marker="o", ms=4)
            labels.append((float(part[measure].iloc[-1]), f"threshold {threshold:g}", color))
            if untrained in part:
                axis.plot(part["layer"], part[untrained], color=color, ls="--", lw=1)
        axis.axhline(even, color=TEXT, lw=0.7)
        axis.set_ylabel(title)
        layer_axis(axis)
        direct_labels(axis, labels)
    return figure
