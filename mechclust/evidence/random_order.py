"""A random order for controls, such as that of layers or of checkpoints."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int


def random_order(n: int) -> Int[np.ndarray, "place"]:
    """Return ``n`` places in a random order other than their own, of which one place has none. It is always the same.

    Example:
        >>> [random_order(n).tolist() for n in (1, 2, 3)]
        [[0], [1, 0], [2, 0, 1]]
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(n)
    while n > 1 and np.array_equal(order, np.arange(n)):
        order = rng.permutation(n)
    return order
