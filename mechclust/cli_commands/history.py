"""``mechclust history``: when in training structure appears."""

from __future__ import annotations

from pathlib import Path

import tyro

from mechclust.cli_commands.printing import Brief, PrintFigures, show
from mechclust.cli_settings import Perhaps
from mechclust.commands.folder import default_folder, goes_on
from mechclust.commands.history import HistoryConfig, measure_history


def command(
    model: tyro.conf.Positional[str],
    config: tyro.conf.OmitArgPrefixes[HistoryConfig],
    out: Perhaps[Path] = None,
    brief: Brief = False,
    print_figures: PrintFigures = False,
) -> None:
    """Run ``mechclust history``.

    Args:
        model: a hub name, whose revisions --revisions lists, or a folder with checkpoint-* folders.
        config: measurements to make.
        out: folder of the hidden states and the report, runs/history-MODEL-PROMPTS by default.
        brief: print the headline and one table, and write no page.
        print_figures: draw each figure for print too, as PNG of 300 dots per inch and as PDF.
    """
    folder = out or default_folder("history", model, config.prompts)
    with goes_on(folder):
        result = measure_history(model, config, folder, progress=True)
        show(result, folder, brief=brief, print_figures=print_figures)
