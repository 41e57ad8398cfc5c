"""Configurations: frozen dataclasses, checked, changed, and written as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tasks.errors import InputError, check_choice, suggest

ConfigT = TypeVar("ConfigT")


def to_json(config: Any) -> dict[str, Any]:
    """A configuration's fields as JSON types, nested configurations included."""
    return json.loads(json.dumps(asdict(config)))  # type: ignore[no-any-return]


def from_json(like: Any, values: Mapping[str, Any]) -> Any:
    """The configuration that ``to_json`` gave.

    Args:
        like: its class, or a configuration of the class that has what ``values`` leaves out.
        values: by field. Lists become tuples, which JSON does not have.

    Raises:
        InputError: for a field that is not there.
    """
    cls = like if isinstance(like, type) else type(like)
    _check_fields(cls, values)
    found = {}
    for name, value in values.items():
        old = getattr(like, name, None)
        found[name] = from_json(old, value) if is_dataclass(old) and isinstance(value, Mapping) else _tuples(value)
    return like(**found) if like is cls else replace(like, **found)


def configure(config: ConfigT, **changes: Any) -> ConfigT:
    """A copy of a configuration with fields changed, nested ones by dots (``{"training.lr": 0.1}``).

    Raises:
        InputError: for a field that is not there, with the nearest name.
    """
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        _check_fields(type(config), [name])
        changed = configure(getattr(config, name), **{rest: value}) if rest else value
        config = replace(config, **{name: changed})  # type: ignore[type-var]  # a dataclass, which no type says
    return config


def check_choices(config: Any) -> None:
    """Refuse a value that is not among those of its field's ``Literal``."""
    hints = {name: hint for name, hint in get_type_hints(type(config)).items() if get_origin(hint) is Literal}
    check_choice(**{name: (getattr(config, name), get_args(hint)) for name, hint in hints.items()})


def check_finite(config: Any, prefix: str = "") -> None:
    """Refuse NaN and infinity in every field, nested ones included: JSON has neither, and no setting means either.

    Args:
        config: a dataclass.
        prefix: of the names in the error, such as ``"training."``.

    Raises:
        InputError: naming the first such field, nested ones by dots.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Settings:
        ...     lr: float
        >>> check_finite(Settings(float("inf")))
        Traceback (most recent call last):
        tasks.errors.InputError: lr is inf; expected a finite number
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            check_finite(value, f"{prefix}{field.name}.")
        for number in _floats(value):
            if not math.isfinite(number):
                raise InputError(f"{prefix}{field.name} is {number}; expected a finite number")


def _floats(value: Any) -> Iterator[float]:
    """Yield the floats of a value, also of lists in lists."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _floats(part)


def _check_fields(cls: Any, names: Iterable[str]) -> None:
    known = [field.name for field in fields(cls)]
    for name in names:
        if name not in known:
            raise InputError(f"{cls.__name__} has no field {name!r}{suggest(name, known)}")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
