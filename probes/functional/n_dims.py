"""In how many directions rows vary."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.cka import centred, matrix
from tasks import InputError


def n_dims(x: Float[Tensor, "n d"], *, variance: float = 0.99) -> float:
    """How many principal directions hold at least ``variance`` of the variance; NaN where all rows are the same.

    Never more than n - 1: compare only values at one n.

    Example:
        >>> n_dims(torch.eye(3) * torch.tensor([[1.0], [10.0], [10.0]]))
        2.0
    """
    return float(directions(torch.linalg.svdvals(unit(centred(matrix(x, "x")))), variance)) or math.nan


def check_share(variance: float) -> float:
    """``variance``, or an ``InputError`` where it is not a share."""
    if not 0 < variance <= 1:
        raise InputError(f"variance is {variance}; expected a share above 0 and at most 1")
    return variance


def unit(x: Tensor) -> Tensor:
    """Scaled to a largest entry of 1, so that squares neither vanish nor overflow."""
    largest = x.abs().max()
    return x / largest if bool(largest > 0) else x


def directions(s: Tensor, variance: float) -> int:
    """How many singular values hold the share; none that is 0 up to rounding."""
    s = s[s > s[0] * len(s) * torch.finfo(s.dtype).eps]
    held = s.square().cumsum(0) / s.square().sum()
    return min(len(s), int((held < check_share(variance) * (1 - 1e-12)).sum()) + 1)
