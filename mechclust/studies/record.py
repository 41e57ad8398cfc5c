"""What a repository keeps of a run: settings, claims, figures, measurements, and the command that reproduces it."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mechclust.report.analysis import Analysis
from mechclust.report.archive import pack, unpack
from mechclust.report.claims import Claims, save_claims, with_history
from mechclust.report.folder import check_writable, differences, read_record
from mechclust.report.pictures import SUFFIXES
from mechclust.studies.registry import open_run
from mechclust.studies.study import Study, report_run
from probes.files import write_atomic, write_json
from tasks import InputError
from tasks.settings import to_json

_WAY_OUT = "choose another folder with --record"
_RESULTS = "results.tar.xz"
_RECORD_AGAIN = "record the run again with mechclust report RUN --record FOLDER"


def record_run(run_folder: str | Path, folder: str | Path) -> Analysis:
    """Write a run's settings, claims, figures, measurements and command into ``folder``.

    These are ``config.json``, ``claims.json``, ``figures/``, ``results.tar.xz`` (the run's ``results/``, without the
    trained models) and ``command.txt``. The run's claims, figures and report are recreated first. Paths of this machine
    are left out. Earlier runs listed in ``folder/history.json`` are kept and included in the claims.

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
    if (run_folder / "results").is_dir():
        pack(run_folder / "results", folder / _RESULTS)
    else:
        (folder / _RESULTS).unlink(missing_ok=True)
    write_json(folder / "config.json", _portable(read_record(run_folder, _WAY_OUT)))
    write_atomic(folder / "command.txt", f"{command_of(study, _portable(to_json(config)))}\n".encode())
    return analysis


def is_record(folder: str | Path) -> bool:
    """Whether a folder is the record of a run, with measurements, rather than the run itself."""
    return (Path(folder) / _RESULTS).exists() and not (Path(folder) / "results").exists()


def judge_again(folder: str | Path) -> Claims:
    """Judge the claims of a recorded run again, from its measurements, and rewrite its ``claims.json``.

    Figures stay as they are. The claims are those of the installed version: if it changed how a claim is judged, or
    added one, the record now says so.

    Args:
        folder: where ``record_run`` wrote.

    Raises:
        InputError: if the folder cannot be written, is not a record with measurements, or these are damaged or not
            those that the installed version needs.
    """
    folder = Path(folder)
    check_writable(folder, "make the folder writable, or judge a copy of it")
    study, config = open_run(folder)
    archive = folder / _RESULTS
    if not is_record(folder):
        raise InputError(f"{str(folder)!r} has no {_RESULTS}; {_RECORD_AGAIN}")
    with tempfile.TemporaryDirectory() as place:
        unpack(archive, Path(place))
        judge = study.judge or (lambda config, out: study.analyse(config, out).claims)
        try:
            claims = with_history(judge(config, Path(place)), folder)
        except InputError as error:
            why = str(error).replace(repr(place), repr(str(archive))).partition(";")[0]
            raise InputError(f"{why}; {_RECORD_AGAIN}") from error
    save_claims(claims, folder / "claims.json")
    return claims


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
