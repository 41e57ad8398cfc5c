"""Check shapes in annotations at run time, in all tests, for the rooms that ``pyproject.toml`` lists.

pytest's option ``--jaxtyping-packages`` lets jaxtyping decorate their functions and dataclasses with `checked`. A
function that returns ``Any`` is not checked. This module is a plugin of pytest (``-p tests.shapes``), so that it is
imported before the product.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial, wraps
from random import Random
from typing import Any, get_args

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from beartype._check.code import codemain
from jaxtyping import AbstractArray

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float
_jaxtyped = jaxtyping.jaxtyped
CHECKED_CALLS = 2  # of each function and test: a check takes 40 microseconds, and some functions run 10^5 times
calls: Counter[str] = Counter()


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the check of one call, given the empty function that jaxtyping makes with the same signature.

    jaxtyping calls one check before a call and one after it, which gets the result too. Only the latter compares
    shapes, so that a wrong shape that the function itself refuses leads to the function's own error. Annotations
    without a shape are mypy's job.
    """
    hints = function.__annotations__
    if hints.get("return", Any) is Any or not any(map(has_shape, hints.values())):
        return accept
    for name, hint in hints.items():
        if not has_shape(hint):
            hints[name] = Any
    return _beartype(function)


def accept(*args: Any, **kwargs: Any) -> None:
    """Accept any call."""


def has_shape(hint: Any) -> bool:
    """Return whether a type contains a jaxtyping shape."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(has_shape, get_args(hint)))


def decorate_shaped(value: Any = None, *, typechecker: Any) -> Any:
    """Decorate functions and classes with a shape in an annotation. Others stay as they are, because a check costs."""
    if value is None:
        return partial(decorate_shaped, typechecker=typechecker)
    if not any(map(has_shape, annotations_of(value))):
        return value
    jaxtyped = _jaxtyped(value, typechecker=typechecker)
    return checked_at_first(value, jaxtyped) if inspect.isfunction(value) else jaxtyped


def checked_at_first(function: Callable[..., Any], jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with checks in its first calls of every test."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(jaxtyped)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # counting calls would compile the function anew
            return function(*args, **kwargs)
        calls[name] += 1
        return (jaxtyped if calls[name] <= CHECKED_CALLS else function)(*args, **kwargs)

    return call


def pytest_runtest_setup() -> None:
    """Let every test check again."""
    calls.clear()


def annotations_of(value: Any) -> Iterator[Any]:
    """Yield the annotations of a function, a method, a property or a class's fields that are known already."""
    if inspect.isclass(value):
        value = value.__init__
    function = getattr(value, "__func__", getattr(value, "fget", value))
    names = getattr(function, "__globals__", {})
    for annotation in getattr(function, "__annotations__", {}).values():
        try:
            yield eval(annotation, names) if isinstance(annotation, str) else annotation
        except (AttributeError, NameError, TypeError):
            continue


jaxtyping.jaxtyped = decorate_shaped  # type: ignore[assignment]
# beartype draws items of lists, and Python's own random state must not move.
codemain.getrandbits = Random(0).getrandbits  # type: ignore[attr-defined]
