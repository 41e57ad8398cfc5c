"""The report of ``mechclust topics --suite``: its page, figures, tables and findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mechclust.attention import AttentionView
from mechclust.commands.folder import own_folder
from mechclust.commands.topics.suite.figures import suite_panels
from mechclust.commands.topics.suite.result import SuiteResult
from mechclust.commands.topics.suite.sentences import lead_of, notes_of
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.page import write_report

_TITLES = {False: "words of one topic", True: "words may have several topics"}
_LABEL_WORDS = 4


def write_suite_report(result: SuiteResult, out: str | Path) -> Path:
    """Write ``ratios.csv``, ``heads.csv``, ``topics.csv``, ``findings.json``, the measurements, the figures and
    ``report.html`` into ``out``.

    Raises:
        InputError: if ``out`` cannot be written, or holds the report of another command.
    """
    out = Path(out)
    with own_folder(out, "topics"):
        return write_report(
            out,
            command="topics",
            title=f"Topic structure of {len(result.trained)} encoder{'s' * (len(result.trained) != 1)}",
            source=f"Encoders: {', '.join(result.trained)}. Corpus: {', '.join(map(str, result.config.corpus))}",
            analysis=suite_analysis(result),
            config=vars(result.config),
            results=result.results(),
            tables=result.tables,
        )


def suite_analysis(result: SuiteResult) -> Analysis:
    """Conclusion, findings, figures, tables and attention."""
    tables = {
        f"Attention, {title}, next to the published table": table_html(result.shown(overlap), missing="–")
        for overlap, title in _TITLES.items()
    }
    embeddings = {
        f"Word vectors, {similarity}, {title}": table_html(result.shown_embeddings(overlap, similarity), missing="–")
        for similarity in ("cosine", "dot")
        for overlap, title in _TITLES.items()
    }
    heads = result.tables["heads"]
    first = heads[(heads["threshold"] == min(result.thresholds)) & ~heads["overlap"]]
    best = first.sort_values("ratio", ascending=False, kind="stable").groupby("model", sort=False).head(8)
    topics = result.tables["topics"]
    seed = result.texts.fitted.seeds[0]
    return Analysis(
        findings=result.findings,
        panels=suite_panels(result),
        views={
            **tables,
            **_attention(result),
            f"Topics of seed {seed}": table_html(
                topics[topics["seed"] == seed].drop(columns="seed"), number=".3f", missing="–"
            ),
        },
        notes=notes_of(result),
        lead=lead_of(result),
        folded={
            **embeddings,
            f"The eight heads with the highest ratio, threshold {min(result.thresholds):g}": table_html(
                best.drop(columns=["threshold", "overlap"]), number=".3f", missing="–"
            ),
        },
    )


def _attention(result: SuiteResult) -> dict[str, str]:
    """One view per encoder; the first includes the scripts."""
    words = result.texts.fitted.models[0].top_words(_LABEL_WORDS)
    named = {f"topic {i}": f"topic {i}: {', '.join(of)}" for i, of in enumerate(words)}
    found: dict[str, str] = {}
    for name, measured in result.trained.items():
        if measured.view is not None:
            shown: AttentionView = replace(
                measured.view, labels=tuple(None if x is None else named.get(x, x) for x in measured.view.labels)
            )
            found[f"Attention of {name} on a document, words coloured by topic"] = shown.fragment(include_js=not found)
    return found
