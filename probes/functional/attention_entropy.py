"""How widely attention is spread over keys."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def attention_entropy(pattern: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    """Shannon entropy in nats of each row of attention weights, in float64.

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
