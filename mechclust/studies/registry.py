"""Which studies there are: ours, and those of other installed packages, all by entry point."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from mechclust.studies.study import Study, from_dict, read_record
from tasks import InputError
from tasks.errors import first_line, suggest

GROUP = "mechclust.studies"


@dataclass(frozen=True)
class RegisteredStudy:
    """A study that an installed package registers as an entry point of the group ``mechclust.studies``.

    Attributes:
        name: what ``mechclust run`` calls it.
        package: that registers it, with its version.
        study: the study; ``None`` where it cannot be loaded.
        error: why it cannot.
    """

    name: str
    package: str
    study: Study | None
    error: str = ""


def registered_studies() -> list[RegisteredStudy]:
    """Every study that is registered, ours first, also those that cannot be loaded."""
    points = sorted(entry_points(group=GROUP), key=lambda point: not point.value.startswith("mechclust."))
    return [_loaded(point) for point in points]


def list_studies() -> list[Study]:
    """The studies that can be run."""
    return [found.study for found in registered_studies() if found.study is not None]


def get_study(name: str) -> Study:
    """The study called ``name``.

    Raises:
        InputError: listing the studies there are, or saying why this one cannot be loaded.
    """
    points = entry_points(group=GROUP)
    if name not in points.names:
        raise InputError(f"no study {name!r}{suggest(name, sorted(points.names))}")
    found = [_loaded(point) for point in points if point.name == name]
    if len(found) > 1:
        packages = " and ".join(each.package for each in found)
        raise InputError(f"{packages} both register a study {name!r}; uninstall one of them")
    if found[0].study is None:
        raise InputError(f"study {name!r} of {found[0].package} cannot be loaded: {found[0].error}; repair its package")
    return found[0].study


def open_run(out: str | Path) -> tuple[Study, Any]:
    """The study and configuration of a run's folder.

    Raises:
        InputError: when the folder holds no run.
    """
    record = read_record(Path(out) / "config.json", "give the --out folder of a run")
    study = get_study(record["study"])
    return study, from_dict(next(iter(study.presets.values())), record["config"])


def _loaded(point: EntryPoint) -> RegisteredStudy:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
    try:
        study = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever somebody else's module does on import, also sys.exit
        return RegisteredStudy(point.name, package, None, f"{point.value}: {first_line(error)}")
    if not isinstance(study, Study):
        why = f"{point.value} is a {type(study).__name__}; expected a mechclust.studies.Study"
        return RegisteredStudy(point.name, package, None, why)
    return RegisteredStudy(point.name, package, study)
