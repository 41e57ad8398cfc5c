"""The exception for bad input, and checks that raise it."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any


class InputError(ValueError):
    """Raised for input that cannot be used.

    The message is one sentence: the given input, the expected input, and the way out. The command line prints it and
    exits with 2. Every other exception is a defect of ours.

    Example:
        >>> raise InputError("steps is 0; expected at least 1")
        Traceback (most recent call last):
        tasks.errors.InputError: steps is 0; expected at least 1
    """


def error_line(error: BaseException) -> str:
    """Return an exception in a few words."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_sentence(error: BaseException) -> str:
    """Return the first sentence of another library's message, without its advice."""
    text = " ".join(str(error).split()).strip("'\"")
    return re.split(r"(?<!e\.g)\. ", text)[0][:200].rstrip(".") or type(error).__name__


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known names, such as ``" (it has a, b); did you mean 'a'?"``."""
    return f" (it has {', '.join(known)}){did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'a'?"``, or an empty text if no known name is similar."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def repeated_values(values: Sequence[Any]) -> list[Any]:
    """Return the values that occur earlier in the list, in order.

    Example:
        >>> repeated_values(["a", "b", "a"])
        ['a']
    """
    return [value for i, value in enumerate(values) if value in values[:i]]


def check_different(**given: Sequence[object]) -> None:
    """Refuse values of which one is given twice: ``check_different(seeds=seeds)``.

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
