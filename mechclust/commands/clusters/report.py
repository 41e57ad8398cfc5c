"""The report of ``mechclust clusters``: its page, figures, map and tables."""

from __future__ import annotations

from pathlib import Path

from mechclust.commands.clusters.figures import curves_figure, followed_figure
from mechclust.commands.clusters.result import ClustersResult
from mechclust.commands.folder import own_folder
from mechclust.report.analysis import Analysis, Panel
from mechclust.report.html import table_html
from mechclust.report.page import write_report
from mechclust.report.prompt_map import CLUSTER, prompt_map
from mechclust.report.text import short_name
from probes import ProbeResult


def write_clusters_report(result: ClustersResult, out: str | Path) -> Path:
    """Write ``clusters.csv``, ``features.csv``, the probe results, the figures and ``report.html`` into ``out``.

    Raises:
        InputError: when ``out`` cannot be written, or holds the report of another command.

    Example:
        >>> write_clusters_report(result, "runs/clusters")  # doctest: +SKIP
    """
    with own_folder(out, "clusters"):
        return _write(result, out)


def results_of(result: ClustersResult) -> dict[str, ProbeResult]:
    """What was measured, by name."""
    models = {"trained": result.trained, **{f"untrained-seed{i}": m for i, m in enumerate(result.untrained)}}
    return {f"{name}/{measure}": found for name, curves in models.items() for measure, found in curves.by_name.items()}


def _write(result: ClustersResult, out: str | Path) -> Path:
    numbers = {"number": ".3f", "missing": "–"}
    return write_report(
        out,
        command="clusters",
        title=f"What the hidden states of {short_name(result.model)} cluster by",
        source=f"Model: {result.model}. Prompts: {result.config.prompts}",
        analysis=Analysis(
            lead=result.lead,
            panels=_panels(result),
            views=_views(result),
            folded={
                "By layer": table_html(result.shown_table, **numbers),
                "Agreement of the clusters with labels and surface features": table_html(result.features, **numbers),
            },
            notes=[*result.sentences[len(result.lead) :], *result.notes],
        ),
        config={"model": result.model, **vars(result.config)},
        results=results_of(result),
        tables={"clusters": result.to_dataframe(), "features": result.features},
    )


def _panels(result: ClustersResult) -> list[Panel]:
    from mechclust.report.style import styled  # loads matplotlib

    caption = (
        "By layer (0: the embedding). Blue: adjusted Rand index between k-means clusters of the hidden states and the "
        "labels."
    )
    if result.given is not None:
        given = result.followed.called(result.given)
        caption += f" Orange: the same after subtracting the mean state of each value of {given}."
    if result.trained.linear is not None:
        caption += (
            " Green: held-out accuracy of a linear classifier, with its 95% interval over prompts; nothing was "
            "subtracted."
        )
    caption += " Hatched: the 95% range of chance."
    if result.untrained:
        n = len(result.untrained)
        caption += f" Dashed: the same architecture with random weights, mean of {n} (shaded: to the highest)."
    with styled():
        panels = [Panel("curves_by_layer", curves_figure(result), caption)]
        followed = followed_figure(result) if result.followed.means else None
    if followed is not None:
        panels.append(
            Panel(
                "what_clusters_follow",
                followed,
                "What the clusters follow: adjusted mutual information of the clusters with the file's labels and with "
                "surface features of the prompts, by layer. 1: the same partition; 0: chance.",
            )
        )
    return panels


def _views(result: ClustersResult) -> dict[str, str]:
    shown = result.shown
    if shown is None:
        return {}
    labels = result.trained.raw.coords["label"]
    best = result.followed.best(labels)
    first = [best] if best is not None else []
    names = list(dict.fromkeys([*first, *labels, *result.followed.means, *result.values]))
    table = result.followed.table
    start = None
    if best is not None:
        table = table[(table["name"] == best) & (table["layer"] > 0)].dropna(subset="ami").reset_index(drop=True)
    if len(table) and best is not None:
        start = int(table.loc[table["ami"].idxmax(), "layer"])
    html = prompt_map(
        {short_name(result.model): shown.planes},
        shown.layers,
        shown.texts,
        {_told_apart(name): [result.values[name][i] for i in shown.places] for name in names},
        clusters=shown.clusters,
        start=start,
        variance={short_name(result.model): shown.variance.tolist()},
    )
    of = len(result.values["task"])
    some = "" if len(shown.places) == of else f", {len(shown.places)} of {of}"
    return {f"The prompts at each layer{some}": html}


def _told_apart(name: str) -> str:
    """A label as the map calls it, which has a colouring of its own."""
    return f"{name} (label)" if name == CLUSTER else name
