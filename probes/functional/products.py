"""Products of rows: in float64, or in float32 and added up in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.settings import check_choice

Precision = Literal["float64", "float32"]
ROUNDING: dict[Precision, float] = {"float64": 2.0**-53, "float32": 2.0**-24}  # relative rounding of one operation
_ROWS_IN_FLOAT32 = 1024  # rows that are summed in float32


def check_product_precision(precision: Precision) -> Precision:
    """Return ``precision``, or raise an ``InputError`` if it is none."""
    check_choice(precision=(precision, tuple(ROUNDING)))
    return precision


def product(
    x: Float[Tensor, "n dx"], y: Float[Tensor, "n dy"], precision: Precision = "float64"
) -> Float[Tensor, "dx dy"]:
    """Return ``x' y`` in float64, of float64 rows.

    ``"float32"``: the rows are rounded to float32 and multiplied in it, 1,024 at a time, and these sums are added up
    in float64. Give rows about a point near their mean, or the rounding is of the mean.
    """
    if precision == "float64":
        return x.T @ y
    return add_product(x.new_zeros(x.shape[1], y.shape[1]), x.T.float(), y.T.float())


def add_product(
    total: Float[Tensor, "dx dy"], x: Float[Tensor, "dx n"], y: Float[Tensor, "dy n"]
) -> Float[Tensor, "dx dy"]:
    """Add ``x y'`` to ``total``, in the dtype of ``x`` and ``y``: one example a column."""
    if x.dtype == total.dtype:
        return total.addmm_(x, y.T)
    with full_float32_products():
        for some_x, some_y in zip(
            torch.split(x, _ROWS_IN_FLOAT32, dim=1), torch.split(y, _ROWS_IN_FLOAT32, dim=1), strict=True
        ):
            total += some_x @ some_y.T
    return total


@contextmanager
def full_float32_products() -> Iterator[None]:
    """Keep out TF32 and the like, which keep ten bits, whatever the caller has set."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
