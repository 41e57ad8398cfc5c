"""SplitMix64: a hash of each integer."""

from __future__ import annotations

import torch
from jaxtyping import Int, Int64
from torch import Tensor


def splitmix64(x: Int[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Return a hash of each integer, which gives the integers a fixed pseudo-random order."""
    x = x.to(torch.int64) + -7046029254386353131
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: Int64[Tensor, "*shape"], by: int) -> Int64[Tensor, "*shape"]:
    """Return the logical right shift of int64."""
    return (x >> by) & ((1 << (64 - by)) - 1)
