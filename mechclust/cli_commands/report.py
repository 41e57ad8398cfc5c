"""``mechclust report``: findings, figures and report of a run, once more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from mechclust.cli_commands.printing import PrintFigures, print_visible, show_findings
from mechclust.cli_settings import Perhaps
from mechclust.evidence.finding_tables import findings_in_tables, findings_markdown_table, findings_text_table
from mechclust.studies import open_run, report_run
from mechclust.studies.record import is_record, judge_again, record_run
from tasks import InputError


def command(
    run_folder: tyro.conf.Positional[Path],
    markdown: bool = False,
    record: Perhaps[Path] = None,
    figures: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")] = (),
    print_figures: PrintFigures = False,
) -> None:
    """Run ``mechclust report``.

    Args:
        run_folder: the --out folder of a run, or a --record folder, of which only the findings are judged again.
        markdown: print the findings as a Markdown table.
        record: also write settings, findings, measurements and command to this folder, for a repository.
        figures: names of the figures to keep in the record. None by default, since a report draws them again.
        print_figures: draw each figure for print too, as PNG of 300 dots per inch and as PDF.
    """
    if figures and record is None:
        raise InputError("figures are kept in a record alone; add --record FOLDER")
    if record is None and is_record(run_folder):
        if print_figures:
            raise InputError(
                f"{str(run_folder)!r} is a record, whose figures stay as they are; leave --print-figures out"
            )
        table = findings_markdown_table if markdown else findings_text_table
        print_visible(
            f"{table(findings_in_tables(judge_again(run_folder)))}\n\nfindings: {run_folder / 'findings.json'}"
        )
        return
    if record is None:
        analysis = report_run(*open_run(run_folder), run_folder, print_figures=print_figures)
        show_findings(analysis, run_folder, markdown=markdown)
    else:
        analysis = record_run(run_folder, record, figures, print_figures=print_figures)
        show_findings(analysis, run_folder, markdown=markdown, below=f"record: {record}")
