"""Tables, figures and page of ``mechclust topics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from mechclust.commands.topics.result import TopicsResult
from mechclust.report.analysis import Analysis, Panel

if TYPE_CHECKING:
    import pandas as pd

_CHANCE = "#bbbbbb"
_OVERLAP = {False: ("#1b6ca8", "o", "words of one topic only"), True: ("#c8553d", "s", "words of several topics too")}


def analyse(result: TopicsResult, tables: Mapping[str, pd.DataFrame], documents: str) -> Analysis:
    """Figures, tables and notes.

    Args:
        result: what was measured.
        tables: its ``summary``, ``attention``, ``layers`` and ``topics``.
        documents: what a document is, in words.
    """
    return Analysis(
        claims=[], panels=_panels(result, tables), views=_views(result, tables), notes=_notes(result, documents)
    )


def topics_table(result: TopicsResult) -> pd.DataFrame:
    """One row a topic, the largest first: its share of the corpus and its likeliest words."""
    import pandas as pd

    shares = result.topics.shares
    rows = [
        {"topic": i, "share": float("nan") if shares is None else float(shares[i]), "likeliest words": ", ".join(words)}
        for i, words in enumerate(result.topics.top_words(10))
    ]
    return pd.DataFrame(rows).sort_values("share", ascending=False, kind="stable")


def _views(result: TopicsResult, tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    summary, heads = tables["summary"], tables["attention"]

    def html(table: pd.DataFrame, form: str = ".3f") -> str:
        return str(table.to_html(index=False, float_format=lambda x: f"{x:{form}}", na_rep="–", border=0))

    def part(suffix: str) -> pd.DataFrame:
        rename, columns = {}, ["threshold", "overlap", *(["topics", "words"] if not suffix else [])]
        for name in ("cosine", "dot", "attention"):
            for column, title in ((f"{name}{suffix}", name), (f"{name}{suffix}_untrained", "random")):
                if column in summary:
                    columns.append(column)
                    rename[column] = title
        table = summary[columns].rename(columns=rename)
        return table.assign(threshold=table["threshold"].map("{:g}".format), overlap=table["overlap"].map(_YES))

    best = heads[heads["ratio"].notna() & ~heads["overlap"]]
    if not len(best):
        best = heads[heads["ratio"].notna()]
    if len(best):
        first = best.iloc[0]
        best = best[(best["threshold"] == first["threshold"]) & (best["overlap"] == first["overlap"])]
    columns = ["layer", "head", "same_topic", "different_topic", "ratio", "null_low", "null_high", "p_value"]
    columns += ["untrained"] * bool(result.untrained)
    where = f"threshold {first['threshold']:g}" if len(best) else "none"
    return {
        "Same topic / different topic": html(part("")),
        "Same topic minus different topic": html(part("_difference"), ".2g"),
        f"The ten heads with the highest ratio ({where})": html(
            best.sort_values("ratio", ascending=False)[columns].head(10), ".4f"
        ),
        "Topics": html(tables["topics"]),
    }


_YES = {True: "with", False: "without"}


def _notes(result: TopicsResult, documents: str) -> list[str]:
    return [
        f"{result.n_documents} documents ({documents}) of {result.n_files} file{'s' * (result.n_files != 1)}; "
        f"{result.topics.n_topics} topics over {len(result.topics.words)} words; the model was measured on "
        f"{result.encoded.n_documents} documents.",
        *result.notes(),
        "Case is ignored: several token ids can be the same word; its row of the embedding matrix is its most frequent "
        "token's.",
        "Cosine and dot product: rows of the token embedding matrix, over all pairs of different words. A ratio "
        "divides by the mean of different-topic pairs; where that is near 0, as with random embeddings, the ratio "
        "says little and the difference counts.",
    ]


def _panels(result: TopicsResult, tables: Mapping[str, pd.DataFrame]) -> list[Panel]:
    thresholds = sorted({variant.threshold for variant in result.variants})
    dashed = " Dashed: the same architecture with random weights." if result.untrained else ""
    return [
        Panel(
            "attention_by_head",
            _heads(tables["attention"], thresholds),
            "Mean attention between different words of one topic over that between words of different topics, by "
            "layer and head, a panel a threshold. White is 1. A dot: within the central 95% under random relabelling "
            "of the words.",
        ),
        Panel(
            "by_threshold",
            _by_threshold(tables["summary"], thresholds),
            "Same topic against different topic by ambiguity threshold: ratio (above) and difference (below), in the "
            f"token embedding matrix and in attention over all layers and heads.{dashed} Grey: 95% under random "
            "relabelling, words of one topic only. Axes fit the model's own values; summary.csv has what leaves them.",
        ),
        Panel(
            "by_layer",
            _by_layer(tables["layers"], thresholds),
            "Cosine of the words' mean hidden states by layer (0: the embedding), words of one topic only: same topic "
            f"over (left) and minus (right) different topic.{dashed}",
        ),
    ]


def _rows(table: pd.DataFrame, threshold: float, overlap: bool) -> pd.DataFrame:
    return table[(table["threshold"] == threshold) & (table["overlap"] == overlap)]


def _heads(table: pd.DataFrame, thresholds: Sequence[float]) -> Figure:
    layers, heads = sorted(set(table["layer"])), sorted(set(table["head"]))
    width, height = max(2.2, 0.24 * len(heads)), max(1.6, 0.24 * len(layers))
    figure = Figure(figsize=(len(thresholds) * (width + 0.5) + 1.0, 2 * (height + 0.7) + 0.3), layout="constrained")
    ratios = table["ratio"].to_numpy(float)
    logs = np.abs(np.log(ratios[np.isfinite(ratios) & (ratios > 0)]))
    top = max(float(np.exp(np.quantile(logs, 0.98))) if len(logs) else 2.0, 1.1)
    norm = LogNorm(1 / top, top)  # half and double are as far from 1
    axes, image = figure.subplots(2, len(thresholds), squeeze=False), None
    for row, overlap in enumerate((False, True)):
        for axis, threshold in zip(axes[row], thresholds, strict=True):
            part = _rows(table, threshold, overlap).sort_values(["layer", "head"])
            grid = {
                k: part[k].to_numpy(float).reshape(len(layers), len(heads)) for k in ("ratio", "null_low", "null_high")
            }
            extent = (heads[0] - 0.5, heads[-1] + 0.5, layers[0] - 0.5, layers[-1] + 0.5)
            axis.set(title=f"{threshold:g}, {_YES[overlap]} overlap", xlim=extent[:2], ylim=extent[2:])
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.yaxis.get_major_locator().set_params(integer=True)
            axis.title.set_fontsize(10)
            if np.isnan(grid["ratio"]).all():
                axis.text(
                    0.5, 0.5, "no pairs left", ha="center", va="center", transform=axis.transAxes, color="#5b6875"
                )
                continue
            image = axis.imshow(grid["ratio"], cmap="RdBu_r", norm=norm, origin="lower", extent=extent, aspect="auto")
            where = np.argwhere((grid["null_low"] <= grid["ratio"]) & (grid["ratio"] <= grid["null_high"]))
            axis.plot(
                heads[0] + where[:, 1], layers[0] + where[:, 0], "o", color="#1d2733", mec="white", mew=0.6, ms=3.6
            )
    for axis in axes[:, 0]:
        axis.set_ylabel("layer")
    for axis in axes[-1]:
        axis.set_xlabel("head")
    if image is not None:
        bar = figure.colorbar(image, ax=axes, label="same topic / different topic", extend="both", shrink=0.8)
        ticks = [t for t in (0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10) if 1 / top <= t <= top]
        bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
        bar.minorticks_off()
    return figure


def _by_threshold(table: pd.DataFrame, thresholds: Sequence[float]) -> Figure:
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    axes, places = figure.subplots(2, 3, sharex=True), range(len(thresholds))
    handles: dict[str, Any] = {}
    for column, name in enumerate(("cosine", "dot", "attention")):
        for row, suffix in enumerate(("", "_difference")):
            axis = axes[row, column]
            for overlap, (color, marker, label) in _OVERLAP.items():
                part = table[table["overlap"] == overlap].sort_values("threshold")
                axis.plot(places, part[f"{name}{suffix}"], color=color, marker=marker, label=label)
            axis.axhline(1 - row, color="#1d2733", lw=0.7)
            axis.margins(y=0.25)
            limits = axis.get_ylim()
            for overlap, (color, marker, label) in _OVERLAP.items():
                part = table[table["overlap"] == overlap].sort_values("threshold")
                if not row and not overlap:
                    chance = (part[f"{name}_null_low"].to_numpy(float), part[f"{name}_null_high"].to_numpy(float))
                    axis.fill_between(places, *chance, color=_CHANCE, alpha=0.5, lw=0, label="chance (95%)")
                if f"{name}{suffix}_untrained" in part:
                    values, label = part[f"{name}{suffix}_untrained"], f"{label}, random weights"
                    axis.plot(places, values, color=color, marker=marker, ms=4, ls="--", label=label)
            axis.set_ylim(limits)
            axis.grid(alpha=0.25)
            axis.set_xticks(list(places), [f"{threshold:g}" for threshold in thresholds])
            handles.update(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        axes[0, column].set_title({"attention": "attention"}.get(name, f"{name}, token embeddings"))
        axes[1, column].set_xlabel("ambiguity threshold")
    axes[0, 0].set_ylabel("same / different topic")
    axes[1, 0].set_ylabel("same minus different topic")
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _by_layer(table: pd.DataFrame, thresholds: Sequence[float]) -> Figure:
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    colors = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.8, len(thresholds)))
    for axis, (measure, other, title) in zip(
        figure.subplots(1, 2),
        (
            ("cosine_ratio", "cosine_untrained", "same / different topic"),
            ("cosine_difference", "cosine_difference_untrained", "same minus different topic"),
        ),
        strict=True,
    ):
        for threshold, color in zip(thresholds, colors, strict=True):
            part = _rows(table, threshold, False)
            if part[measure].isna().all():
                continue
            axis.plot(part["layer"], part[measure], color=color, marker="o", ms=4, label=f"{threshold:g}")
            if other in part:
                axis.plot(part["layer"], part[other], color=color, ls="--", lw=1)
        axis.axhline(float(measure == "cosine_ratio"), color="#1d2733", lw=0.7)
        axis.set(xlabel="layer", ylabel=title)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, title="threshold", loc="outside right center", frameon=False)
    return figure
