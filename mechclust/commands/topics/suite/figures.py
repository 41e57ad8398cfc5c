"""Figures of ``mechclust topics --suite``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from mechclust.commands.topics.suite.job import VECTORS
from mechclust.commands.topics.suite.result import ATTENTION, SuiteResult
from mechclust.report.analysis import Panel
from mechclust.report.style import BLUE, COLORS, GREEN, GREY, RED, plain_ticks, seed_curve, styled, subplots
from probes.store.files import file_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_INK = "#1d2733"
_VECTOR_STYLES: dict[str, dict[str, Any]] = {  # in the order of VECTORS: without self-pairs, and with them
    vectors: {"color": (BLUE, GREEN, RED)[i // 2], "marker": "o^"[i % 2], "ls": ("-", ":")[i % 2]}
    for i, vectors in enumerate(VECTORS)
}


@styled()
def suite_panels(result: SuiteResult) -> list[Panel]:
    """Attention by threshold, one map of heads per encoder, distance, and word vectors."""
    ratios, heads = result.tables["ratios"], result.tables["heads"]
    first = min(result.thresholds)
    found = [
        Panel(
            "attention",
            _attention(result, ratios),
            "Attention between words of one topic over that between words of different topics, within documents, by "
            "ambiguity threshold: "
            "as published (above) and at equal distance (below). Bars: 95% over documents and topic models. Crosses: "
            "published. Dashed grey: the same encoders with random weights.",
        )
    ]
    for name in result.trained:
        part = heads[(heads["model"] == name) & (heads["threshold"] == first) & ~heads["overlap"]]
        found.append(
            Panel(
                f"heads-{file_name(name)}",
                _heads(part),
                f"{name}: ratio by block and head at threshold {first:g}, words of one topic; over all pairs (left) "
                "and at equal distance. White is 1.",
            )
        )
    found.append(
        Panel(
            "distance",
            _distance(result),
            f"Mean attention over all heads by distance in tokens, threshold {first:g}, words of one topic; means "
            "over distances that differ by less than a quarter, and over topic models (band: minimum to maximum).",
        )
    )
    found.append(
        Panel(
            "vectors",
            _vectors(result, ratios),
            "Cosine within topics over cosine between them, words of one topic, for each way to take a word's vector; "
            "triangles: a word with itself counts as of one topic; crosses: published; hollow: random weights. "
            "Left out: negative ratios, and those of random weights whose interval contains 0.",
        )
    )
    return found


def _attention(result: SuiteResult, table: pd.DataFrame) -> Figure:
    figure, axes = subplots(4, 2, size=(5.2, 3.1), sharex=True, sharey="row")
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(result.trained)}
    places = np.arange(len(result.thresholds))
    for axis, (measure, overlap) in zip(axes, [(m, o) for m in ATTENTION for o in (False, True)], strict=True):
        part = table[(table["measure"] == measure) & (table["overlap"] == overlap)].sort_values("threshold")
        for i, (name, color) in enumerate(colors.items()):
            own = part[part["model"] == name]
            moved = places + 0.06 * (i - (len(colors) - 1) / 2)
            value = own["value"].to_numpy(float)
            ends = np.abs(own[["low", "high"]].to_numpy(float).T - value)
            axis.errorbar(moved, value, yerr=ends, color=color, marker="o", ms=4, lw=1.4, capsize=2, label=name)
            axis.plot(moved, own["published"], "x", color=color, ms=6)
            if "random_value" in own:
                axis.plot(moved, own["random_value"], ls="--", color=GREY, lw=0.9)
        axis.axhline(1, color=_INK, lw=0.7)
        axis.set_xticks(places, [f"{t:g}" for t in result.thresholds])
        axis.set_title(f"{measure}, {'may overlap' if overlap else 'no overlap'}", fontsize=10)
    for axis in axes[2:]:
        axis.set_xlabel("ambiguity threshold")
    for axis in axes[::2]:
        axis.set_ylabel("same / different topic")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False)
    return figure


def _heads(table: pd.DataFrame) -> Figure:
    layers, heads = sorted(set(table["layer"])), sorted(set(table["head"]))
    figure, axes = subplots(2, size=(max(2.6, 0.3 * len(heads)) + 0.9, max(1.8, 0.28 * len(layers)) + 0.7), grid=None)
    logs = np.abs(np.log(table[["ratio", "matched"]].to_numpy(float)))
    logs = logs[np.isfinite(logs)]
    top = max(float(np.exp(np.quantile(logs, 0.98))) if len(logs) else 2.0, 1.1)
    norm, image = LogNorm(1 / top, top), None
    extent = (heads[0] - 0.5, heads[-1] + 0.5, layers[0] - 0.5, layers[-1] + 0.5)
    for axis, (measure, title) in zip(axes, (("ratio", "all pairs"), ("matched", "at equal distance")), strict=True):
        grid = table.sort_values(["layer", "head"])[measure].to_numpy(float).reshape(len(layers), len(heads))
        axis.set(title=title, xlabel="head", xlim=extent[:2], ylim=extent[2:])
        axis.locator_params(integer=True)
        if np.isnan(grid).all():
            axis.text(0.5, 0.5, "no pairs", ha="center", va="center", transform=axis.transAxes, color="#5b6875")
            continue
        image = axis.imshow(grid, cmap="RdBu_r", norm=norm, origin="lower", extent=extent, aspect="auto")
    axes[0].set_ylabel("block")
    if image is not None:
        bar = figure.colorbar(image, ax=axes, label="same / different topic", extend="both")
        fine, coarse = (0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5), (0.1, 0.2, 0.5, 1, 2, 5, 10)
        ticks = [t for t in (fine if top < 2 else coarse) if 1 / top <= t <= top]
        bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
        bar.minorticks_off()
    return figure


def _distance(result: SuiteResult) -> Figure:
    figure, axes = _grid(len(result.trained))
    for axis, (name, measured) in zip(axes, result.trained.items(), strict=True):
        found = measured.attention
        places = [(float(t), bool(o)) for t, o in found.metadata["variants"]]
        curves = found["by_distance"][:, places.index((min(result.thresholds), False))].numpy()  # [seed kind distance]
        x, curves = _binned(np.array([int(d) for d in found.coords["distance"]]), curves)
        for k, (label, color) in enumerate((("same topic", RED), ("different topic", BLUE))):
            if (known := np.isfinite(curves[:, k]).all(axis=0)).any():
                seed_curve(axis, x[known], curves[:, k][:, known], color=color, lw=1.3, label=label)
        axis.set(title=name, xscale="log", xlabel="distance in tokens")
        if np.nanmax(np.append(curves, 0.0)) > 0:
            axis.set_yscale("log")
    axes[0].set_ylabel("mean attention")
    axes[0].legend(frameon=False, fontsize=8.5)
    return figure


def _binned(distances: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over distances in bins, of which each begins at least a quarter farther than the one before.

    Example:
        >>> x, means = _binned(np.arange(1, 8), np.arange(1.0, 8)[None])
        >>> x.tolist(), means.tolist()
        ([1.0, 2.0, 3.0, 4.0, 5.5, 7.0], [[1.0, 2.0, 3.0, 4.0, 5.5, 7.0]])
    """
    starts = [0]
    for i, distance in enumerate(distances):
        if distance >= 1.25 * distances[starts[-1]] and i > starts[-1]:
            starts.append(i)
    bins = np.split(np.arange(len(distances)), starts[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no pair at any distance of a bin
        means = np.stack([np.nanmean(values[..., own], axis=-1) for own in bins], axis=-1)
    return np.array([distances[own].mean() for own in bins]), means


def _vectors(result: SuiteResult, table: pd.DataFrame) -> Figure:
    figure, axes = _grid(len(result.trained))
    places = np.arange(len(result.thresholds))
    for axis, name in zip(axes, result.trained, strict=True):
        of = table[(table["model"] == name) & ~table["overlap"]].sort_values("threshold")
        for vectors, style in _VECTOR_STYLES.items():
            own = of[of["measure"] == f"cosine, {vectors}"]
            value = own["value"].where(own["value"] > 0)
            axis.plot(places, value, ms=4, label=vectors, **style)
            if "random_value" in own:
                random = own["random_value"].where(own["random_low"] > 0)
                axis.plot(places, random, ms=5, mfc="none", **(style | {"ls": ""}))
        axis.plot(places, of[of["measure"] == "cosine, rows"]["published"], "x", color=_INK, ms=7)
        axis.axhline(1, color=_INK, lw=0.7)
        axis.set(title=name, yscale="log", xlabel="ambiguity threshold")
        axis.set_xticks(places, [f"{t:g}" for t in result.thresholds])
        plain_ticks(axis)
    axes[0].set_ylabel("cosine, same / different topic")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3 if len(axes) > 1 else 2, frameon=False)
    return figure


def _grid(n: int) -> tuple[Figure, Sequence[Axes]]:
    return subplots(n, min(n, 3), size=(4.4, 3.0))
