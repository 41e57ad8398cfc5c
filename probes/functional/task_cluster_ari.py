"""Adjusted Rand index, exact (Hubert & Arabie 1985, equation 5)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from tasks import InputError


def contingency(a: ArrayLike, b: ArrayLike) -> Int[np.ndarray, "classes_a classes_b"]:
    """``[classes of a, classes of b]`` int64 counts of examples.

    Memory: O(number of classes squared).
    """
    codes = [np.unique(np.asarray(x).ravel(), return_inverse=True) for x in (a, b)]
    (names_a, ia), (names_b, ib) = codes
    if len(ia) != len(ib):
        raise InputError(f"the two labelings have {len(ia)} and {len(ib)} examples; expected the same examples")
    if not len(ia):
        raise InputError("the labelings are empty; give at least one example")
    flat = np.bincount(ia * len(names_b) + ib, minlength=len(names_a) * len(names_b))
    return flat.reshape(len(names_a), len(names_b))


def _pairs(counts: np.ndarray) -> int:
    """Number of pairs inside the cells, as a Python integer (never overflows in what follows)."""
    counts = counts.astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())


def _index(together: int, pairs_a: int, pairs_b: int, pairs: int) -> float:
    # (S - AB/N) / ((A + B)/2 - AB/N), over the common denominator 2N, in exact integers
    numerator = 2 * (together * pairs - pairs_a * pairs_b)
    denominator = (pairs_a + pairs_b) * pairs - 2 * pairs_a * pairs_b
    if denominator == 0:  # both labelings are one class, or both all singletons: they agree
        return 1.0
    return numerator / denominator


def adjusted_rand_score(a: ArrayLike, b: ArrayLike) -> float:
    """How well two labelings of the same examples agree: 1 identical, 0 expected by chance.

    Args:
        a: ``[n]`` class of each example.
        b: ``[n]`` class of each example.

    Returns:
        The index, exact to the last bit for any ``n`` (integer arithmetic), not clamped; equal to
        scikit-learn's, also in the degenerate cases.

    Raises:
        InputError: for labelings of different length, or empty ones.

    Example:
        >>> adjusted_rand_score([0, 0, 1, 1], [1, 1, 0, 0])
        1.0
        >>> adjusted_rand_score([0, 0, 1, 1], [0, 1, 0, 1])
        -0.5
    """
    table = contingency(a, b)
    n = int(table.sum())
    return _index(_pairs(table), _pairs(table.sum(1)), _pairs(table.sum(0)), n * (n - 1) // 2)


def adjusted_rand_null(
    a: ArrayLike, b: ArrayLike, n_permutations: int = 1000, seed: int = 0
) -> Float[np.ndarray, "n_permutations"]:
    """``[n_permutations]`` the index under random relabelling: ``a`` against shuffles of ``b``.

    What the index would be by chance, with the same class sizes.

    Example:
        >>> null = adjusted_rand_null([0, 0, 1, 1] * 25, [0, 1, 0, 1] * 25, n_permutations=200)
        >>> bool(abs(null.mean()) < 0.01)
        True
    """
    (na, ia), (nb, ib) = (np.unique(np.asarray(x).ravel(), return_inverse=True) for x in (a, b))
    table = contingency(ia, ib)
    n = len(ia)
    pairs_a, pairs_b = _pairs(table.sum(1)), _pairs(table.sum(0))
    rng = np.random.default_rng(seed)
    null = np.empty(n_permutations)
    for i in range(n_permutations):
        shuffled = np.bincount(ia * len(nb) + rng.permutation(ib), minlength=len(na) * len(nb))
        null[i] = _index(_pairs(shuffled), pairs_a, pairs_b, n * (n - 1) // 2)
    return null
