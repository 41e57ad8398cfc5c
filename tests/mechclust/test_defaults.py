"""No default and no preset changes unless somebody means it to.

``python -m tests.mechclust.test_defaults`` records them anew.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mechclust
import probes
import tasks
from mechclust.studies.registry import get_study, registered_studies

RECORDED = Path(__file__).parents[1] / "data" / "settings.json"
PLAIN = bool | int | float | str | tuple | None
LATER = ("mechclust.jobs.ray_pool", "mechclust.jobs.ray_worker", "mechclust.__main__")  # import Ray, or run


def modules() -> Iterator[ModuleType]:
    """Every module of the packages, except those that are imported later."""
    for package in (mechclust, probes, tasks):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name not in LATER:
                yield importlib.import_module(found.name)


def of_module(module: ModuleType, kind: Any) -> Iterator[tuple[str, Any]]:
    """What a module defines of a kind, by name."""
    for name, value in inspect.getmembers(module, kind):
        if value.__module__ == module.__name__:
            yield f"{module.__name__}.{name}", value


def settings() -> dict[str, Any]:
    """The presets of the studies, and the defaults of each class of settings and of each function."""
    found: dict[str, Any] = {}
    for study in registered_studies():
        if study.package.startswith("mechclust "):
            for name, config in get_study(study.name).presets.items():
                found[f"{study.name} {name}"] = shown(config)
    for module in modules():
        for name, kind in of_module(module, inspect.isclass):
            members = dict(vars(kind))
            if dataclasses.is_dataclass(kind) and name.endswith(("Config", "Settings")):
                found[name] = {field.name: default_of(field) for field in dataclasses.fields(kind)}
                del members["__init__"]
            found |= {f"{name}.{part}": optional for part, optional in arguments(members.items())}
        found |= dict(arguments(of_module(module, inspect.isfunction)))
    return found


def arguments(members: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The functions that have defaults, as far as these are numbers, words, or nothing."""
    for name, function in members:
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters.values()
            given = {each.name: shown(each.default) for each in parameters if isinstance(each.default, PLAIN)}
            if given:
                yield name, given


def default_of(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return shown(field.default_factory())
    return "needed" if field.default is dataclasses.MISSING else shown(field.default)


def shown(value: Any) -> Any:
    """A value as JSON: dataclasses by field, and everything else but numbers and lists as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: shown(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    if isinstance(value, dict):
        return {str(key): shown(each) for key, each in value.items()}
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


def test_settings_are_the_recorded_ones():
    recorded = json.loads(RECORDED.read_text())
    found = json.loads(json.dumps(settings()))
    assert found.keys() == recorded.keys()
    changed = {name: value for name, value in found.items() if value != recorded[name]}
    assert changed == {name: recorded[name] for name in changed}


def test_nothing_shows_its_progress_unless_asked():
    shows = [
        name
        for module in modules()
        for name, function in of_module(module, inspect.isfunction)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name == "progress" and parameter.default is True
    ]
    assert shows == []


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(settings(), indent=1, sort_keys=True) + "\n")
