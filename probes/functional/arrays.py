"""Decorators of functions that take torch tensors or NumPy arrays, and return the kind that they are given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from tasks import InputError

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
_DIRECT = (Tensor, int, float, str, type(None))  # what a function of tensors takes as it is


def computed_in_torch(*arrays: str, labels: Sequence[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of tensors take NumPy arrays too, and return arrays and Python numbers if the first one is.

    Calls with tensors go straight to the function. Arrays are converted without a copy if possible.

    Args:
        arrays: names of the parameters that are arrays, or lists of arrays.
        labels: names of the parameters that are labels. These may be lists, and other labels than numbers, such as
            strings, are numbered in sorted order.

    Example:
        >>> @computed_in_torch("x")
        ... def double(x):
        ...     return x.mul(2)
        >>> double(torch.ones(2)), double(np.ones(2)), double(np.array(0.5))
        (tensor([2., 2.]), array([2., 2.]), 1.0)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with its arguments and its result converted."""
        parameters = _checked(function, (*arrays, *labels))
        by_name: Callable[..., R] = function

        @wraps(function)
        def either(*args: P.args, **kwargs: P.kwargs) -> R:
            """Call the function, directly if nothing has to be converted."""
            if all(isinstance(value, _DIRECT) for value in (*args, *kwargs.values())):
                return function(*args, **kwargs)
            given = parameters.bind(*args, **kwargs).arguments
            first = _first_array(given, (*arrays, *labels))
            device = first.device if isinstance(first, Tensor) else None
            converted = {name: _as_tensors(given[name], device) for name in arrays if name in given}
            converted |= {name: _as_labels(given[name], name, device) for name in labels if name in given}
            return _like(first, by_name(**(given | converted)))

        return either

    return decorate


def computed_in_numpy(*arrays: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of NumPy arrays take tensors too, and return tensors on the device of the first one if it is one.

    Args:
        arrays: names of the parameters that are arrays.

    Example:
        >>> @computed_in_numpy("x")
        ... def double(x):
        ...     return np.multiply(x, 2)
        >>> double(torch.ones(2)), double(np.ones(2))
        (tensor([2., 2.]), array([2., 2.]))
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with its arguments and its result converted."""
        parameters = _checked(function, arrays)
        by_name: Callable[..., R] = function

        @wraps(function)
        def either(*args: P.args, **kwargs: P.kwargs) -> R:
            """Call the function, directly if nothing has to be converted."""
            if not any(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
                return function(*args, **kwargs)
            given = parameters.bind(*args, **kwargs).arguments
            converted = {name: _as_numpy(given[name]) for name in arrays if name in given}
            return _like(_first_array(given, arrays), by_name(**(given | converted)))

        return either

    return decorate


def as_tensor(array: Shaped[Array, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Return a tensor of the same numbers, with the array's memory if possible."""
    if isinstance(array, Tensor):
        return array
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch computes with few unsigned types
        array = array.astype(np.int64)
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="))
    if any(step < 0 for step in array.strides):
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of arrays that are read only: nothing writes to what is given
        return torch.from_numpy(array)


def _checked(function: Callable[..., Any], arrays: Sequence[str]) -> Signature:
    """Return the function's signature, which has all these parameters, none of them variadic."""
    parameters = signature(function)
    assert set(arrays) <= set(parameters.parameters), f"{function.__name__} lacks a parameter of {arrays}"
    assert not [p for p in parameters.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
    return parameters


def _first_array(given: Mapping[str, Any], names: Sequence[str]) -> Shaped[Array, "..."] | None:
    """Return the first tensor or array among these arguments and in their lists, in the order of the parameters."""
    for name, value in given.items():
        for array in value if isinstance(value, (list, tuple)) else [value]:
            if name in names and isinstance(array, (Tensor, np.ndarray)):
                return array
    return None


def _as_tensors(value: Any, device: torch.device | None) -> Any:
    """Return an array as a tensor, also if it is in a list, and anything else unchanged."""
    if isinstance(value, np.ndarray):
        return as_tensor(value).to(device)
    if isinstance(value, (list, tuple)) and any(isinstance(item, np.ndarray) for item in value):
        return [_as_tensors(item, device) for item in value]
    return value


def _as_labels(value: Any, name: str, device: torch.device | None) -> Shaped[Tensor, "..."] | None:
    """Return labels as a tensor, those that are not numbers as 0, 1, ... in sorted order."""
    if value is None or isinstance(value, Tensor):
        return value
    labels = np.asarray(value)
    if labels.dtype.kind not in "biuf":
        try:
            labels = np.unique(labels, return_inverse=True)[1]
        except TypeError:
            raise InputError(f"{name} has labels of different types or None; give numbers or strings") from None
    return as_tensor(labels).to(device)


def _as_numpy(value: Any) -> Any:
    """Return a tensor as an array, and anything else unchanged."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _like(first: Shaped[Array, "..."] | None, value: Any) -> Any:
    """Return a result, and all that is in it, as tensors or as arrays and Python numbers, whichever ``first`` is."""
    if isinstance(value, Tensor) and isinstance(first, np.ndarray):
        return _as_numpy(value) if value.ndim else value.item()
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
