"""``mechclust compare``: which layers a tuned model changed."""

from __future__ import annotations

from pathlib import Path

import tyro

from mechclust.cli_commands.printing import Brief, PrintFigures, show
from mechclust.cli_settings import Perhaps
from mechclust.commands.compare import CompareConfig, compare_models
from mechclust.commands.folder import default_folder, goes_on


def command(
    base: tyro.conf.Positional[str],
    tuned: tyro.conf.Positional[str],
    config: tyro.conf.OmitArgPrefixes[CompareConfig],
    out: Perhaps[Path] = None,
    brief: Brief = False,
    print_figures: PrintFigures = False,
) -> None:
    """Run ``mechclust compare``.

    Args:
        base: a hub name, a local directory with model and tokenizer (loaded offline), or a .gguf file.
        tuned: the tuned model, given like the base, or the folder of an adapter on the base, as peft saves it.
        config: measurements to make.
        out: folder of the hidden states and the report, runs/compare-BASE-TUNED-PROMPTS by default.
        brief: print the headline and one table, and write no page.
        print_figures: draw each figure for print too, as PNG of 300 dots per inch and as PDF.
    """
    folder = out or default_folder("compare", base, tuned, config.adapter, config.prompts)
    with goes_on(folder):
        result = compare_models(base, tuned, config, folder, progress=True)
        show(result, folder, brief=brief, print_figures=print_figures)
