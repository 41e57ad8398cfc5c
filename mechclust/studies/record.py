"""What a repository keeps of a run: its settings, claims and figures, and the command that reproduces it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mechclust.report.analysis import Analysis
from mechclust.report.claims import save_claims, with_history
from mechclust.report.folder import check_writable, differences, read_record
from mechclust.report.pictures import SUFFIXES
from mechclust.studies.registry import open_run
from mechclust.studies.study import Study, report_run
from probes.files import write_atomic, write_json
from tasks import InputError
from tasks.settings import to_json

_WAY_OUT = "choose another folder with --record"


def record_run(run_folder: str | Path, folder: str | Path) -> Analysis:
    """Write a run's ``config.json``, ``claims.json``, ``command.txt`` and ``figures/`` into ``folder``.

    The run's claims, figures and report are recreated first. Paths of this machine are left out. Earlier runs
    listed in ``folder/history.json`` are kept and included in the claims.

    Args:
        run_folder: the ``--out`` folder of a run.
        folder: where a repository keeps the results of this study. Those of an earlier run are replaced, including
            everything in ``figures/``.

    Raises:
        InputError: if ``run_folder`` holds no complete run, or ``folder`` cannot be written, is itself a run's folder,
            or holds the results of another study.
    """
    run_folder, folder = Path(run_folder), Path(folder)
    check_writable(folder, _WAY_OUT)
    study, config = open_run(run_folder)
    if any((folder / name).exists() for name in ("models", "results", "report.html")):
        raise InputError(f"{str(folder)!r} is the folder of a run; {_WAY_OUT}")
    kept = any((folder / name).exists() for name in ("config.json", "claims.json"))
    if kept and (held := read_record(folder, _WAY_OUT)["study"]) != study.name:
        raise InputError(f"{str(folder)!r} holds the results of {held}, not of {study.name}; {_WAY_OUT}")
    analysis = report_run(study, config, run_folder)
    figures = [f"{panel.name}{suffix}" for panel in analysis.panels for suffix in SUFFIXES]
    for earlier in (folder / "figures").glob("*"):
        if earlier.suffix in SUFFIXES and earlier.name not in figures:
            earlier.unlink()
    for name in figures:
        write_atomic(folder / "figures" / name, (run_folder / "figures" / name).read_bytes())
    save_claims(with_history(analysis.claims, folder), folder / "claims.json")
    write_json(folder / "config.json", _portable(read_record(run_folder, _WAY_OUT)))
    write_atomic(folder / "command.txt", f"{command_of(study, _portable(to_json(config)))}\n".encode())
    return analysis


def command_of(study: Study, config: Mapping[str, Any]) -> str:
    """The command that runs a study with these settings: the nearest preset, and everything that differs from it.

    Args:
        study: the study.
        config: settings as in ``config.json``.
    """
    changes = {name: dict(differences(to_json(preset), config)) for name, preset in study.presets.items()}
    preset = min(changes, key=lambda name: len(changes[name]))
    options = [word for path, (_, value) in changes[preset].items() for word in _option(path, value)]
    return shlex.join(["mechclust", "run", study.name, "--preset", preset, *options])


def _option(path: str, value: Any) -> list[str]:
    section, dot, name = path.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return [f"--{section}{dot}{name if value else f'no-{name}'}"]
    return [f"--{section}{dot}{name}", *map(str, _flat(value))]


def _flat(value: Any) -> list[Any]:
    """Pairs as the command line takes them: one number after the other."""
    return [word for part in value for word in _flat(part)] if isinstance(value, list) else [value]


def _portable(value: Any) -> Any:
    """Without folders of this machine: an absolute path is cut to its last part."""
    if isinstance(value, dict):
        return {name: _portable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_portable(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
