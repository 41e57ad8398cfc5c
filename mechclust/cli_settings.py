"""How settings become options of the command line, with their docstrings as help."""

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
from tasks.text.visible import visible

_NOTHING = tyro.conf.arg(help_behavior_hint="")  # after an option's help, in place of "(default: None)"
_T = TypeVar("_T")
Perhaps = Annotated[_T | None, _NOTHING]
"""An option that may be left out."""


@cache
def _described(cls: type) -> dict[str, str]:
    """The arguments in a class's docstring."""
    return {param.arg_name: param.description or "" for param in parse(cls.__doc__ or "").params}


def _plain_settings(info: StructTypeInfo, *, none_given: bool = True) -> StructConstructorSpec | None:
    """Settings as they stand in help: docstrings without mark-up, and nothing where nothing is the default; except
    where ``none_given`` in an instance, as in a study's preset."""
    if not dataclasses.is_dataclass(info.type) or info.type.__module__.startswith("tyro."):
        return None
    texts = {name: text for cls in reversed(info.type.__mro__) for name, text in _described(cls).items()}
    types = get_type_hints(info.type, include_extras=True)
    fields = []
    for field in dataclasses.fields(info.type):
        default = getattr(info.default, field.name, field.default)
        if default is dataclasses.MISSING:
            default = tyro.MISSING if field.default_factory is dataclasses.MISSING else field.default_factory()
        kind = types[field.name]
        if default == () or (default is None and not (none_given and isinstance(info.default, info.type))):
            kind = Annotated[kind, _NOTHING, tyro.conf.DisallowNone]
        elif isinstance(default, str) and visible(default) != default:
            kind = Annotated[kind, tyro.conf.arg(help_behavior_hint=f"(default: {default!r})")]
        text = " ".join(texts[field.name].replace("``", "").split()) if field.name in texts else None
        fields.append(StructFieldSpec(field.name, kind, default, text))
    return StructConstructorSpec(instantiate=info.type, fields=tuple(fields))


SETTINGS = ConstructorRegistry()
"""For commands, whose settings are ``None`` only where nothing is given."""
SETTINGS.struct_rule(_plain_settings)
PRESET_SETTINGS = ConstructorRegistry()
"""For commands with presets."""
PRESET_SETTINGS.struct_rule(partial(_plain_settings, none_given=False))


def nearest_options(words: Sequence[str], told: str) -> dict[str, str]:
    """Words that are not options of a command, each with the option that it may have been meant to be.

    Args:
        words: of the command line.
        told: the command's help.

    Example:
        >>> nearest_options(["--nperm", "9", "--seed=3"], "--n-permutations INT, --n-init INT, --seed INT")
        {'--nperm': '--n-permutations'}
        >>> nearest_options(["--tuning.step", "9"], "--tuning.steps INT, --tuning.seed INT.")
        {'--tuning.step': '--tuning.steps'}
    """
    known = {_letters(option): option for option in re.findall(r"--[a-z](?:[a-z0-9.-]*[a-z0-9])?", told)}
    found: dict[str, str] = {}
    for word in (word.partition("=")[0] for word in words if word.startswith("--") and word != "--"):
        given = _letters(word)
        begin = sorted((letters for letters in known if letters.startswith(given)), key=len)
        near = [] if given in known else begin or difflib.get_close_matches(given, known, n=1)
        if near:
            found[word] = known[near[0]]
    return found


def _letters(option: str) -> str:
    return option.replace("-", "").replace("_", "").lower()


def option_paths(config: Any, prefix: str = "") -> list[str]:
    """Field names of a configuration, nested ones by dots."""
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = f"{prefix}{field.name}"
        found += option_paths(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return found


@contextmanager
def verifying(argv: list[str], readers: Sequence[str]) -> Iterator[list[str]]:
    """The arguments without ``--no-verify``, an option of the commands that read files of ours."""
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
