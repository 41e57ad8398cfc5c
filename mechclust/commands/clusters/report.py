"""The report of ``mechclust clusters``: its page, figure and table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.commands.clusters.result import ClustersResult
from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.report.page import write_report
from mechclust.report.text import short_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_clusters_report(result: ClustersResult, out: str | Path) -> Path:
    """Write ``clusters.csv``, the probe results, the figure and ``report.html`` into ``out``.

    Raises:
        InputError: when ``out`` cannot be written.
    """
    table = result.to_dataframe()
    caption = (
        "Adjusted Rand index between k-means clusters of the hidden states and the labels, by layer "
        "(0: the embedding). Grey: 95% of the index under random relabelling."
    )
    if result.untrained:
        caption += " Dashed: the same architecture, untrained (random weights)."
    return write_report(
        out,
        title=f"Task clusters in {short_name(result.model)}",
        source=f"Model: {result.model}. Prompts: {result.config.prompts}",
        analysis=Analysis(
            panels=[Panel("ari_by_layer", _figure(result), caption)],
            views={"ARI by layer": table_html(table, number=".3f", missing="–")},
            notes=[*result.sentences, *result.notes],
        ),
        config={"model": result.model, **vars(result.config)},
        results={"trained": result.trained, **{f"untrained-seed{i}": r for i, r in enumerate(result.untrained)}},
        tables={"clusters": table},
    )


def _figure(result: ClustersResult) -> Figure:
    from mechclust.report.style import BLUE, RED, layer_axis, subplots

    labels = result.trained.coords["label"]
    figure, axes = subplots(len(labels), size=(5.2, 3.8), sharey=True)
    layers = [result.trained.layers[site] for site in result.trained.coords["site"]]
    for axis, label in zip(axes, labels, strict=True):
        low, high = (result.trained.sel(m, label=label).numpy() for m in ("null_low", "null_high"))
        axis.fill_between(layers, low, high, color="#bbbbbb", alpha=0.6, lw=0, label="chance (95%)")
        axis.plot(layers, result.trained.sel("ari", label=label), marker="o", color=BLUE, label="this model")
        for i, untrained in enumerate(result.untrained):
            name = None if i else "untrained"
            axis.plot(layers, untrained.sel("ari", label=label), ls="--", color=RED, label=name)
        axis.set_title(f"against {label!r}")
        layer_axis(axis)
        axis.legend(frameon=False)
    axes[0].set_ylabel("adjusted Rand index")
    bottom, top = axes[0].get_ylim()  # of all: they share it
    axes[0].set_ylim(min(-0.05, bottom), min(1.03, max(0.2, top)))
    return figure
