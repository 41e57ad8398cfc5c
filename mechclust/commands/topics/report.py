"""The report of ``mechclust topics``: its page, figures and tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.commands.folder import own_folder
from mechclust.commands.topics.result import TopicsResult
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.page import write_report
from mechclust.report.text import number_format, short_name
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

SHARDS = "shards"  # what workers have measured so far, until the report is written


def write_topics_report(result: TopicsResult, out: str | Path) -> Path:
    """Write ``summary.csv``, ``attention.csv``, ``layers.csv``, ``topics.csv``, the probe results, the figures
    and ``report.html`` into ``out``.

    Raises:
        InputError: when ``out`` cannot be written, or holds the report of another command.

    Example:
        >>> write_topics_report(result, "runs/topics")  # doctest: +SKIP
    """
    out = Path(out)
    with own_folder(out, "topics"):
        page = _write(result, out)
        shutil.rmtree(out / SHARDS, ignore_errors=True)
    return page


def results_of(result: TopicsResult) -> dict[str, ProbeResult]:
    """What was measured, by name."""
    models = {"trained": result.trained, **{f"untrained-seed{i}": m for i, m in enumerate(result.untrained)}}
    return {
        f"{name}/{kind}-{variant.name}": found
        for name, measures in models.items()
        for kind, results in vars(measures).items()
        for variant, found in zip(result.variants, results, strict=True)
        if found is not None
    }


def _write(result: TopicsResult, out: Path) -> Path:
    return write_report(
        out,
        command="topics",
        title=f"Topic structure in {short_name(result.model)}",
        source=f"Model: {result.model}. Corpus: {', '.join(map(str, result.config.corpus))}",
        analysis=topics_analysis(result),
        config={"model": result.model, **vars(result.config)},
        results=results_of(result),
        tables=result.tables,
    )


def topics_analysis(result: TopicsResult) -> Analysis:
    """Figures, tables and notes."""
    from mechclust.commands.topics.figures import topics_panels

    n, topics = result.n_files, result.topics
    measured = (
        f"{result.n_documents} documents (of text files: {result.config.documents}) of {n} file{'s' * (n != 1)}; "
        f"{topics.n_topics} topics over {len(topics.words)} words; the model was measured on "
        f"{result.encoded.n_documents} documents."
    )
    return Analysis(
        panels=topics_panels(result), views=_views(result), notes=[*result.sentences, measured, *_CHANCE, *result.notes]
    )


_CHANCE = [
    "Chance: central 95% of the value when topics are reassigned to words at random; p: the share of such "
    "relabellings that are at least as high. Above chance: p of at most 0.05, corrected for the number of comparisons "
    "(Benjamini-Hochberg: on average, at most 5% of those named are there by chance).",
]


def shown_measures(result: TopicsResult) -> pd.DataFrame:
    """``TopicsResult.by_measure`` as printed: each value with its chance interval and p."""
    table, number = result.by_measure(), number_format(".3g")
    ends = zip(table["null_low"], table["null_high"], strict=True)
    chance = [f"{number(low)} to {number(high)}" if low == low else None for low, high in ends]
    table = table.assign(
        threshold=table["threshold"].map("{:g}".format),
        overlap=table["overlap"].map({True: "with", False: "without"}),
        null_low=chance,
    )
    return table.drop(columns="null_high").rename(columns={"null_low": "chance", "p_value": "p"})


def _views(result: TopicsResult) -> dict[str, str]:
    heads, variant = result.tables["attention"], ["threshold", "overlap"]
    measured = heads[heads["ratio"].notna()]
    first = measured[variant].head(1)  # without overlap, if anything is left there
    best = measured.merge(first).sort_values("ratio", ascending=False).head(10)
    columns = [
        "layer",
        "site",
        "head",
        "name",
        "same_topic",
        "different_topic",
        "ratio",
        "null_low",
        "null_high",
        "p_value",
    ]
    columns += ["untrained"] * bool(result.untrained)
    where = "".join(f"threshold {threshold:g}" for threshold in first["threshold"]) or "none"
    return {
        "Same topic against different topic": table_html(shown_measures(result), number=".3g", missing="–"),
        f"The ten heads with the highest ratio ({where})": table_html(best[columns], number=".4f", missing="–"),
        "Topics": table_html(result.tables["topics"], number=".3f", missing="–"),
    }
