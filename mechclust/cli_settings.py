"""Turn settings into options of the command line, with their docstrings as help."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro
from docstring_parser import parse
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from mechclust.command_table import NO_VERIFY
from probes.store.files import VERIFY
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


def nearest_options(words: Sequence[str], help_text: str) -> dict[str, str]:
    """Return the words that are not options of a command, each with the nearest option.

    Args:
        words: of the command line.
        help_text: the command's help.

    Example:
        >>> nearest_options(["--nperm", "9", "--seed=3"], "--n-permutations INT, --n-init INT, --seed INT")
        {'--nperm': '--n-permutations'}
        >>> nearest_options(["--tuning.step", "9"], "--tuning.steps INT, --tuning.seed INT.")
        {'--tuning.step': '--tuning.steps'}
    """
    known = {_letters(option): option for option in re.findall(r"--[a-z](?:[a-z0-9.-]*[a-z0-9])?", help_text)}
    nearest: dict[str, str] = {}
    for word in words:
        name = word.partition("=")[0]
        letters = _letters(name)
        if not name.startswith("--") or name == "--" or letters in known:
            continue
        longer = sorted((option for option in known if option.startswith(letters)), key=len)
        similar = longer or difflib.get_close_matches(letters, known, n=1)
        if similar:
            nearest[name] = known[similar[0]]
    return nearest


def _letters(option: str) -> str:
    return option.replace("-", "").replace("_", "").lower()


def option_paths(config: Any, prefix: str = "") -> list[str]:
    """Return field names of a configuration, nested ones by dots."""
    paths = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = f"{prefix}{field.name}"
        paths += option_paths(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return paths


@contextmanager
def verifying(argv: list[str], readers: Sequence[str]) -> Iterator[list[str]]:
    """Give the arguments without ``--no-verify``, an option of the commands that read our files."""
    if NO_VERIFY not in argv or argv[0] not in readers:
        yield argv
        return
    before = os.environ.get(VERIFY)
    os.environ[VERIFY] = "0"  # the environment reaches worker processes too
    try:
        yield [word for word in argv if word != NO_VERIFY]
    finally:
        os.environ.pop(VERIFY)
        os.environ.update({} if before is None else {VERIFY: before})
