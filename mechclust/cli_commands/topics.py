"""``mechclust topics``: whether attention and embeddings keep topics together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from mechclust.cli_commands.printing import Brief, PrintFigures, show
from mechclust.cli_settings import Perhaps
from mechclust.commands.folder import default_folder, goes_on
from mechclust.commands.topics import TopicsConfig, TopicsModel, measure_topics, read_suite
from mechclust.evidence.finding_tables import findings_in_tables, findings_text_table
from tasks import InputError

_MAX_NAMED = 4  # models in the name of a folder
_Models = Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(help_behavior_hint="")]


def command(
    config: tyro.conf.OmitArgPrefixes[TopicsConfig],
    model: _Models = (),
    suite: Perhaps[Path] = None,
    out: Perhaps[Path] = None,
    brief: Brief = False,
    print_figures: PrintFigures = False,
) -> None:
    """Run ``mechclust topics``.

    Args:
        config: measurements to make.
        model: one or several hub names, local directories with model and tokenizer (loaded offline), .gguf files, or
            adapters.
        suite: a suite file (.toml) with a table [[model]] for each model, in place of their names.
        out: folder of the topics, the measurements and the report, by default runs/topics-MODEL-CORPUS.
        brief: print the headline and one table, and write no page.
        print_figures: draw each figure for print too, as PNG of 300 dots per inch and as PDF.
    """
    given = _given(model, suite)
    folder = out or default_folder("topics", *_names(model, suite), config.adapter, *config.corpus[:1])
    with goes_on(folder):
        result = measure_topics(given, config, folder, progress=True)
        findings = findings_text_table(findings_in_tables(result.findings))
        show(result, folder, brief=brief, print_figures=print_figures, below=findings)


def _given(models: tuple[str, ...], suite: Path | None) -> list[str] | list[TopicsModel]:
    """Return the models that are named, or those of the suite file."""
    if suite is None:
        if not models:
            raise InputError(
                "no model is named; name one or several first, as in mechclust topics bert-base-uncased --corpus "
                "texts, or give a suite file with --suite"
            )
        return list(models)
    if suite.suffix != ".toml":
        names = " ".join([str(suite), *models])
        raise InputError(
            f"--suite takes a suite file (.toml), not {str(suite)!r}; name models first: mechclust topics {names} "
            "--corpus ..."
        )
    if models:
        raise InputError(
            f"{models[0]!r} is named beside --suite {suite}; add it to the suite file, or leave out --suite"
        )
    return read_suite(suite)


def _names(models: tuple[str, ...], suite: Path | None) -> list[str]:
    """Return parts of the folder's name."""
    if suite is not None:
        return [f"suite-{suite.stem}"]
    return [*models] if len(models) <= _MAX_NAMED else [models[0], f"and-{len(models) - 1}-more"]
