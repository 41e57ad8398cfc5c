"""Check two representations of the same examples, and centre them, in float64."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from tasks import InputError

Matrix: TypeAlias = Float[Tensor, "row dim"]


def paired(x: Any, y: Any) -> tuple[Float[Tensor, "row dim_x"], Float[Tensor, "row dim_y"]]:
    """Return two float64 matrices of paired rows, on the first one's device.

    Raises:
        InputError: for other shapes, no rows, or rows that are not finite.
    """
    x = matrix(x, "x")
    y = matrix(y, "y")
    if len(x) != len(y):
        raise InputError(f"x has {len(x)} rows and y {len(y)}; give both for the same examples, in the same order")
    return x, y.to(x.device)


def matrix(rows: Any, name: str) -> Matrix:
    """Return ``rows`` as a float64 matrix of at least one finite row.

    Raises:
        InputError: for another shape, no rows, or rows that are not finite.
    """
    x = torch.as_tensor(rows)
    if x.ndim != 2 or not x.numel():
        raise InputError(f"{name} has shape {tuple(x.shape)}; expected [examples dimensions], at least one of each")
    x = float64(x)
    is_bad = ~torch.isfinite(x).all(dim=1)
    if bool(is_bad.any()):
        raise InputError(f"{name} has NaN or infinity in row {int(is_bad.nonzero()[0])}; leave the example out of both")
    return x


def float64(x: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return ``x`` in double precision, on a device that has it."""
    x = x.detach()
    return (x.cpu() if x.device.type == "mps" else x).double()  # MPS has no float64


def centre(x: Matrix) -> Float[Tensor, "dim"]:
    """Return the mean, or the row itself, exactly, where all rows are the same."""
    return x[0] + (x - x[0]).mean(dim=0)


def centred(x: Matrix) -> Matrix:
    """Return ``x`` minus its mean: exact zeros where all rows are the same."""
    return x - centre(x)
