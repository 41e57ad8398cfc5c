"""Addressed randomness: every draw is seeded by its purpose, never by earlier draws."""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
from jaxtyping import Int


def generator(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """Return a generator that depends only on its address.

    Batch 1,234 does not depend on whether batches 0 to 1,233 were drawn, so resuming, sharding and reproducing need no
    saved data state.

    Args:
        seed: the seed of the task (non-negative).
        purpose: the use of the numbers, such as ``"train"``.
        *index: position within the purpose, such as the step.

    Example:
        >>> a = generator(0, "train", 7).integers(1000)
        >>> _ = generator(0, "train", 8).integers(1000)
        >>> bool(a == generator(0, "train", 7).integers(1000))
        True
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *index])


@lru_cache(maxsize=8)
def _order(seed: int, epoch: int, n: int) -> Int[np.ndarray, "n"]:
    return generator(seed, "order", epoch).permutation(n)


def epoch_rows(seed: int, step: int, n: int, batch_size: int) -> Int[np.ndarray, "row"]:
    """Return which of ``n`` examples a training step sees.

    Each epoch goes through them in a new order. A last batch that would be smaller is left out.

    Example:
        >>> sorted(int(i) for step in (0, 1) for i in epoch_rows(0, step, n=4, batch_size=2))
        [0, 1, 2, 3]
    """
    epoch, place = divmod(step, n // batch_size)
    return _order(seed, epoch, n)[place * batch_size : (place + 1) * batch_size].copy()  # the order is kept
