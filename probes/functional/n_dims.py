"""The number of directions in which rows vary."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch, in_float64
from probes.functional.preprocess import row_mean, scale_to_one_
from tasks import InputError

_SHARE_TOLERANCE = 1e-12  # a share that is met but for rounding is met


@computed_in_torch()
def n_dims(x: Float[Array, "row dim"], *, variance: float = 0.99) -> float:
    """Return how many principal directions hold at least ``variance`` of the variance, or NaN if all rows are equal.

    Takes tensors, NumPy arrays or lists.

    The least ``k`` for which the ``k`` largest eigenvalues of the covariance sum to at least ``variance`` of all. Never
    more than n - 1: compare only values at one n.

    Source: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008), with 99%.

    Cost: the eigenvalues of the rows' products, in ``min(n, d)`` dimensions. If their rounding leaves a doubt, also the
    rows' singular values.

    Example:
        >>> n_dims(torch.eye(3) * torch.tensor([[1.0], [10.0], [10.0]]))
        2.0
    """
    check_dims_variance(variance)
    x = in_float64(x)
    x = scale_to_one_(x - row_mean(x))
    value, is_certain = n_dims_of_scatter(x @ x.T if len(x) < x.shape[1] else x.T @ x, variance)
    return value if is_certain else float(n_dims_of_singular_values(torch.linalg.svdvals(x), variance)) or math.nan


def n_dims_of_scatter(scatter: Float[Tensor, "dim dim"], variance: float) -> tuple[float, bool]:
    """Return ``n_dims`` from centred rows' products ``x' x`` or ``x x'``, and whether it is certain despite rounding.

    An eigenvalue is off by up to about ``d`` times the rounding of the largest. Directions of a smaller share of the
    variance cannot be distinguished from none.
    """
    values = torch.linalg.eigvalsh(scatter).flip(0)
    values = values[values > values[0] * len(values) * torch.finfo(values.dtype).eps]
    if not len(values):
        return math.nan, True
    explained = values.cumsum(0) / values.sum()
    share = variance * (1 - _SHARE_TOLERANCE)
    doubt = len(scatter) * torch.finfo(explained.dtype).eps
    least, count, most = (int((explained < share + step).sum()) + 1 for step in (-doubt, 0, doubt))
    return float(min(len(values), count)), least == most <= len(values)


def check_dims_variance(variance: float) -> float:
    """Return ``variance``, or raise an ``InputError`` if it is not a share."""
    if not 0 < variance <= 1:
        raise InputError(f"variance is {variance}; expected a share above 0 and at most 1")
    return variance


def n_dims_of_singular_values(s: Float[Tensor, "value"], variance: float) -> int:
    """Return how many of these singular values hold the share, without those that are 0 up to rounding."""
    s = s[s > s[0] * len(s) * torch.finfo(s.dtype).eps]
    explained = s.square().cumsum(0) / s.square().sum()
    return min(len(s), int((explained < check_dims_variance(variance) * (1 - _SHARE_TOLERANCE)).sum()) + 1)
