"""Entropy: how widely attention is spread over keys."""

from __future__ import annotations

import torch
from jaxtyping import Float

from probes.functional.arrays import Array, computed_in_torch


@computed_in_torch("pattern")
def attention_entropy(pattern: Float[Array, "*batch key"]) -> Float[Array, "*batch"]:
    """Return the Shannon entropy in nats of each row of attention weights, in float64.

    Takes tensors or NumPy arrays, and returns the same kind.

    Args:
        pattern: weights over keys that sum to 1; a weight of 0 adds nothing.

    Returns:
        0 where all attention is on one key, ``log(n)`` where it is spread evenly over ``n`` keys; NaN where a weight is
        negative or NaN.

    Example:
        >>> attention_entropy(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])).round(decimals=4).tolist()
        [0.0, 0.6931]
    """
    weights = pattern.double()
    return torch.where(weights >= 0, torch.special.entr(weights), torch.nan).sum(dim=-1)
