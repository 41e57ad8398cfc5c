"""``mechclust run``: a published experiment."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any

import tyro

from mechclust.cli_commands.printing import show_findings
from mechclust.cli_settings import SETTINGS, Perhaps, option_paths
from mechclust.commands.settings import EngineSettings
from mechclust.jobs.interrupts import interrupt_message
from mechclust.studies import Study, get_study, run_study
from tasks import InputError
from tasks.errors import did_you_mean


def command(study: tyro.conf.Positional[str], preset: str = "quick", out: Perhaps[Path] = None) -> None:
    """Run ``mechclust run``.

    Args:
        study: name of the study, as in `mechclust list`.
        preset: `smoke` (seconds), `quick` (minutes), `paper` (full size), or another of the study's presets.
        out: folder of the run, runs/STUDY-PRESET by default.
    """
    given = ["--preset", preset, *([] if out is None else ["--out", str(out)])]  # pragma: no cover - see main
    run_study_command(study, given)  # pragma: no cover


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RunSettings(EngineSettings):
    """Settings for the processes that do a study's jobs.

    Args:
        workers: number of processes, with one thread each; by default one per core, or with ray as many as the cluster
            has room for.
        yes: begin a run that is estimated to take more than a day.
        print_figures: draw each figure for print too, as PNG of 300 dots per inch and as PDF.
    """

    print_figures: bool = False

    @property
    def here(self) -> bool:
        """Return whether all jobs are done in this process. They are not if a job may have to be stopped."""
        return super().here and self.workers == 1 and self.job_timeout is None


def _arguments(study: Study, preset: str, config: Any) -> type:
    """Make a type of the options of ``mechclust run STUDY``, with the defaults of a preset."""
    return dataclasses.make_dataclass(
        "Arguments",
        [
            ("preset", Annotated[str, tyro.conf.arg(help=f"one of {', '.join(study.presets)}")], "quick"),
            ("out", Annotated[Path, tyro.conf.arg(help="folder of the run")], Path("runs") / f"{study.name}-{preset}"),
            (
                "probes",
                Annotated[tuple[str, ...], tyro.conf.arg(help="probes to run on the trained models, for the report")],
                (),
            ),
            ("config", Annotated[type(config), tyro.conf.arg(name="")], config),
        ],
        bases=(_RunSettings,),
        frozen=True,
    )


def run_study_command(name: str, argv: list[str]) -> None:
    """Run a study with the defaults of its preset, which is read first."""
    study = get_study(name)
    first = argparse.ArgumentParser(prog=f"mechclust run {name}", add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="quick")
    preset = first.parse_known_args(argv)[0].preset
    config = study.preset(preset)
    parsed: Any
    parsed, unknown = tyro.cli(
        _arguments(study, preset, config),
        args=argv,
        prog=f"mechclust run {name}",
        description=study.title,
        return_unknown_args=True,
        registry=SETTINGS,
    )
    if unknown:
        known = [
            f"--{path}".replace("_", "-")
            for path in ("preset", "out", "probes", *option_paths(_RunSettings()), *option_paths(config))
        ]
        where = f" (see mechclust run {name} --help)"
        raise InputError(f"{name} has no option {unknown[0]!r}{where}{did_you_mean(unknown[0], known)}")
    again = f"mechclust run {name} {shlex.join(argv)}".strip()
    parsed.check()
    with interrupt_message(lambda: f"; everything measured so far is in {parsed.out}; to resume: {again}"):
        analysis = run_study(
            study,
            parsed.config,
            parsed.out,
            parsed.workers,
            parsed.probes,
            engine=parsed.jobs,
            timeout=parsed.job_timeout,
            yes=parsed.yes,
            print_figures=parsed.print_figures,
        )
    show_findings(analysis, parsed.out)
