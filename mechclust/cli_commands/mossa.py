"""``mechclust mossa``: a model tuned on many tasks, and one on each alone."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from mechclust.cli_commands.printing import Brief, PrintFigures, show
from mechclust.cli_settings import PRESET_SETTINGS, Perhaps
from mechclust.commands.folder import default_folder, goes_on
from mechclust.commands.mossa import MossaConfig, presets, run_mossa
from mechclust.evidence.finding_tables import findings_in_tables, findings_text_table
from mechclust.report.text import LAYERS
from tasks import InputError
from tasks.errors import error_suggestion

_BASE = "a hub name, or a local directory with model and tokenizer (loaded offline)"
_PRESETS = "defaults of all other options: flan2021: as published; small: for a small model on two CPU cores"
_OUT = "folder of the adapters, the measurements and the report; runs/mossa-BASE-TASKS by default"
_ABOUT = (
    "Train a model on many tasks and one on each task alone, and find the layers that hold them (Zhao, Ziser & Cohen "
    "2024). If interrupted, run the same command again to resume."
)


def command(
    base: tyro.conf.Positional[str], tasks: Path, preset: Perhaps[str] = None, out: Perhaps[Path] = None
) -> None:
    """Run ``mechclust mossa``.

    Args:
        base: a hub name, or a local directory with model and tokenizer.
        tasks: folder of the tasks' files.
        preset: flan2021 or small.
        out: folder of the run.
    """
    raise AssertionError("main calls mossa_command")  # pragma: no cover


def mossa_command(argv: list[str]) -> None:
    """Run ``mechclust mossa`` with the defaults of the preset, which is read first."""
    first = argparse.ArgumentParser(prog="mechclust mossa", add_help=False, allow_abbrev=False)
    first.add_argument("--preset")
    name = first.parse_known_args(argv)[0].preset
    known = presets(tyro.MISSING)
    if name is not None and name not in known:
        raise InputError(f"no preset {name!r} of mossa{error_suggestion(name, known)}")
    config = MossaConfig(tasks=tyro.MISSING) if name is None else known[name]
    parsed: Any = tyro.cli(
        _arguments(config),
        args=argv,
        prog="mechclust mossa",
        description=_ABOUT,
        config=(tyro.conf.PositionalMetavarFromFieldName,),
        registry=PRESET_SETTINGS,
    )
    folder = parsed.out or default_folder("mossa", parsed.base, parsed.config.tasks)
    with goes_on(folder):
        result = run_mossa(parsed.base, parsed.config, folder, progress=True)
        findings = findings_text_table(findings_in_tables(result.findings))
        show(result, folder, brief=parsed.brief, print_figures=parsed.print_figures, below=f"{LAYERS}\n\n{findings}")


def _arguments(config: MossaConfig) -> type:
    """Make a type of the options, with the defaults of a configuration."""
    preset = tyro.conf.arg(help=_PRESETS, help_behavior_hint="", metavar=f"{{{','.join(presets(tyro.MISSING))}}}")
    return dataclasses.make_dataclass(
        "Arguments",
        [
            ("base", Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=_BASE)]),
            ("preset", Annotated[str | None, preset], None),
            ("out", Annotated[Path | None, tyro.conf.arg(help=_OUT, help_behavior_hint="")], None),
            ("brief", Brief, False),
            ("print_figures", PrintFigures, False),
            ("config", Annotated[MossaConfig, tyro.conf.arg(name="")], config),
        ],
        frozen=True,
    )
