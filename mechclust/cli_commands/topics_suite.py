"""``mechclust topics --suite``: many encoders with one topic model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from mechclust.cli_commands.printing import Brief, PrintFigures, show
from mechclust.cli_settings import SETTINGS
from mechclust.commands.folder import default_folder, goes_on
from mechclust.commands.topics.suite import SuiteConfig, run_suite
from mechclust.evidence.finding_tables import findings_in_tables, findings_text_table

_OUT = "folder of the topics, the measurements and the report; runs/topics-suite-SUITE-CORPUS by default"
_ABOUT = (
    "Fit topics once and measure many encoders and their random twins with them, beside the published tables (Li, Li & "
    "Risteski 2023). If interrupted, run the same command again to resume."
)


def suite_command(argv: list[str]) -> None:
    """Run ``mechclust topics --suite``."""
    parsed = _arguments(argv)
    folder = parsed.out or default_folder("topics-suite", parsed.config.suite[0], *parsed.config.corpus[:1])
    with goes_on(folder):
        result = run_suite(parsed.config, folder, progress=True)
        findings = findings_text_table(findings_in_tables(result.findings))
        show(result, folder, brief=parsed.brief, print_figures=parsed.print_figures, below=findings)


def _arguments(argv: list[str]) -> Any:
    """Return the options of ``mechclust topics --suite``. Its help needs no encoders."""
    arguments = dataclasses.make_dataclass(
        "Arguments",
        [
            ("config", Annotated[SuiteConfig, tyro.conf.arg(name="")]),
            ("out", Annotated[Path | None, tyro.conf.arg(help=_OUT, help_behavior_hint="")], None),
            ("brief", Brief, False),
            ("print_figures", PrintFigures, False),
        ],
        frozen=True,
    )
    return tyro.cli(
        arguments,
        args=["--help"] if {"--help", "-h"} & set(argv) else argv,
        prog="mechclust topics",
        description=_ABOUT,
        config=(tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone),
        registry=SETTINGS,
    )
