"""The available studies: ours and other installed packages', all found by entry point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from mechclust.report.run_record import read_run_record
from mechclust.studies.study import Study
from probes.engine.registry import entry_point_package, load_entry_point
from tasks import InputError
from tasks.errors import error_suggestion
from tasks.settings import settings_from_json

_STUDY_ENTRY_POINTS = "mechclust.studies"


@dataclass(frozen=True)
class RegisteredStudy:
    """A study that an installed package registers as an entry point of the group ``mechclust.studies``.

    Attributes:
        name: its name for ``mechclust run``.
        package: the package that registers it, with its version.
        study: the study, or ``None`` if it cannot be loaded.
        error: why it cannot be loaded.
    """

    name: str
    package: str
    study: Study | None
    error: str = ""


def registered_studies() -> list[RegisteredStudy]:
    """List every registered study, ours first.

    A study that cannot be loaded is listed with the reason and does not affect the others.
    """
    points = _points()
    return [_loaded(point, points) for point in points]


def list_studies() -> list[Study]:
    """List the studies that can be run."""
    return [registered.study for registered in registered_studies() if registered.study is not None]


def get_study(name: str) -> Study:
    """Return the study called ``name``.

    Raises:
        InputError: if there is no such study (the text lists the existing ones), or it is broken (the text says why).

    Example:
        >>> get_study("task-clusters").presets["quick"]  # doctest: +SKIP
    """
    points = _points()
    point = next((point for point in points if point.name == name), None)  # no other package is imported
    if point is None and not any(map(_is_ours, points)):
        raise InputError(f"no study {name!r}: mechclust was installed by another version; install it again with pip")
    if point is None:
        raise InputError(f"no study {name!r}{error_suggestion(name, sorted({point.name for point in points}))}")
    registered = _loaded(point, points)
    if registered.study is None:
        raise InputError(f"study {name!r} of {registered.package} is broken: {registered.error}")
    return registered.study


def open_run(out: str | Path) -> tuple[Study, Any]:
    """Return the study and configuration of a run's folder.

    Raises:
        InputError: if the folder holds no run.
    """
    record = read_run_record(Path(out), "give the --out folder of a run")
    study = get_study(record["study"])
    return study, settings_from_json(next(iter(study.presets.values())), record["config"])


def _points() -> list[EntryPoint]:
    return sorted(entry_points(group=_STUDY_ENTRY_POINTS), key=_ours_first)


def _ours_first(point: EntryPoint) -> tuple[bool, str, str]:
    return not _is_ours(point), point.name, entry_point_package(point)


def _is_ours(point: EntryPoint) -> bool:
    return entry_point_package(point).startswith("mechclust ")


def _loaded(point: EntryPoint, points: Sequence[EntryPoint]) -> RegisteredStudy:
    package = entry_point_package(point)
    if not _is_ours(point) and [other.name for other in points].count(point.name) > 1:
        return RegisteredStudy(point.name, package, None, f"another study is called {point.name!r}; rename one")

    return RegisteredStudy(point.name, package, *load_entry_point(point, partial(_why_not, point.name)))


def _why_not(name: str, study: Any) -> str:
    """Return why an object cannot be registered as the study called ``name``, or ``""`` if it can."""
    if not isinstance(study, Study):
        return f"is {study!r}; expected a mechclust.studies.Study"
    return "" if study.name == name else f"is called {study.name!r}; register it under that name"
