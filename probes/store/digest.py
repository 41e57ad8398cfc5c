"""Digests of settings and arrays, to tell whether they changed, and hashes of integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import torch
import xxhash
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

Digestible: TypeAlias = str | bytes | Shaped[np.ndarray, "..."] | Shaped[Tensor, "..."]


def digest_of(parts: Iterable[Digestible]) -> str:
    """Return 32 hexadecimal digits of the parts in their order, with the type, shape and length of each.

    Example:
        >>> digest_of(["ab", "c"]) == digest_of(["a", "bc"])
        False
    """
    digest = xxhash.xxh3_128()
    for part in parts:
        if isinstance(part, bytes):
            kind = "bytes"
            data = part
        elif isinstance(part, str):
            kind = "str"
            data = part.encode(errors="surrogatepass")
        else:
            array = np.ascontiguousarray(part.detach().cpu().numpy() if isinstance(part, Tensor) else part)
            kind = f"{array.dtype} {array.shape}"
            data = array.tobytes()
        digest.update(f"{kind} {len(data)} ".encode() + data)
    return str(digest.hexdigest())


def splitmix64(x: Int[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Return a hash of each integer, which gives the integers a fixed pseudo-random order."""
    x = x.to(torch.int64) + -7046029254386353131
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: Int64[Tensor, "*shape"], by: int) -> Int64[Tensor, "*shape"]:
    """Return the logical right shift of int64."""
    return (x >> by) & ((1 << (64 - by)) - 1)
