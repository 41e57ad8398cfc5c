"""Values that no setting may have, for every number that a command or a study takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from tasks.settings import SettingLimit

HUGE = str(10**20)
_NOT_TRIED = ("engine", "address", "gpus_per_job", "workers", "device_map", "trust_remote_code")


def numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the option and the type of every setting, nested ones by dots."""
    cls = config if isinstance(config, type) else type(config)
    types = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        value = getattr(config, field.name, field.default)
        if is_dataclass(value) and not isinstance(value, type):
            yield from numbers(value, f"{prefix}{field.name}.")
        elif field.name not in _NOT_TRIED:
            yield f"{prefix}{field.name}".replace("_", "-"), types[field.name]


def bad_words(kind: Any) -> list[str]:
    """Return what may not stand after an option of this type; nothing for texts, paths and switches."""
    origin = get_origin(kind)
    parts = get_args(kind)
    if origin is Annotated:
        outside = [_outside(mark) for mark in parts[1:] if isinstance(mark, SettingLimit)]
        return [*bad_words(parts[0]), *outside]
    if origin in (Union, UnionType):
        return bad_words(next(part for part in parts if part is not NoneType))
    if origin is tuple and parts[-1] is not ... and parts:
        return [" ".join([word] * len(parts)) for word in bad_words(parts[0])]
    if origin is tuple and get_origin(parts[0]) is not tuple:
        return bad_words(parts[0])
    if kind is int:
        return [HUGE, "2.5", "nan"]
    if kind is float:
        return ["nan", "inf", "-inf"]
    return []


def _outside(limit: SettingLimit) -> str:
    """Return a number beyond one end of a range."""
    step = {"at least": -1, "at most": 1}.get(limit.words, 0)
    return str(limit.number + step)
