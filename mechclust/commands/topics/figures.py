"""Figures of ``mechclust topics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from mechclust.commands.topics.head_maps import MAP_TITLES, draw_head_maps
from mechclust.commands.topics.measurements import Measurements
from mechclust.commands.topics.tables import ATTENTION, first_threshold, vector_ratios
from mechclust.commands.topics.vectors import VECTORS
from mechclust.report.axes import plain_ticks
from mechclust.report.panel import Panel
from mechclust.report.style import BLUE, COLORS, GREEN, GREY, RED, TEXT, styled
from mechclust.report.subplots import subplots
from probes.store.file_names import file_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_VECTOR_STYLES: dict[str, dict[str, Any]] = {  # in the order of VECTORS: without self-pairs, and with them
    vectors: {"color": color, "marker": marker, "ls": line}
    for vectors, (color, (marker, line)) in zip(
        VECTORS, product((BLUE, GREEN, RED), (("o", "-"), ("^", ":"))), strict=True
    )
}


@styled()
def topics_panels(result: Measurements, tables: Mapping[str, pd.DataFrame]) -> list[Panel]:
    """Draw attention by threshold, one map of heads per model, and word vectors.

    Args:
        result: the measurements.
        tables: as ``TopicsResult.tables``.
    """
    ratios = tables["ratios"]
    first = first_threshold(ratios)
    has_copies = any(result.twins.values())
    has_published = bool(ratios["published"].notna().any())
    topic_models = " and topic models" if len(result.texts.fitted.seeds) > 1 else ""
    attention_marks = " Crosses: published." if has_published else ""
    vector_marks = "; crosses: published" if has_published else ""
    left_out = "negative ratios"
    if has_copies:
        attention_marks += " Dashed grey: the same architectures with random weights."
        vector_marks += "; hollow: random weights"
        left_out += ", and those of random weights whose interval contains 0"
    return [
        Panel(
            "attention",
            _attention(result, ratios),
            "Attention between words of one topic over that between words of different topics, within documents, by "
            "ambiguity threshold: over all pairs (above) and at equal distance (below). Bars: 95% over "
            f"documents{topic_models}.{attention_marks}",
        ),
        *(_heads_panel(name, result.labels[name], tables["heads"], first) for name in result.trained),
        Panel(
            "vectors",
            _vectors(result, ratios),
            "Cosine within topics over cosine between them, words of one topic, for each way to take a word's vector; "
            f"triangles: a word with itself counts as of one topic{vector_marks}. Left out: {left_out}.",
        ),
    ]


def _attention(result: Measurements, table: pd.DataFrame) -> Figure:
    figure, axes = subplots(4, 2, size=(5.2, 2.3), sharex=True, sharey="row")
    for axis, (measure, overlap) in zip(axes, product(ATTENTION, (False, True)), strict=True):
        part = table[(table["measure"] == measure) & (table["overlap"] == overlap)].sort_values("threshold")
        _draw_models(axis, result, part)
        axis.axhline(1, color=TEXT, lw=0.7)
        _threshold_ticks(axis, result.thresholds)
        axis.set_title(f"{measure}, {'may overlap' if overlap else 'no overlap'}", fontsize=10)
    for axis in axes[2:]:
        axis.set_xlabel("ambiguity threshold")
    for axis in axes[::2]:
        axis.set_ylabel("same / different topic")
    _shared_legend(figure, axes[0], 5)
    return figure


def _draw_models(axis: Axes, result: Measurements, table: pd.DataFrame) -> None:
    """Draw each model's ratio by threshold with its interval, a little to the side of the others'."""
    for i, name in enumerate(result.trained):
        of_model = table[table["model"] == name]
        color = COLORS[i % len(COLORS)]
        places = np.arange(len(of_model)) + 0.06 * (i - (len(result.trained) - 1) / 2)
        value = of_model["value"].to_numpy(float)
        lengths = np.abs(of_model[["low", "high"]].to_numpy(float).T - value)
        label = result.labels[name]
        axis.errorbar(places, value, yerr=lengths, color=color, marker="o", ms=4, lw=1.4, capsize=2, label=label)
        axis.plot(places, of_model["published"], "x", color=color, ms=6)
        if "random_value" in of_model:
            marker = "_" if of_model["random_value"].notna().sum() == 1 else ""  # a single place has no line
            axis.plot(places, of_model["random_value"], ls="--", marker=marker, ms=14, color=GREY, lw=0.9)


def _heads_panel(name: str, label: str, heads: pd.DataFrame, threshold: float) -> Panel:
    table = heads[(heads["model"] == name) & (heads["threshold"] == threshold) & ~heads["overlap"]]
    undefined = table[list(MAP_TITLES)].isna()
    grey = ", grey undefined" if (undefined.any() & ~undefined.all()).any() else ""
    return Panel(
        f"heads-{file_name(name)}",
        draw_head_maps(table),
        f"{label}: ratio by block and head at threshold {threshold:g}, words of one topic; over all pairs (left) and "
        f"at equal distance. White is 1{grey}.",
    )


def _vectors(result: Measurements, table: pd.DataFrame) -> Figure:
    n_models = len(result.trained)
    figure, axes = subplots(n_models, min(n_models, 3), size=(4.4, 3.0))
    places = np.arange(len(result.thresholds))
    cosines = vector_ratios(table[~table["overlap"]], "cosine").sort_values("threshold")
    for axis, name in zip(axes, result.trained, strict=True):
        of_model = cosines[cosines["model"] == name]
        for vectors, style in _VECTOR_STYLES.items():
            cosine = of_model[of_model["measure"] == vectors]
            axis.plot(places, cosine["value"].where(cosine["value"] > 0), ms=4, label=vectors, **style)
            if "random_value" in cosine:
                random = cosine["random_value"].where(cosine["random_low"] > 0)
                axis.plot(places, random, ms=5, mfc="none", **(style | {"ls": ""}))
        rows = of_model[of_model["measure"] == "rows"]
        axis.plot(places, rows["published"], "x", color=TEXT, ms=7)
        axis.axhline(1, color=TEXT, lw=0.7)
        axis.set(title=result.labels[name], yscale="log", xlabel="ambiguity threshold")
        _threshold_ticks(axis, result.thresholds)
        plain_ticks(axis)
    axes[0].set_ylabel("cosine, same / different topic")
    _shared_legend(figure, axes[0], 3 if n_models > 1 else 2)
    return figure


def _threshold_ticks(axis: Axes, thresholds: Sequence[float]) -> None:
    axis.set_xticks(range(len(thresholds)), [f"{threshold:g}" for threshold in thresholds])


def _shared_legend(figure: Figure, axis: Axes, columns: int) -> None:
    """Draw one panel's legend below all of them."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False)
