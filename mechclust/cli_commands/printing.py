"""Print the results of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from mechclust.commands.result import MeasuredResult
from mechclust.evidence.finding_tables import findings_in_tables, findings_markdown_table, findings_text_table
from mechclust.report.analysis import Analysis
from mechclust.report.table_text import table_text
from tasks import InputError
from tasks.text.visible import visible_text

Brief = Annotated[bool, tyro.conf.arg(help="print the headline and one table, and write no page")]
PrintFigures = Annotated[
    bool, tyro.conf.arg(help="draw each figure for print too, as PNG of 300 dots per inch and as PDF")
]


def print_visible(text: object) -> None:
    """Print lines that may contain users' texts, at once.

    Raises:
        InputError: if standard output cannot be written, such as on a full disk.
    """
    if sys.stdout is None:  # closed, as by >&-
        return
    try:
        print(visible_text(str(text), keep="\n"), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails on it at its end
        why = error.strerror or str(error)
        raise InputError(f"standard output cannot be written ({why}); write it to another place") from error


def show(
    result: MeasuredResult, out: Path, *, brief: bool, print_figures: bool, number: str = ".3f", below: str = ""
) -> None:
    """Print a result, and then write its report, so that a failing report loses no result.

    Args:
        result: the result of a command.
        out: folder of the report.
        brief: print the headline and the table, and write no report.
        print_figures: draw each figure for print too.
        number: format of the table's numbers.
        below: text to print after the sentences.
    """
    print_visible(f"{result.headline}\n\n{table_text(result.shown_table, number)}")
    if brief:
        return
    _, *readings = result.sentences
    _show_list([*readings, *result.caveats])
    if below:
        print_visible(f"\n{below}")
    print_visible(f"\nreport: {result.write(out, print_figures=print_figures)}")


def show_findings(analysis: Analysis, folder: Path, *, markdown: bool = False, below: str = "") -> None:
    """Print the conclusion of a study and the findings that its page shows.

    Args:
        analysis: the study's analysis.
        folder: of the run, with its report.
        markdown: print a Markdown table.
        below: text to print after it.
    """
    table = findings_markdown_table if markdown else findings_text_table
    headline = "" if markdown else f"{analysis.headline}\n\n"
    print_visible(f"{headline}{table(findings_in_tables(analysis.findings))}")
    if below:
        print_visible(f"\n{below}")
    print_visible(f"\nreport: {folder / 'report.html'}")


def _show_list(sentences: Sequence[str]) -> None:
    """Print sentences as a list."""
    if sentences:
        print_visible("\n" + "\n".join(f"- {visible_text(sentence)}" for sentence in sentences))
