"""The encoders that a suite measures with one topic model, and how many random twins each has."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mechclust.commands.topics.suite.published import PUBLISHED
from tasks import InputError
from tasks.errors import error_suggestion
from tasks.text.files import read_text
from tasks.text.visible import quoted

_EXPECTED = 'a TOML file with a table [[model]] for each, such as model = "bert-base-uncased"'


@dataclass(frozen=True)
class SuiteModel:
    """One encoder of a suite.

    Attributes:
        model: hub name or local directory.
        name: in tables and folders. By default the model's name.
        twins: how many times it is measured with random weights, seeds 0, 1, ...
        published: the row of the published tables to compare it with. Empty for none.
    """

    model: str
    name: str = ""
    twins: int = 1
    published: str = ""


def suite_models(given: Sequence[str]) -> list[SuiteModel]:
    """Return the models of a suite file, if one ``.toml`` is given. Otherwise, return the names and directories given.

    Raises:
        InputError: for none, as ``read_suite``, and for a model that is given twice.
    """
    if len(given) == 1 and given[0].endswith(".toml"):
        return read_suite(given[0])
    for i, name in enumerate(given):
        if name.endswith(".toml"):
            raise InputError(f"{name!r} is one of {len(given)} given to --suite; give one suite file, or models alone")
        if _place(name) in map(_place, given[:i]):
            raise InputError(f"the model {name!r} is given to --suite twice; name each model once")
    if not given:
        raise InputError("--suite names no models; give a suite file (.toml), or hub names and directories")
    return [SuiteModel(name, name) for name in given]


def read_suite(path: str | Path) -> list[SuiteModel]:
    """Return the models of a suite, in the file's order.

    Args:
        path: a TOML file with one table ``[[model]]`` for each: ``model``, and if wanted ``name``, ``twins`` and
            ``published``.

    Raises:
        InputError: for a file that is missing or no TOML, or no models. Also for a missing key, a value of another
            kind, or a model or a name given twice.
    """
    try:
        contents = tomllib.loads(read_text(path, _EXPECTED, called="suite file"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{str(path)!r} is not TOML ({error}); expected {_EXPECTED}") from None
    tables = contents.pop("model", None)
    if contents:
        raise InputError(
            f"{str(path)!r} has {quoted(next(iter(contents)))} outside of its models; expected {_EXPECTED}"
        )
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{str(path)!r} names no models; expected {_EXPECTED}")
    models = [_model(table, f"{str(path)!r}, model {i}") for i, table in enumerate(tables, start=1)]
    for key in ("model", "name", "published"):
        seen: dict[str, int] = {}
        for i, each in enumerate(models, start=1):
            value = getattr(each, key)
            first = seen.setdefault(_place(value) if key == "model" else value, i)
            if value and first != i:
                raise InputError(
                    f"{str(path)!r}, model {i}: the {key} {value!r} is that of model {first} too; name each model once"
                )
    return models


def _place(model: str) -> str:
    """Return one text for all ways to write a folder's path."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def _model(table: Mapping[str, Any], where: str) -> SuiteModel:
    known = {field.name: type(field.default) for field in fields(SuiteModel)} | {"model": str}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{where} has a key {key!r}{error_suggestion(key, known)}")
        if type(value) is not known[key]:  # True is not a number of twins
            kind = "a string" if known[key] is str else "an integer"
            raise InputError(f"{where}: {key} is {quoted(value)}; expected {kind}")
    if not table.get("model"):
        raise InputError(f'{where} has no model; give a hub name or a directory, such as model = "bert-base-uncased"')
    if table.get("twins", 0) < 0:
        raise InputError(f"{where}: twins is {table['twins']}; expected at least 0")
    if table.get("published", "") not in ("", *PUBLISHED):
        raise InputError(
            f"{where}: published is {table['published']!r}; expected one of {', '.join(PUBLISHED)}, or leave it out"
        )
    return SuiteModel(**{**table, "name": table.get("name") or table["model"]})
