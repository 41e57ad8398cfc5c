"""Check every shape in an annotation of the product at run time, in all tests.

pytest's option ``--jaxtyping-packages`` (in ``pyproject.toml``) lets jaxtyping decorate all functions and dataclasses
with `checked`.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float


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
    return partial(_without_random_numbers, _check(function))


def _without_random_numbers(check: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a check, which draws the element of a list that it looks at, and give the random state back."""
    state = random.getstate()
    try:
        return check(*args, **kwargs)
    finally:
        random.setstate(state)


def accept(*args: Any, **kwargs: Any) -> None:
    """Accept any call."""


def has_shape(hint: Any) -> bool:
    """Return whether a type contains a jaxtyping shape."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(has_shape, get_args(hint)))
