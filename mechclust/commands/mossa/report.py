"""The report of ``mechclust mossa``: its page, figures and tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechclust.commands.folder import own_folder
from mechclust.commands.mossa.result import MossaResult
from mechclust.commands.mossa.sentences import lead_of, notes_of
from mechclust.commands.mossa.tables import before_and_after, tables_of
from mechclust.evidence.families import family_notes
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.page import write_report
from mechclust.report.text import short_name

if TYPE_CHECKING:
    import pandas as pd

_SOURCE = (
    "Zhao, Ziser & Cohen, Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large "
    "Language Models (EMNLP 2024, arXiv 2410.20008)"
)


def write_mossa_report(result: MossaResult, out: str | Path) -> Path:
    """Write the tables as CSV, ``findings.json``, the measurements, the figures and ``report.html`` into ``out``.

    Returns:
        The path of ``report.html``.

    Raises:
        InputError: when ``out`` cannot be written, or holds the report of another command.

    Example:
        >>> write_mossa_report(result, "runs/mossa")  # doctest: +SKIP
    """
    with own_folder(out, "mossa"):
        tables = tables_of(result)
        return write_report(
            out,
            command="mossa",
            title=f"Which layers of {short_name(result.base)} hold which tasks",
            source=f"Base: {result.base}. Tasks: {result.config.tasks}. After {_SOURCE}",
            analysis=mossa_analysis(result, tables),
            config={"base": result.base, **asdict(result.config)},
            results=result.results,
            tables=tables,
        )


def mossa_analysis(result: MossaResult, tables: dict[str, pd.DataFrame] | None = None) -> Analysis:
    """Conclusion, findings, figures, tables and notes.

    Args:
        result: what was found.
        tables: of ``tables_of``, where they are there already.
    """
    from mechclust.commands.mossa.figures import mossa_panels

    tables = tables_of(result) if tables is None else tables
    return Analysis(
        lead=lead_of(result),
        findings=result.findings,
        panels=mossa_panels(result),
        views={
            **({"Layer groups": _html(tables["groups"])} if "groups" in tables else {}),
            "Tasks, the largest gain first": _html(shown_tasks(tables)),
        },
        folded=_folded(result, tables),
        notes=[*notes_of(result), *family_notes(result.findings)],
    )


def shown_tasks(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The table of tasks without what is only for the CSV."""
    return tables["tasks"].drop(columns=["ceiling_last", "null_last"], errors="ignore")


def _folded(result: MossaResult, tables: dict[str, pd.DataFrame]) -> dict[str, str]:
    found: dict[str, pd.DataFrame] = {}
    if "clusters" in tables:
        found["Clusters, the largest gain first"] = tables["clusters"]
    if "answers" in tables:
        found["What was learnt: answers with 95% intervals over prompts"] = tables["answers"]
    if "adapters" in tables:
        found["Which models: how the adapters were trained"] = tables["adapters"]
    found["Before and after the final norm (medians over tasks)"] = before_and_after(result)
    found["Debiased CKA with the controls by layer (medians over tasks)"] = _medians(tables["layers"])
    return {name: _html(table) for name, table in found.items() if len(table)}


def _medians(layers: pd.DataFrame) -> pd.DataFrame:
    """One row per layer, a column for each role of the seen and the held-out tasks."""
    chosen = layers[layers["of"].isin(["seen", "held out"])]
    names = chosen["of"] + ", " + chosen["role"]
    wide = chosen.assign(name=names).pivot(index=["layer", "hook"], columns="name", values="median")
    return wide[list(dict.fromkeys(names))].reset_index()


def _html(table: pd.DataFrame) -> str:
    options: dict[str, Any] = {"number": ".3f", "missing": "–"}
    return table_html(table, **options)
