"""The part of a run that a repository keeps: settings, findings, figures and measurements."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mechclust.evidence.findings import FILE, Findings, findings_bytes, findings_with_history
from mechclust.report.analysis import Analysis
from mechclust.report.archive import pack_folder, unpack_folder
from mechclust.report.folder import (
    check_folder,
    check_folder_files,
    check_writable,
    claim_folder,
    replace_folder_files,
    write_folder_files,
)
from mechclust.report.manifest import MANIFEST, read_manifest
from mechclust.report.measured_files import check_measured_files
from mechclust.report.run_record import read_run_record
from mechclust.report.table_text import table_as_csv
from mechclust.studies.added_seeds import with_seen_verdicts
from mechclust.studies.registry import open_run
from mechclust.studies.study import Study, check_findings, judge_run, judge_seeds, report_run
from probes.store.files import json_bytes
from tasks import InputError
from tasks.errors import error_suggestion

_WAY_OUT = "choose another folder with --record"
_JUDGE_COPY = "judge a copy of the folder"
_COMMAND = "report --record"
_RESULTS = "results.tar.xz"
_RECORD_AGAIN = "record the run again with mechclust report RUN --record FOLDER"


def record_run(
    run_folder: str | Path, folder: str | Path, figures: Sequence[str] = (), *, print_figures: bool = False
) -> Analysis:
    """Write a run's settings, findings and measurements into ``folder``, and the figures that are named.

    These are ``config.json``, ``findings.json``, ``findings.csv``, ``figures/NAME.png`` and ``results.tar.xz`` (the
    run's ``results/``, without the trained models). The run's findings, figures and report are recreated first. Paths
    of this machine are left out. Earlier runs listed in ``folder/history.json`` are kept and included in the findings.

    Args:
        run_folder: the ``--out`` folder of a run.
        folder: folder of a repository for the results of this study, new or written by this function. Only the files
            that its ``mechclust.json`` lists are replaced.
        figures: names of the figures to keep, such as the ones that a page shows.
        print_figures: draw the run's figures for print too.

    Raises:
        InputError: if ``run_folder`` holds no complete run or has no figure of such a name. Also if ``folder`` cannot
            be written, is or lies in a run's folder, holds the results of another study, or holds files that this
            function did not write.
    """
    run_folder = Path(run_folder)
    folder = Path(folder)
    check_writable(folder, _WAY_OUT)
    study, config = open_run(run_folder)
    _check_record(folder, study, run_folder)
    analysis = report_run(study, config, run_folder, print_figures=print_figures)
    contents = {
        **_findings_files(findings_with_history(analysis.findings, folder)),
        "config.json": json_bytes(_portable(read_run_record(run_folder, _WAY_OUT))),
    }
    pictures = {panel.name: panel for panel in analysis.panels}
    for name in figures:
        if name not in pictures:
            raise InputError(f"the run has no figure {name!r}{error_suggestion(name, pictures)}")
        contents[f"figures/{name}.png"] = pictures[name].png
    if (run_folder / "results").is_dir():
        contents[_RESULTS] = pack_folder(run_folder / "results", study.unrecorded)
    claim_folder(folder, _COMMAND)
    replace_folder_files(folder, contents, _WAY_OUT)
    return analysis


def _findings_files(findings: Findings) -> dict[str, bytes]:
    return {FILE: findings_bytes(findings), "findings.csv": table_as_csv(findings.to_dataframe())}


def _check_record(folder: Path, study: Study, run_folder: Path) -> None:
    """Refuse a folder that is neither new nor an unchanged record of this study."""
    inner = Path(os.path.realpath(folder))
    outer = Path(os.path.realpath(run_folder))
    if inner != outer and inner.is_relative_to(outer):
        raise InputError(f"{str(folder)!r} lies in the folder of the run; {_WAY_OUT}")
    if any((folder / name).exists() for name in ("models", "results", "report.html")):
        raise InputError(f"{str(folder)!r} is the folder of a run; {_WAY_OUT}")
    kept = any((folder / name).exists() for name in ("config.json", FILE))
    held = read_run_record(folder, _WAY_OUT)["study"] if kept else study.name
    if held != study.name:
        raise InputError(f"{str(folder)!r} holds the results of {held}, not of {study.name}; {_WAY_OUT}")
    if kept and not read_manifest(folder, _WAY_OUT).command:
        raise InputError(f"{str(folder)!r} holds files that no {MANIFEST} lists; {_WAY_OUT}")
    check_folder(folder, _COMMAND, _WAY_OUT)


def is_record(folder: str | Path) -> bool:
    """Return whether a folder is the record of a run, with measurements, rather than the run itself."""
    return (Path(folder) / _RESULTS).exists() and not (Path(folder) / "results").exists()


def judge_again(folder: str | Path) -> Findings:
    """Judge the findings of a recorded run again, from its measurements, and rewrite its ``findings.json``.

    Figures stay as they are. The findings are the installed version's. If it changed how a finding is judged, or added
    one, the record now says so.

    Args:
        folder: where ``record_run`` wrote.

    Raises:
        InputError: if the folder cannot be written or is not a record with measurements, or if its ``findings.json``
            was changed. Also if the measurements are damaged or do not suit the installed version, and as
            ``check_findings``.
    """
    folder = Path(folder)
    check_writable(folder, _JUDGE_COPY)
    study, config = open_run(folder)
    archive = folder / _RESULTS
    if not is_record(folder):
        raise InputError(f"{str(folder)!r} has no {_RESULTS}; {_RECORD_AGAIN}")
    check_folder_files(folder, [FILE], f"{_JUDGE_COPY} without it")
    with tempfile.TemporaryDirectory() as place:
        unpack_folder(archive, Path(place))
        try:
            check_measured_files(Path(place))
            judged = with_seen_verdicts(
                judge_run(study, config, Path(place)),
                read_run_record(folder, _WAY_OUT),
                partial(judge_seeds, study, config, Path(place)),
            )
        except InputError as error:
            why = str(error).replace(place, str(archive)).partition(";")[0]
            raise InputError(f"{why}; {_RECORD_AGAIN}") from error
    findings = findings_with_history(judged, folder)
    check_findings(findings)
    claim_folder(folder, _COMMAND)
    write_folder_files(folder, _findings_files(findings), f"{_JUDGE_COPY} without it")
    return findings


def _portable(value: Any) -> Any:
    """Return settings without folders of this machine: an absolute path is cut to its last part."""
    if isinstance(value, dict):
        return {name: _portable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_portable(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
