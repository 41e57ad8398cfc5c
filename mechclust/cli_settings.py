"""Turn settings into options of the command line, with their docstrings as help."""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro
from docstring_parser import parse
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from tasks.text.visible import visible_text

_NO_DEFAULT_SHOWN = tyro.conf.arg(help_behavior_hint="")  # in place of "(default: None)"
_T = TypeVar("_T")
Perhaps = Annotated[_T | None, _NO_DEFAULT_SHOWN]
"""An optional option."""


@cache
def _described(cls: type) -> dict[str, str]:
    """Return the arguments in a class's docstring."""
    return {param.arg_name: param.description or "" for param in parse(cls.__doc__ or "").params}


def _plain_settings(info: StructTypeInfo, *, none_given: bool = True) -> StructConstructorSpec | None:
    """Return how tyro makes options of a settings class: docstrings without markup, and no empty defaults in help.

    With ``none_given`` false, ``None`` in a given instance (a study's preset) is a value like others.
    """
    if not dataclasses.is_dataclass(info.type) or info.type.__module__.startswith("tyro."):
        return None
    texts: dict[str, str] = {}
    for cls in reversed(info.type.__mro__):
        texts |= _described(cls)
    types = get_type_hints(info.type, include_extras=True)
    fields = []
    for field in dataclasses.fields(info.type):
        default = getattr(info.default, field.name, field.default)
        if default is dataclasses.MISSING:
            default = tyro.MISSING if field.default_factory is dataclasses.MISSING else field.default_factory()
        kind = types[field.name]
        if default == () or (default is None and not (none_given and isinstance(info.default, info.type))):
            kind = Annotated[kind, _NO_DEFAULT_SHOWN, tyro.conf.DisallowNone]
        elif isinstance(default, str) and visible_text(default) != default:
            kind = Annotated[kind, tyro.conf.arg(help_behavior_hint=f"(default: {default!r})")]
        text = " ".join(texts[field.name].replace("``", "").split()) if field.name in texts else None
        fields.append(StructFieldSpec(field.name, kind, default, text))
    return StructConstructorSpec(instantiate=info.type, fields=tuple(fields))


SETTINGS = ConstructorRegistry()
"""For commands, whose settings are ``None`` only if they are not given."""
SETTINGS.struct_rule(_plain_settings)
PRESET_SETTINGS = ConstructorRegistry()
"""For commands with presets."""
PRESET_SETTINGS.struct_rule(partial(_plain_settings, none_given=False))


def option_paths(config: Any, prefix: str = "") -> list[str]:
    """Return field names of a configuration, nested ones by dots."""
    paths = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = f"{prefix}{field.name}"
        paths += option_paths(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return paths
