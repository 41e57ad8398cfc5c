"""Adjusted Rand index, exact (Hubert & Arabie 1985, equation 5)."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from tasks import InputError

_DENSE = 2**16  # cells of a table that is counted whole; a larger one only where it is not empty


def contingency(a: ArrayLike, b: ArrayLike) -> Int[np.ndarray, "classes_a classes_b"]:
    """``[classes of a, classes of b]`` int64 counts of examples.

    Memory: O(number of classes squared).

    Raises:
        InputError: for labelings of different length, empty ones, or NaN among them.
    """
    ia, ib = _codes(a, b)
    shape = int(ia.max()) + 1, int(ib.max()) + 1
    return np.bincount(ia * shape[1] + ib, minlength=shape[0] * shape[1]).reshape(shape)


def _codes(a: ArrayLike, b: ArrayLike) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Classes 0, 1, ... of each example in both labelings."""
    given = [np.asarray(x).ravel() for x in (a, b)]
    if len(given[0]) != len(given[1]):
        raise InputError(
            f"the two labelings have {len(given[0])} and {len(given[1])} examples; expected the same examples"
        )
    if not len(given[0]):
        raise InputError("the labelings are empty; give at least one example")
    for values in given:
        missing = [v is None for v in values] if values.dtype == object else np.zeros(len(values), dtype=bool)
        if len(undefined := np.flatnonzero(missing | (values != values))):
            raise InputError(
                f"the label of example {undefined[0]} is {values[undefined[0]]} ({len(undefined)} such), which is no "
                "class; leave these examples out, or give them one"
            )
    ia, ib = (np.unique(x, return_inverse=True)[1] for x in given)
    return ia, ib


def _cells(ia: np.ndarray, ib: np.ndarray) -> Int[np.ndarray, "cells"]:
    """Counts of the pairs of classes that meet (and zeros); never more cells than ``_DENSE`` or examples."""
    width = int(ib.max()) + 1
    pair = ia * width + ib
    if (int(ia.max()) + 1) * width <= _DENSE:
        return np.bincount(pair)
    return np.unique(pair, return_counts=True)[1]


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

    Memory: O(examples), however many classes there are.

    Returns:
        The index, exact to the last bit for any ``n`` (integer arithmetic), not clamped; equal to
        scikit-learn's, also in the degenerate cases.

    Raises:
        InputError: for labelings of different length, empty ones, or NaN among them (as scikit-learn).

    Example:
        >>> adjusted_rand_score([0, 0, 1, 1], [1, 1, 0, 0])
        1.0
        >>> adjusted_rand_score([0, 0, 1, 1], [0, 1, 0, 1])
        -0.5
    """
    ia, ib = _codes(a, b)
    n = len(ia)
    return _index(_pairs(_cells(ia, ib)), _pairs(np.bincount(ia)), _pairs(np.bincount(ib)), n * (n - 1) // 2)


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
    ia, ib = _codes(a, b)
    n = len(ia)
    pairs_a, pairs_b = _pairs(np.bincount(ia)), _pairs(np.bincount(ib))
    rng = np.random.default_rng(seed)
    null = np.empty(n_permutations)
    for i in range(n_permutations):
        null[i] = _index(_pairs(_cells(ia, rng.permutation(ib))), pairs_a, pairs_b, n * (n - 1) // 2)
    return null


def n_relabellings(labels: ArrayLike) -> int:
    """In how many different partitions shuffles of ``labels`` can end; the smallest p-value is one over it.

    Example:
        >>> n_relabellings([0, 0, 1]), n_relabellings([0, 0, 1, 1]), n_relabellings([0, 0, 0, 1, 1])
        (3, 3, 10)
    """
    sizes = np.unique(np.asarray(labels).ravel(), return_counts=True)[1]
    alike = np.unique(sizes, return_counts=True)[1]  # classes of one size may change names
    same = math.prod(math.factorial(int(n)) for n in (*sizes, *alike))
    return math.factorial(int(sizes.sum())) // same
