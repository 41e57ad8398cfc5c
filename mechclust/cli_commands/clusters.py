"""``mechclust clusters``: the labels by which a model's hidden states cluster."""

from __future__ import annotations

from pathlib import Path

import tyro

from mechclust.cli_commands.printing import Brief, PrintFigures, show
from mechclust.cli_settings import Perhaps
from mechclust.commands.clusters import ClustersConfig, measure_clusters
from mechclust.commands.folder import default_folder, goes_on


def command(
    model: tyro.conf.Positional[str],
    config: tyro.conf.OmitArgPrefixes[ClustersConfig],
    out: Perhaps[Path] = None,
    brief: Brief = False,
    print_figures: PrintFigures = False,
) -> None:
    """Run ``mechclust clusters``.

    Args:
        model: a hub name, a local directory with model and tokenizer (loaded offline), a .gguf file, or an adapter.
        config: measurements to make.
        out: folder of the hidden states and the report, runs/clusters-MODEL-PROMPTS by default.
        brief: print the headline and one table, and write no page.
        print_figures: draw each figure for print too, as PNG of 300 dots per inch and as PDF.
    """
    folder = out or default_folder("clusters", model, config.adapter, config.prompts)
    with goes_on(folder):
        result = measure_clusters(model, config, folder, progress=True)
        show(result, folder, brief=brief, print_figures=print_figures)
