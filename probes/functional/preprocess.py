"""What may be done to states before their distances are taken; all in float64, none of it changes the rows given."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def without_class_means(rows: Float[Tensor, "n d"], classes: Int[Tensor, "n"]) -> Float[Tensor, "n d"]:
    """Each row minus the mean of its class; exactly 0 where the rows of a class are all the same.

    Example:
        >>> without_class_means(torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1])).flatten().tolist()
        [-1.0, 1.0, 0.0]
    """
    which, order = torch.unique(classes, return_inverse=True)
    place = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(which, len(rows), dtype=torch.int64).scatter_reduce(0, order, place, "amin")
    rows = rows.double()
    apart = rows - rows[first][order]  # so that the same rows leave no rounding behind, which k-means would cluster
    sums = apart.new_zeros(len(which), rows.shape[1]).index_add_(0, order, apart)
    return apart - (sums / order.bincount()[:, None])[order]


def outlier_dimensions(rows: Float[Tensor, "n d"], times: float) -> Int[Tensor, "outliers"]:
    """Dimensions whose standard deviation is more than ``times`` the median one (of those that vary).

    Example:
        >>> outlier_dimensions(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 90.0]]), 10).tolist()
        [2]
    """
    deviation = rows.double().std(0, correction=0)
    varying = deviation[deviation > 0]
    if not len(varying):
        return torch.zeros(0, dtype=torch.int64)
    return (deviation > times * varying.quantile(0.5)).nonzero()[:, 0]


def standardised(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Every dimension with mean 0 and standard deviation 1; a constant one is 0.

    Example:
        >>> standardised(torch.tensor([[1.0, 7.0], [3.0, 7.0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    rows = rows.double()
    apart = rows - rows[:1]
    apart -= apart.mean(0)
    deviation = apart.square().mean(0).sqrt()
    return apart / torch.where(deviation > 0, deviation, 1.0)


def principal_coordinates(rows: Float[Tensor, "n d"], k: int) -> Float[Tensor, "n k"]:
    """Coordinates along the ``k`` directions of largest variance, centred; ``k`` is at most ``n - 1`` and ``d``.

    Each direction's largest weight is positive.

    Example:
        >>> principal_coordinates(torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]), 1).flatten().tolist()
        [-5.0, 0.0, 5.0]
    """
    rows = rows.double()
    rows = rows - rows.mean(0)
    if len(rows) > rows.shape[1]:
        directions = torch.linalg.eigh(rows.T @ rows).eigenvectors.flip(1)[:, :k]
    else:
        directions = torch.linalg.svd(rows, full_matrices=False).Vh[:k].T
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return rows @ (directions * largest.sign())


def unit_length(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Each row, minus the mean of all, over its length, so that distances are those of angles; 0 stays 0.

    Example:
        >>> unit_length(torch.tensor([[2.0, 0.0], [4.0, 0.0], [3.0, 0.0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    """
    rows = rows.double()
    apart = rows - rows[:1]
    apart -= apart.mean(0)
    length = apart.norm(dim=1, keepdim=True)
    return apart / torch.where(length > 0, length, 1.0)
