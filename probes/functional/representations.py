"""Check two representations of shared examples, and centre them, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from jaxtyping import Float, Shaped
from torch import Tensor

from probes.functional.arguments import ROW_MATRIX, Argument, ArrayType, checked_arguments, checked_tensor

Matrix: TypeAlias = Float[Tensor, "row dim"]

_PAIRED = (Argument("x", ArrayType(("row", "dx"))), Argument("y", ArrayType(("row", "dy"))))


def paired_matrices(
    x: Any, y: Any, arguments: Sequence[Argument] = _PAIRED
) -> tuple[Float[Tensor, "row dim_x"], Float[Tensor, "row dim_y"]]:
    """Return two float64 matrices of paired rows, on the first one's device.

    Raises:
        InputError: for other shapes, no rows, or rows that are not finite.
    """
    tensors = checked_arguments(arguments, {"x": x, "y": y})
    x = in_float64(tensors["x"])
    return x, in_float64(tensors["y"]).to(x.device)


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


def row_mean(x: Matrix) -> Float[Tensor, "dim"]:
    """Return the mean, or exactly the row itself if all rows are equal."""
    return x[0] + (x - x[0]).mean(dim=0)


def centred_matrix(x: Matrix) -> Matrix:
    """Return ``x`` minus its mean: exact zeros if all rows are equal."""
    return x - row_mean(x)
