"""``mechclust topics``: whether attention and embeddings keep topics together."""

from __future__ import annotations

from pathlib import Path

import tyro

from mechclust.cli_commands.printing import Brief, PrintFigures, show
from mechclust.cli_settings import Perhaps
from mechclust.commands.folder import default_folder, goes_on
from mechclust.commands.topics import TopicsConfig, measure_topics


def command(
    model: tyro.conf.Positional[str],
    config: tyro.conf.OmitArgPrefixes[TopicsConfig],
    out: Perhaps[Path] = None,
    brief: Brief = False,
    print_figures: PrintFigures = False,
) -> None:
    """Run ``mechclust topics``.

    Args:
        model: a hub name, a local directory with model and tokenizer (loaded offline), a .gguf file, or an adapter.
        config: measurements to make.
        out: folder of the report, runs/topics-MODEL-CORPUS by default.
        brief: print the headline and one table, and write no page.
        print_figures: draw each figure for print too, as PNG of 300 dots per inch and as PDF.
    """
    folder = out or default_folder("topics", model, config.adapter, *config.corpus[:1])
    with goes_on(folder):
        result = measure_topics(model, config, folder, progress=True)
        show(result, folder, brief=brief, print_figures=print_figures, number=".3g")
