"""Digests of settings and arrays, to tell whether they changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import xxhash
from jaxtyping import Shaped
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
