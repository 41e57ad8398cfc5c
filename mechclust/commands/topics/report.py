"""The report of ``mechclust topics``: its page, figures and tables."""

from __future__ import annotations

from pathlib import Path

from mechclust.commands.topics.result import TopicsResult
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.page import write_report


def write_topics_report(result: TopicsResult, out: str | Path) -> Path:
    """Write ``summary.csv``, ``attention.csv``, ``layers.csv``, ``topics.csv``, the probe results, the figures
    and ``report.html`` into ``out``.

    Raises:
        InputError: when ``out`` cannot be written.
    """
    models = {"trained": result.trained, **{f"untrained-seed{i}": m for i, m in enumerate(result.untrained)}}
    return write_report(
        out,
        title=f"Topic structure in {result.model}",
        source=f"Corpus: {', '.join(map(str, result.config.corpus))}",
        analysis=topics_analysis(result),
        config={"model": result.model, **vars(result.config)},
        results={
            f"{name}/{kind}-{variant.name}": found
            for name, measures in models.items()
            for kind, results in vars(measures).items()
            for variant, found in zip(result.variants, results, strict=True)
            if found is not None
        },
        tables=result.tables,
    )


def topics_analysis(result: TopicsResult) -> Analysis:
    """Figures, tables and notes."""
    from mechclust.commands.topics.figures import topics_panels

    n, topics = result.n_files, result.topics
    measured = (
        f"{result.n_documents} documents ({result.config.documents}) of {n} file{'s' * (n != 1)}; "
        f"{topics.n_topics} topics over {len(topics.words)} words; the model was measured on "
        f"{result.encoded.n_documents} documents."
    )
    return Analysis(panels=topics_panels(result), views=_views(result), notes=[measured, *result.notes])


def _views(result: TopicsResult) -> dict[str, str]:
    summary, heads = result.tables["summary"], result.tables["attention"]
    variant = ["threshold", "overlap"]
    named = summary.assign(
        threshold=summary["threshold"].map("{:g}".format),
        overlap=summary["overlap"].map({True: "with", False: "without"}),
    )

    def compared(suffix: str, number: str, *further: str) -> str:
        """The model's values, each beside that of untrained models."""
        names, ends = ("cosine", "dot", "attention"), ("", "_untrained")
        titles = {f"{name}{suffix}{end}": end.strip("_") or name for name in names for end in ends}
        shown = named[[*variant, *further, *(k for k in titles if k in named)]].rename(columns=titles)
        return table_html(shown, number=number, missing="–")

    measured = heads[heads["ratio"].notna()]
    first = measured[variant].head(1)  # without overlap, where anything is left there
    best = measured.merge(first).sort_values("ratio", ascending=False).head(10)
    columns = ["layer", "head", "same_topic", "different_topic", "ratio", "null_low", "null_high", "p_value"]
    columns += ["untrained"] * bool(result.untrained)
    where = "".join(f"threshold {threshold:g}" for threshold in first["threshold"]) or "none"
    return {
        "Same topic / different topic": compared("", ".3f", "topics", "words"),
        "Same topic minus different topic": compared("_difference", ".2g"),
        f"The ten heads with the highest ratio ({where})": table_html(best[columns], number=".4f", missing="–"),
        "Topics": table_html(result.tables["topics"], number=".3f", missing="–"),
    }
