"""Functions that take tensors, arrays or lists: their types, their checks, and the kind that is returned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from inspect import signature
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import AbstractArray, Bool, Float, Int, Shaped
from torch import Tensor

from tasks import InputError

Matrix: TypeAlias = Float[Tensor, "row dim"]
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

_AnyTensor: TypeAlias = Shaped[Tensor, "..."]

_KINDS: dict[Any, str] = {Shaped: "real numbers", Int: "integers"}
_NOUNS = {"batch": "examples"}  # plurals that are not the axis and s


@dataclass(frozen=True)
class _ArrayType:
    """Type of an array, by its annotation.

    Attributes:
        axes: their names. ``batch`` may be empty, ``*batch`` stands for any number of axes, and ``_`` may have another
            size in each array.
        kind: ``"real numbers"``, ``"floats"`` (into which integers are turned), ``"integers"`` or ``"labels"``.
        finite: whether NaN and infinity are refused.

    Example:
        >>> print(_ArrayType(("row", "dim")))
        real numbers [row dim]
    """

    axes: tuple[str, ...]
    kind: str = "real numbers"
    finite: bool = True

    def __str__(self) -> str:
        kind = "real numbers" if self.kind == "floats" else self.kind
        return f"{kind} [{' '.join(self.axes)}]"

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether a shape has these axes, with at least one entry in each."""
        if self.axes[0].startswith("*"):
            return len(shape) >= len(self.axes) - 1 and all(shape[len(shape) - len(self.axes) + 1 :])
        if len(shape) != len(self.axes):
            return False
        return all(size or axis == "batch" for axis, size in zip(self.axes, shape, strict=True))

    def sizes(self, shape: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Yield the axes that have one size in all arrays, and their sizes."""
        if not self.axes[0].startswith("*"):
            for axis, size in zip(self.axes, shape, strict=True):
                if not axis.startswith("_"):
                    yield axis, size


ROW_MATRIX = _ArrayType(("row", "dim"))
ROW_LABELS = _ArrayType(("row",), "labels")


@dataclass(frozen=True)
class _Argument:
    """Type of an argument that is an array, by its annotation.

    Attributes:
        name: name of the argument.
        type: type of the array.
        optional: whether ``None`` can be given.
    """

    name: str
    type: _ArrayType
    optional: bool = False


def _checked_array(value: Any, name: str, expected: _ArrayType, sizes: dict[str, tuple[str, int]]) -> _AnyTensor:
    """Return the tensor of one array, whose axes have the sizes of axes with equal names before."""
    array = checked_tensor(value, name, expected)
    for axis, size in expected.sizes(array.shape):
        first, first_size = sizes.setdefault(axis, (name, size))
        if size != first_size:
            noun = _NOUNS.get(axis, f"{axis}s")
            raise InputError(f"{first} has {first_size} {noun} and {name} {size}; give both for the same {noun}")
    return array


def _arguments_of(function: Callable[..., Any], not_finite: Sequence[str]) -> list[_Argument]:
    """Return the arguments that are arrays, in order, by the annotations of a function.

    Args:
        function: function whose annotations have shapes.
        not_finite: names of arguments that may have NaN and infinity.
    """
    hints = get_type_hints(function)
    assert set(not_finite) <= set(hints), f"{function.__name__} lacks a parameter of {not_finite}"
    arguments = []
    for name in signature(function).parameters:
        hint = hints.get(name)
        array_type = _array_type(hint, name not in not_finite)
        if array_type:
            arguments.append(_Argument(name, array_type, optional=NoneType in _options(hint)))
    return arguments


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    return (hint,) if get_origin(hint) is Sequence else get_args(hint) or (hint,)


def _array_type(hint: Any, finite: bool) -> _ArrayType | None:
    """Return the type of an array by its annotation, or ``None`` if it annotates something else."""
    for option in _options(hint):
        if isinstance(option, type) and issubclass(option, AbstractArray):
            kind = _KINDS.get(option.dtype, "floats")
            if Sequence in _options(hint):
                kind = "labels"
            return _ArrayType(tuple(option.dim_str.split()), kind, finite)
    return None


def _checked_arguments(arguments: Sequence[_Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of all arguments that are given and arrays.

    Raises:
        InputError: naming the first argument that does not fit its annotation.
    """
    sizes: dict[str, tuple[str, int]] = {}
    tensors = {}
    for argument in arguments:
        value = given.get(argument.name)
        if argument.name in given and not (value is None and argument.optional):
            tensors[argument.name] = _checked_array(value, argument.name, argument.type, sizes)
    return tensors


def checked_tensor(value: Any, name: str, expected: _ArrayType) -> _AnyTensor:
    """Return the numbers of a tensor, an array or a list as a tensor, without a copy if possible.

    Raises:
        InputError: if it is not as expected.

    Example:
        >>> checked_tensor([[1, 2], [3, 4]], "x", ROW_MATRIX)
        tensor([[1, 2],
                [3, 4]])
        >>> checked_tensor([1, 2], "x", ROW_MATRIX)
        Traceback (most recent call last):
        tasks.errors.InputError: x has shape (2,); expected real numbers [row dim], at least one of each
    """
    array = value if isinstance(value, (Tensor, np.ndarray)) else _array_of_list(value, name, expected)
    if isinstance(array, np.ndarray):
        array = _tensor_of_array(array, name, expected)
    if array.is_complex() or array.is_meta or array.layout is not torch.strided:
        kind = "meta" if array.is_meta else f"{array.layout} {array.dtype}".removeprefix("torch.strided ")
        _refuse(name, f"is a {kind} tensor", expected)
    if not expected.fits(array.shape):
        _refuse(name, f"has shape {tuple(array.shape)}", f"{expected}, at least one of each")
    if expected.kind == "labels":
        return _checked_labels(array, name)
    if expected.kind == "integers":
        return _integers(array, name, expected)
    if expected.kind == "floats" and not array.is_floating_point():
        array = array.double()
    if expected.finite:
        check_finite(array, name)
    return array


def check_finite(x: _AnyTensor, name: str) -> None:
    """Refuse NaN and infinity, except under ``torch.func.vmap``, where code cannot depend on values.

    Both survive a sum, which reads the numbers once and needs no memory.

    Raises:
        InputError: naming the first row that has one.
    """
    if not x.is_floating_point() or _is_mapped(x):
        return
    x = x.detach()
    if bool(x.sum(dtype=torch.float32 if x.element_size() < 4 else None).isfinite()):
        return
    is_bad = ~x.reshape(max(1, len(x)), -1).isfinite().all(dim=1)  # a sum of finite numbers may be infinite
    if bool(is_bad.any()):
        raise InputError(f"{name} has NaN or infinity in row {int(is_bad.nonzero()[0])}; leave the example out")


def check_class_array(labels: _AnyTensor, name: str, n_classes: int) -> None:
    """Refuse labels that are not 0 to ``n_classes - 1``, except under ``torch.func.vmap``.

    Raises:
        InputError: naming the first.
    """
    if _is_mapped(labels):
        return
    outside = labels[(labels != labels.long()) | (labels < 0) | (labels >= n_classes)].tolist()
    if outside:
        _refuse(name, f"has {outside[0]}", f"classes 0 to {n_classes - 1}")


def _is_mapped(x: _AnyTensor) -> bool:
    """Return whether a function of ``torch.func`` runs, such as ``vmap``."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def as_tensor(array: Shaped[Tensor, "*shape"] | Shaped[np.ndarray, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Return a tensor with the array's numbers, sharing its memory if possible."""
    if isinstance(array, Tensor):
        return array
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch computes with few unsigned types
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # torch has no long doubles
        array = array.astype(np.float64)
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="))
    if any(step < 0 for step in array.strides):
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about read-only arrays: arguments are never written to
        return torch.from_numpy(array)


def as_numpy(value: Any) -> Any:
    """Return a tensor as an array, and anything else unchanged. NumPy has no bfloat16, which becomes float32."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()


def _array_of_list(value: Any, name: str, expected: _ArrayType) -> Shaped[np.ndarray, "..."]:
    """Return the array of a list, or of other values that NumPy reads, such as a range or a column of a table."""
    if not hasattr(value, "__len__") or isinstance(value, (str, bytes, set, frozenset, dict)):
        _refuse(name, f"is {_short(value)}", f"{expected}: a tensor, an array or a list")
    items = [as_numpy(item) for item in value] if isinstance(value, (list, tuple)) else value
    try:
        array = np.asarray(items)
    except (TypeError, ValueError, RuntimeError):
        _refuse(name, "has rows of different lengths", expected)
    if array.dtype.kind in "SU" and not all(isinstance(item, (str, bytes)) for item in items):
        return np.asarray(items, dtype=object)  # such as "a" and NaN, of which NumPy makes two strings
    return array


def _tensor_of_array(array: Shaped[np.ndarray, "..."], name: str, expected: _ArrayType) -> _AnyTensor:
    """Return the tensor of an array. Labels that are not numbers become 0, 1, ... in sorted order."""
    if isinstance(array, np.ma.MaskedArray):
        _refuse(name, "is a masked array", f"{expected}: give the entries that count")
    if expected.kind == "labels" and array.dtype.kind in "OSUMm":
        array = _numbered(array, name)
    if array.dtype.kind == "O":
        array = np.asarray(array.tolist())
    if array.dtype.kind not in "biuf":
        _refuse(name, f"has the type {array.dtype}", expected)
    return as_tensor(array)


def _numbered(labels: Shaped[np.ndarray, "*shape"], name: str) -> Int[np.ndarray, "*shape"]:
    from pandas import isna

    _check_defined(labels, isna(labels), name)
    try:
        return np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    except TypeError:
        raise InputError(f"{name} has labels of different types; give numbers or strings") from None


def _checked_labels(labels: _AnyTensor, name: str) -> _AnyTensor:
    """Return labels without their gradient, none of them NaN."""
    labels = labels.detach()
    if labels.is_floating_point() and not _is_mapped(labels):
        _check_defined(labels.cpu(), labels.isnan().cpu().numpy(), name)
    return labels


def _check_defined(labels: Any, is_undefined: Bool[np.ndarray, "..."], name: str) -> None:
    places = np.flatnonzero(is_undefined.any(axis=tuple(range(1, is_undefined.ndim))))
    if len(places):
        raise InputError(f"{name} has {labels[places[0]]} at row {places[0]}; leave the example out, or label it")


def _integers(array: _AnyTensor, name: str, expected: _ArrayType) -> Int[Tensor, "..."]:
    """Return whole numbers as int64."""
    array = array.detach()
    if array.is_floating_point():
        fractions = array[~(array.isfinite() & (array == array.round()))]
        if len(fractions):
            _refuse(name, f"has {float(fractions[0])}", expected)
    return array.long()


def _refuse(name: str, problem: str, expected: object) -> NoReturn:
    raise InputError(f"{name} {problem}; expected {expected}") from None


def _short(value: Any) -> str:
    """Describe a value in a few words: itself if it is short, or its type."""
    text = repr(value)
    return text if len(text) <= 30 else f"a {type(value).__name__}"


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
        parameters = signature(function)
        assert not [p for p in parameters.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
        arguments = _arguments_of(function, not_finite)
        by_name: Callable[..., R] = function

        @wraps(function)
        def either(*args: P.args, **kwargs: P.kwargs) -> R:
            """Check the arguments, and call the function with tensors."""
            given = parameters.bind(*args, **kwargs).arguments
            tensors = _checked_arguments(arguments, given)
            first = _first_array(given[name] for name in tensors)
            if isinstance(first, Tensor):
                tensors = {name: _placed(given[name], tensor, first.device) for name, tensor in tensors.items()}
            return _like(first, by_name(**(given | tensors)))

        return either

    return decorate


def computed_in_numpy(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of NumPy arrays take tensors and lists too, as ``computed_in_torch`` does for one of tensors.

    Example:
        >>> @computed_in_numpy
        ... def double(x: Shaped[Array, "n"]):
        ...     return np.multiply(x, 2)
        >>> double(torch.ones(2)), double(np.ones(2))
        (tensor([2., 2.]), array([2., 2.]))
    """
    by_name: Callable[..., R] = function

    @wraps(function)
    def of_tensors(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with arrays for the tensors, all of which are given by name."""
        return by_name(**{name: as_numpy(value) for name, value in kwargs.items()})

    return computed_in_torch()(of_tensors)


def _first_array(values: Iterator[Any]) -> Shaped[Array, "..."] | None:
    """Return the first tensor or array among these values and in their lists."""
    for value in values:
        for array in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(array, (Tensor, np.ndarray)):
                return array
    return None


def _placed(given: Any, value: Any, device: torch.device) -> Any:
    """Return an array or a list as a tensor on a device, without moving tensors."""
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


def row_matrix(rows: Any, name: str) -> Matrix:
    """Return ``rows`` as a float64 matrix of at least one finite row.

    Raises:
        InputError: for another shape, no rows, or rows that are not finite.
    """
    return in_float64(checked_tensor(rows, name, ROW_MATRIX))


def in_float64(x: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return ``x`` in double precision, on a device that has it."""
    x = x.detach()
    return (x.cpu() if x.device.type == "mps" else x).double()  # MPS has no float64


def exact_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
