"""A digest of several things, such as settings and arrays, which tells them apart from all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import xxhash
from torch import Tensor

Digestible: TypeAlias = str | bytes | np.ndarray | Tensor


def digest_of(parts: Iterable[Digestible]) -> str:
    """32 hexadecimal digits of the parts in their order, with the type, shape and length of each.

    Example:
        >>> digest_of(["ab", "c"]) == digest_of(["a", "bc"])
        False
    """
    digest = xxhash.xxh3_128()
    for part in parts:
        if isinstance(part, (str, bytes)):
            kind, data = type(part).__name__, part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        else:
            array = np.ascontiguousarray(part.detach().cpu().numpy() if isinstance(part, Tensor) else part)
            kind, data = f"{array.dtype} {array.shape}", array.tobytes()
        digest.update(f"{kind} {len(data)} ".encode() + data)
    return str(digest.hexdigest())
