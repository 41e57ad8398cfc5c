"""Entropy: how widely attention is spread over keys."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch

_SUM_TOLERANCE = 0.01  # rounding of bfloat16 is below it


@computed_in_torch(not_finite=["pattern"])
def attention_entropy(pattern: Float[Array, "*batch key"]) -> Float[Array, "*batch"]:
    """Return the Shannon entropy in nats of each row of attention weights, in float64.

    Takes tensors, NumPy arrays or lists, and returns the kind that it was given (arrays for lists).

    Args:
        pattern: weights over keys that sum to 1; weights of 0 do not count.

    Returns:
        0 where all attention is on one key, ``log(n)`` where it is spread evenly over ``n`` keys; NaN where the weights
        are no distribution: one is negative or NaN, or they do not sum to 1.

    Example:
        >>> attention_entropy(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])).round(decimals=4).tolist()
        [0.0, 0.6931]
    """
    is_distribution = (pattern.double().sum(dim=-1) - 1).abs() < _SUM_TOLERANCE
    return torch.where(is_distribution, entropy_of_rows(pattern), torch.nan)


def entropy_of_rows(pattern: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    """Return ``attention_entropy`` of weights of any sum, such as those of queries that do not count."""
    weights = pattern.double()
    return torch.where(weights >= 0, torch.special.entr(weights), torch.nan).sum(dim=-1)
