"""Steps on rows before they are compared: centred or scaled, and their outlier dimensions."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.arrays import Matrix


def without_class_means(rows: Float[Tensor, "row dim"], classes: Int[Tensor, "row"]) -> Float[Tensor, "row dim"]:
    """Return each row minus the mean of its class. Exactly 0 if all rows of a class are equal.

    Example:
        >>> without_class_means(torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1])).flatten().tolist()
        [-1.0, 1.0, 0.0]
    """
    names, of_row = torch.unique(classes, return_inverse=True)
    places = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(names, len(rows), dtype=torch.int64).scatter_reduce(0, of_row, places, "amin")
    rows = rows.double()
    shifted = rows - rows[first][of_row]  # equal rows then leave no rounding behind, which k-means would cluster
    sums = shifted.new_zeros(len(names), rows.shape[1]).index_add_(0, of_row, shifted)
    return shifted - (sums / of_row.bincount()[:, None])[of_row]


def outlier_dimensions(rows: Float[Tensor, "row dim"], times: float) -> Int[Tensor, "outlier"]:
    """Return the dimensions whose standard deviation is more than ``times`` the median (of varying dimensions).

    Example:
        >>> outlier_dimensions(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 90.0]]), 10).tolist()
        [2]
    """
    deviation = rows.double().std(0, correction=0)
    varying = deviation[deviation > 0]
    if not len(varying):
        return torch.zeros(0, dtype=torch.int64)
    return (deviation > times * varying.quantile(0.5)).nonzero()[:, 0]


def standardised(rows: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
    """Return rows whose dimensions have mean 0 and standard deviation 1. A constant one is 0.

    Example:
        >>> standardised(torch.tensor([[1.0, 7.0], [3.0, 7.0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    centred = centred_rows(rows)
    deviation = centred.square().mean(0).sqrt()
    return centred / torch.where(deviation > 0, deviation, 1.0)


def centred_rows(rows: Float[Tensor, "row *dim"]) -> Float[Tensor, "row *dim"]:
    """Return float64 rows minus their mean, exactly 0 if all rows are equal."""
    rows = rows.double()
    shifted = rows - rows[:1]  # equal rows minus a rounded mean might not be 0
    return shifted - shifted.mean(0)


def unit_length(rows: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
    """Return each row minus the mean of all, scaled to length 1, so distances measure angles. Zero rows stay 0.

    Example:
        >>> unit_length(torch.tensor([[2.0, 0.0], [4.0, 0.0], [3.0, 0.0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    """
    centred = centred_rows(rows)
    length = centred.norm(dim=1, keepdim=True)
    return centred / torch.where(length > 0, length, 1.0)


def row_mean(x: Matrix) -> Float[Tensor, "dim"]:
    """Return the mean, or exactly the row itself if all rows are equal."""
    return x[0] + (x - x[0]).mean(dim=0)


def centred_matrix(x: Matrix) -> Matrix:
    """Return ``x`` minus its mean: exact zeros if all rows are equal."""
    return x - row_mean(x)


def scale_to_one_(rows: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
    """Scale rows in place to a largest entry of 1, so that squares neither vanish nor overflow.

    Example:
        >>> scale_to_one_(torch.tensor([[1.0, 0.0], [0.0, -4.0]])).tolist()
        [[0.25, 0.0], [0.0, -1.0]]
        >>> scale_to_one_(torch.tensor([[4.0, -1.0]])).tolist()
        [[1.0, -0.25]]
    """
    largest = torch.maximum(rows.max(), -rows.min())
    return rows.div_(largest) if bool(largest > 0) else rows
