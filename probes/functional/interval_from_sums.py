"""The 95% interval of a mean, from sums."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def interval_from_sums(
    total: Float[Tensor, "*shape"], squares: Float[Tensor, "*shape"], n: int
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Return the 95% interval of a mean by Student's t, or NaN for one example.

    Args:
        total: sum over ``n`` examples.
        squares: sum of their squares.
        n: number of examples.

    Example:
        >>> low, high = interval_from_sums(torch.tensor(6.0), torch.tensor(14.0), 3)  # 1, 2, 3
        >>> round(float(low), 2), round(float(high), 2)
        (-0.48, 4.48)
    """
    if n < 2:
        return torch.full_like(total, torch.nan), torch.full_like(total, torch.nan)
    from scipy.stats import t

    mean = total / n
    variance = ((squares - total * mean) / (n - 1)).clamp(min=0)  # equal examples leave rounding below 0
    half = float(t.ppf(0.975, n - 1)) * (variance / n).sqrt()
    return mean - half, mean + half
