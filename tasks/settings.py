"""Configurations: frozen dataclasses, checked, changed, and written as JSON.

The range of a setting is part of its type, and ``check_settings`` checks all types of a configuration at once. Other
arguments are checked one by one, by ``check_count`` and the like.

Example:
    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     rate: Annotated[float, Above(0), AtMost(1)] = 0.5
    ...     kind: Literal["plain", "lobed"] = "plain"
    ...     seeds: tuple[Seed, ...] = (0, 1)
    ...
    ...     def __post_init__(self) -> None:
    ...         check_settings(self)
    >>> Settings(rate=0)
    Traceback (most recent call last):
    tasks.errors.InputError: rate is 0; expected above 0
    >>> Settings(seeds=(7, -1))
    Traceback (most recent call last):
    tasks.errors.InputError: seeds[1] is -1; expected at least 0
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tasks.errors import InputError, error_suggestion
from tasks.repeated_values import repeated_values

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class SettingLimit:
    """One end of a setting's range, written into its type: ``Annotated[int, AtLeast(2)]``.

    Attributes:
        words: the limit in words, such as ``"at least"``.
        holds: whether a number is on the right side of it.
        number: the limit itself.
    """

    words: str
    holds: Callable[[float, float], bool]
    number: float


AtLeast = partial(SettingLimit, "at least", operator.ge)
AtMost = partial(SettingLimit, "at most", operator.le)
Above = partial(SettingLimit, "above", operator.gt)
Below = partial(SettingLimit, "below", operator.lt)

_MAX_INTEGER = 2**63 - 1  # largest 64-bit integer of PyTorch and NumPy
MAX_SEED = 2**32 - 1  # largest seed of scikit-learn
MAX_DRAWS = 10**7  # p-values of one in a million need no more
MAX_COUNT = 10**9  # limit on steps, prompts or tokens
_MAX_REPEATS = 10**4  # limit on repeats of a whole measurement: starts, passes, models with random weights
MAX_SIZE = 10**7  # limit on a vocabulary, a context or a width: 40 times the largest vocabulary in use

Count = Annotated[int, AtLeast(1), AtMost(MAX_COUNT)]
Several = Annotated[int, AtLeast(2), AtMost(MAX_COUNT)]
CountOrZero = Annotated[int, AtLeast(0), AtMost(MAX_COUNT)]
Size = Annotated[int, AtLeast(1), AtMost(MAX_SIZE)]
SizeOfSeveral = Annotated[int, AtLeast(2), AtMost(MAX_SIZE)]
Repeats = Annotated[int, AtLeast(1), AtMost(_MAX_REPEATS)]
RepeatsOrZero = Annotated[int, AtLeast(0), AtMost(_MAX_REPEATS)]
Draws = Annotated[int, AtLeast(1), AtMost(MAX_DRAWS)]
DrawsOrZero = Annotated[int, AtLeast(0), AtMost(MAX_DRAWS)]
Seed = Annotated[int, AtLeast(0), AtMost(MAX_SEED)]
WideSeed = Annotated[int, AtLeast(0)]  # for PyTorch's and NumPy's generators only
Positive = Annotated[float, Above(0)]
NotNegative = Annotated[float, AtLeast(0)]
Share = Annotated[float, AtLeast(0), AtMost(1)]
ShareBelowOne = Annotated[float, AtLeast(0), Below(1)]
PositiveShare = Annotated[float, Above(0), AtMost(1)]
ShareBetween = Annotated[float, Above(0), Below(1)]

_KINDS = {str: "a string", bool: "True or False"}


def settings_to_json(config: Any) -> dict[str, Any]:
    """Return a configuration's fields as JSON types, nested configurations included."""
    return json.loads(json.dumps(asdict(config)))  # type: ignore[no-any-return]


def settings_from_json(like: Any, values: Mapping[str, Any]) -> Any:
    """Return the configuration that ``settings_to_json`` wrote.

    Args:
        like: its class, or a configuration of the class with values for fields that ``values`` lacks.
        values: by field. Lists become tuples, which JSON does not have.

    Raises:
        InputError: for a field that is not there.
    """
    cls = like if isinstance(like, type) else type(like)
    _check_fields(cls, values)
    changes = {}
    for name, value in values.items():
        default = getattr(like, name, None)
        if is_dataclass(default) and isinstance(value, Mapping):
            changes[name] = settings_from_json(default, value)
        else:
            changes[name] = _tuples(value)
    return like(**changes) if like is cls else replace(like, **changes)


def configure(config: ConfigT, **changes: Any) -> ConfigT:
    """Return a copy of a configuration with fields changed, nested ones by dots (``{"training.lr": 0.1}``).

    Raises:
        InputError: for a field that is not there, with the nearest name.
    """
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        _check_fields(type(config), [name])
        changed = configure(getattr(config, name), **{rest: value}) if rest else value
        config = replace(config, **{name: changed})  # type: ignore[type-var]  # a dataclass, which no type says
    return config


def check_settings(config: Any, prefix: str = "") -> None:
    """Refuse numbers, choices and tuples that do not fit the type of their field, or are outside the range in it.

    Numbers must be finite, integers must fit into 64 bits, and choices must be in their ``Literal``. Strings, flags and
    nested configurations are checked too. Numbers of NumPy become numbers of Python, which JSON and ``repr`` need.

    Args:
        config: a dataclass.
        prefix: written before the names of fields, such as ``"training."``.

    Raises:
        InputError: such as ``"steps is 0; expected at least 1"``, with dots in the names of nested fields.
    """
    types = _types_of(config.__class__)
    for field in fields(config):
        value = getattr(config, field.name)
        plain = _checked(f"{prefix}{field.name}", value, types[field.name])
        if plain is not value:
            object.__setattr__(config, field.name, plain)  # configurations are frozen


@cache
def _types_of(cls: type) -> dict[str, Any]:
    """Return the types of a configuration's fields, which must be defined in its module."""
    try:
        return get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise InputError(f"the types of {cls.__name__} cannot be read ({error}); import them at run time") from error


def _checked(name: str, value: Any, kind: Any) -> Any:
    """Return a value with numbers of Python. Refuse one that is not of this kind, part by part."""
    origin = get_origin(kind)
    parts = get_args(kind)
    if origin is Literal:
        check_choice(**{name: (value, parts)})
    elif origin is Annotated:
        plain = _checked(name, value, parts[0])
        _check_limits(name, plain, [mark for mark in parts[1:] if isinstance(mark, SettingLimit)])
        return plain
    elif origin in (Union, UnionType):
        others = [part for part in parts if part is not NoneType]
        if value is not None:
            return _checked(name, value, others[0] if len(others) == 1 else Any)
    elif origin is tuple:
        return _checked_parts(name, value, parts)
    elif kind in _KINDS:
        if not isinstance(value, kind):
            raise InputError(f"{name} is {value!r}; expected {_KINDS[kind]}")
    elif kind is int:
        return _checked_integer(name, value)
    elif kind is float or isinstance(value, float):
        return _checked_number(name, value)
    elif is_dataclass(value) and not isinstance(value, type):
        check_settings(value, f"{name}.")
    elif isinstance(value, (tuple, list)):
        return _checked_parts(name, value, (parts[0] if parts else Any, ...))
    elif isinstance(value, Real) and not isinstance(value, bool):
        return _plain_number(value)
    return value


def _checked_parts(name: str, values: Any, kinds: tuple[Any, ...]) -> Any:
    """Return several values with numbers of Python, unchanged if they have them."""
    if isinstance(values, (str, Iterator)) or not isinstance(values, Iterable):
        raise InputError(f"{name} is {values!r}; expected several values")
    given = tuple(values)
    if kinds[-1:] == (...,):
        kinds = kinds[:1] * len(given)
    if len(given) != len(kinds):
        raise InputError(f"{name} has {len(given)} values; expected {len(kinds)}")
    plain = tuple(_checked(f"{name}[{i}]", value, kinds[i]) for i, value in enumerate(given))
    if isinstance(values, (tuple, list)) and all(map(operator.is_, plain, given)):
        return values
    return list(plain) if isinstance(values, list) else plain


def _checked_integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} is {value!r}; expected an integer")
    if abs(int(value)) > _MAX_INTEGER:
        raise InputError(f"{name} is {value}; expected an integer that fits into 64 bits")
    return int(value)


def _checked_number(name: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} is {value!r}; expected a number")
    if value != value or abs(value) == math.inf:
        raise InputError(f"{name} is {value}; expected a finite number")
    return _plain_number(value)


def _plain_number(value: Real) -> int | float:
    """Return a number as Python's int or float. A number of Python stays as it is."""
    return int(value) if isinstance(value, Integral) else float(value)


def _check_limits(name: str, value: Any, limits: Iterable[SettingLimit]) -> None:
    for limit in limits:
        if not limit.holds(value, limit.number):
            raise InputError(f"{name} is {value}; expected {limit.words} {limit.number}")


def _check_fields(cls: Any, names: Iterable[str]) -> None:
    known = [field.name for field in fields(cls)] if is_dataclass(cls) else []
    for name in names:
        if name not in known:
            raise InputError(f"{cls.__name__} has no field {name!r}{error_suggestion(name, known)}")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# ---- checks of one argument ----


def check_different_settings(**given: Sequence[object]) -> None:
    """Refuse values of which one is given twice: ``check_different_settings(seeds=seeds)``.

    Raises:
        InputError: naming the first, such as ``"seeds has 3 twice; give it once"``.
    """
    for name, values in given.items():
        twice = repeated_values(values)
        if twice:
            raise InputError(f"{name} has {twice[0]!r} twice; give it once")


def check_multiple(**given: tuple[int, int]) -> None:
    """Refuse widths that heads do not divide: ``check_multiple(d_model=(d_model, n_heads))``.

    Raises:
        InputError: naming the first, such as ``"d_model is 8; expected a multiple of n_heads (3)"``.
    """
    for name, (width, n_heads) in given.items():
        if width % n_heads:
            raise InputError(f"{name} is {width}; expected a multiple of n_heads ({n_heads})")


def check_at_least(**given: tuple[object, float]) -> None:
    """Refuse values that are no finite numbers or too small: ``check_at_least(tol=(tol, 0))``.

    Raises:
        InputError: naming the first, such as ``"tol is -1; expected at least 0"``.
    """
    for name, (value, least) in given.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise InputError(f"{name} is {value!r}; expected a number of at least {least}")
        if value < least:
            raise InputError(f"{name} is {value}; expected at least {least}")


def check_count(**given: tuple[object, int]) -> None:
    """Refuse values that are no integers or too small: ``check_count(tokens_per_batch=(tokens_per_batch, 1))``.

    Raises:
        InputError: naming the first, such as ``"tokens_per_batch is 80.0; expected an integer of at least 1"``.
    """
    for name, (value, least) in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InputError(f"{name} is {value!r}; expected an integer of at least {least}")
        check_at_least(**{name: (int(value), least)})


def check_choice(**given: tuple[object, Sequence[object]]) -> None:
    """Refuse values that are not among the known ones: ``check_choice(split=(split, ("line", "file")))``.

    Raises:
        InputError: naming the first, such as ``"split is 'page'; expected 'line' or 'file'"``.
    """
    for name, (value, known) in given.items():
        if not any(isinstance(value, type(choice)) and value == choice for choice in known):
            *others, last = map(repr, known)
            raise InputError(f"{name} is {value!r}; expected {', '.join(others)} or {last}")
