"""The models to measure, from names or a suite file.

A model's twins are copies of its architecture with random weights, which show what chance gives.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mechclust.commands.topics.published import PUBLISHED
from mechclust.models.pretrained import AnyModel
from mechclust.models.resolved import resolve_model
from tasks import InputError
from tasks.errors import error_suggestion
from tasks.text.files import read_text
from tasks.text.visible import quoted

_EXPECTED = 'a TOML file with a table [[model]] for each, such as model = "bert-base-uncased"'


@dataclass(frozen=True, repr=False)
class TopicsModel:
    """One model to measure.

    Attributes:
        model: hub name, local directory, or the folder of an adapter; in Python also a model in memory.
        name: in tables and folders. By default the model's name.
        twins: number of copies with random weights, seeds 0, 1, ... ``None``: as ``TopicsConfig`` says.
        published: the row of the published tables to compare it with. Empty for none.

    Example:
        >>> TopicsModel("google-bert/bert-base-uncased", name="BERT", published="BERT")
        TopicsModel(BERT)
    """

    model: AnyModel
    name: str = ""
    twins: int | None = None
    published: str = ""

    def __repr__(self) -> str:
        unnamed = self.model if isinstance(self.model, (str, Path)) else type(self.model).__name__
        return f"TopicsModel({self.name or unnamed})"


def topics_models(given: Any, adapter: str | Path | None = None, untrained: int | None = None) -> list[TopicsModel]:
    """Return models that are given by name, as ``TopicsModel`` or in memory: one, or several in a list.

    Args:
        given: the models.
        adapter: folder of an adapter on the model, if there is one model.
        untrained: number of twins of a model that does not say how many it has.

    Raises:
        InputError: for no models, a suite file, an adapter on several, and a model, a name or a published row that is
            given twice. Also for an unknown published row, and a negative number of twins.
    """
    several = given if isinstance(given, (list, tuple)) else [given]
    if not several:
        raise InputError(
            "no models are given; give hub names or directories, or a suite file (--suite FILE.toml, in Python "
            "read_suite(FILE))"
        )
    if adapter is not None and len(several) > 1:
        raise InputError("--adapter is for one model, and several are given; name the adapter's folder as a model")
    models: list[TopicsModel] = []
    for each in several:
        model = each if isinstance(each, TopicsModel) else TopicsModel(each)
        source = str(model.model) if isinstance(model.model, Path) else model.model
        if isinstance(source, str) and source.endswith(".toml"):
            raise InputError(
                f"{source!r} is a suite file and no model; give it alone: --suite {source}, in Python "
                f"read_suite({source!r})"
            )
        name = model.name or resolve_model(source, adapter).title
        model = replace(model, model=source, name=name, twins=untrained if model.twins is None else model.twins)
        for before in models:
            if real_path(model.model) == real_path(before.model):
                raise InputError(f"the model {model.name!r} is given twice; name each model once")
            if model.name == before.name:
                raise InputError(
                    f"two models are called {model.name!r}; give one another name: TopicsModel(model, name=...)"
                )
        models.append(model)
    _check(models)
    return models


def read_suite(path: str | Path) -> list[TopicsModel]:
    """Return the models of a suite file, in its order.

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
    for key in ("model", "name"):
        seen: dict[str, int] = {}
        for i, each in enumerate(models, start=1):
            value = getattr(each, key)
            first = seen.setdefault(real_path(value) if key == "model" else value, i)
            if first != i:
                raise InputError(
                    f"{str(path)!r}, model {i}: the {key} {value!r} is that of model {first} too; name each model once"
                )
    _check(models, f"{str(path)!r}, ")
    return models


def real_path(model: Any) -> Any:
    """Return one text for all ways to write the path of a model. Other names and models in memory are unchanged."""
    return str(Path(model).resolve()) if isinstance(model, str) and Path(model).exists() else model


def _check(models: Sequence[TopicsModel], where: str = "") -> None:
    """Refuse bad numbers of twins, and published rows that are unknown or given twice.

    Args:
        models: the models.
        where: begins the message of an error.
    """
    first_of_row: dict[str, int] = {}
    for i, model in enumerate(models, start=1):
        if model.twins is not None and model.twins < 0:
            raise InputError(f"{where}model {i}: twins is {model.twins}; expected at least 0")
        if model.published not in ("", *PUBLISHED):
            raise InputError(
                f"{where}model {i}: published is {model.published!r}; expected one of {', '.join(PUBLISHED)}, or leave "
                "it out"
            )
        first = first_of_row.setdefault(model.published, i)
        if model.published and first != i:
            raise InputError(
                f"{where}model {i}: the published {model.published!r} is that of model {first} too; name each model "
                "once"
            )


def _model(table: Mapping[str, Any], where: str) -> TopicsModel:
    known = {"model": str, "name": str, "twins": int, "published": str}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{where} has a key {key!r}{error_suggestion(key, known)}")
        if type(value) is not known[key]:  # True is not a number of twins
            kind = "a string" if known[key] is str else "an integer"
            raise InputError(f"{where}: {key} is {quoted(value)}; expected {kind}")
    if not table.get("model"):
        raise InputError(f'{where} has no model; give a hub name or a directory, such as model = "bert-base-uncased"')
    return TopicsModel(**{**table, "name": table.get("name") or table["model"]})
