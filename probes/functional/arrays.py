"""Decorators of functions that take torch tensors, NumPy arrays or lists, and return the kind that they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from probes.functional.arguments import arguments_of, as_numpy, as_tensor, checked_arguments

if TYPE_CHECKING:  # a function's body sees one of the kinds, and its caller another
    Array: TypeAlias = Any
    Labels: TypeAlias = Any
    Scalar: TypeAlias = Any
else:
    Array = Tensor | np.ndarray
    Labels = Shaped[Array, "row"] | Sequence
    Scalar = Tensor | float | bool

P = ParamSpec("P")
R = TypeVar("R")


def computed_in_torch(*, not_finite: Sequence[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of tensors also take arrays and lists, and return tensors, or arrays and numbers, accordingly.

    The annotations say which arguments are arrays (``Float[Array, "row dim"]``, ``Int[Array, "batch pos"]``) or
    ``Labels``. Every call checks them: the kind of numbers, the axes, equal sizes of axes with equal names, no empty
    array, and no NaN or infinity. Labels that are not numbers, such as strings, are numbered in sorted order. Arrays
    are converted without a copy if possible. Tensors are unchanged.

    Args:
        not_finite: names of the arguments that may have NaN and infinity.

    Example:
        >>> @computed_in_torch()
        ... def double(x: Shaped[Array, "n"]):
        ...     return x.mul(2)
        >>> double(torch.ones(2)), double(np.ones(2)), double([1, 2])
        (tensor([2., 2.]), array([2., 2.]), array([2, 4]))
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with its arguments checked, and its result converted."""
        parameters = _parameters(function)
        arguments = arguments_of(function, not_finite)
        by_name: Callable[..., R] = function

        @wraps(function)
        def either(*args: P.args, **kwargs: P.kwargs) -> R:
            """Check the arguments, and call the function with tensors."""
            given = parameters.bind(*args, **kwargs).arguments
            tensors = checked_arguments(arguments, given)
            first = _first_array(given[name] for name in tensors)
            if isinstance(first, Tensor):
                tensors = {name: _placed(given[name], tensor, first.device) for name, tensor in tensors.items()}
            return _like(first, by_name(**(given | tensors)))

        return either

    return decorate


def computed_in_numpy(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of NumPy arrays take tensors and lists too, and return tensors if the first array is one.

    Arguments are checked as by ``computed_in_torch``. Results are on the device of the first tensor.

    Example:
        >>> @computed_in_numpy
        ... def double(x: Shaped[Array, "n"]):
        ...     return np.multiply(x, 2)
        >>> double(torch.ones(2)), double(np.ones(2))
        (tensor([2., 2.]), array([2., 2.]))
    """
    parameters = _parameters(function)
    arguments = arguments_of(function)
    by_name: Callable[..., R] = function

    @wraps(function)
    def either(*args: P.args, **kwargs: P.kwargs) -> R:
        """Check the arguments, and call the function with arrays."""
        given = parameters.bind(*args, **kwargs).arguments
        arrays = {name: as_numpy(tensor) for name, tensor in checked_arguments(arguments, given).items()}
        first = _first_array(given[name] for name in arrays)
        return _like(first, by_name(**(given | arrays)))

    return either


def _parameters(function: Callable[..., Any]) -> Signature:
    """Return the function's signature, in which no parameter is variadic."""
    parameters = signature(function)
    assert not [p for p in parameters.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
    return parameters


def _first_array(values: Iterator[Any]) -> Shaped[Array, "..."] | None:
    """Return the first tensor or array among these values and in their lists."""
    for value in values:
        for array in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(array, (Tensor, np.ndarray)):
                return array
    return None


def _placed(given: Any, value: Any, device: torch.device) -> Any:
    """Return arrays and lists as tensors on a device, without moving tensors."""
    if isinstance(value, list):
        return [_placed(item, tensor, device) for item, tensor in zip(given, value, strict=True)]
    return value if isinstance(given, Tensor) else value.to(device)


def _like(first: Shaped[Array, "..."] | None, value: Any) -> Any:
    """Return a result, and all that is in it, as tensors if ``first`` is one, else as arrays and Python numbers."""
    if isinstance(value, Tensor) and not isinstance(first, Tensor):
        return as_numpy(value) if value.ndim else value.item()
    if isinstance(value, np.ndarray) and isinstance(first, Tensor):
        return as_tensor(value).to(first.device)
    if isinstance(value, list):
        return [_like(first, item) for item in value]
    if isinstance(value, tuple):
        items = [_like(first, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _like(first, getattr(value, f.name)) for f in fields(value)})
    return value
