"""Examples of one class of other labels: within them a label may be shuffled without touching those."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from tasks import InputError


def strata_of(labels: Mapping[str, np.ndarray]) -> Int[np.ndarray, "n"] | None:
    """Stratum of each example: the crossing of all labels; ``None`` without any.

    Example:
        >>> strata_of({"ending": np.array([0, 0, 1]), "input": np.array([5, 6, 5])}).tolist()
        [0, 1, 2]
    """
    if not labels:
        return None
    return np.unique(np.stack(list(labels.values())), axis=1, return_inverse=True)[1].ravel()


def single_class(strata: Int[np.ndarray, "n"], classes: Int[np.ndarray, "n"]) -> float:
    """Share of the examples in strata that have one class only, which no shuffle within strata changes.

    Example:
        >>> single_class(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 0]))
        0.5
    """
    pairs = np.unique(np.stack([strata, classes]), axis=1)
    one = np.bincount(pairs[0], minlength=int(strata.max()) + 1) == 1
    return float(one[strata].mean())


def log_shuffles(strata: Int[np.ndarray, "n"], classes: Int[np.ndarray, "n"]) -> float:
    """Logarithm of the number of ways to hand out the classes within strata.

    Example:
        >>> round(math.exp(log_shuffles(np.array([0, 0, 1, 1, 1]), np.array([0, 1, 0, 0, 1]))))
        6
    """

    def total(counts: np.ndarray) -> float:
        return sum(math.lgamma(c + 1) for c in counts.tolist())

    cells = np.unique(np.stack([strata, classes]), axis=1, return_counts=True)[1]
    return total(np.bincount(strata)) - total(cells)


def nothing_left(label: str, given: str) -> str:
    """Why a label cannot be measured given another."""
    return (
        f"label {label!r} is determined by {given!r} (each {given} has one {label}), so nothing of it is left once "
        f"{given!r} is given"
    )


def check_given(label: str, **others: str | None) -> None:
    """Refuse the label itself as one of those that others are held fixed by.

    Raises:
        InputError: naming the argument.
    """
    for argument, name in others.items():
        if name == label:
            raise InputError(f"{argument} is {name!r}, the label itself; give another label, or None")
