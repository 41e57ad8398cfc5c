"""Strata: examples with equal other labels, within which a label is shuffled."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int, Shaped

from tasks import InputError


def strata_of(labels: Mapping[str, Shaped[np.ndarray, "example"]]) -> Int[np.ndarray, "example"] | None:
    """Return the stratum of each example: the crossing of all labels, or ``None`` without labels.

    Example:
        >>> strata_of({"ending": np.array([0, 0, 1]), "input": np.array([5, 6, 5])}).tolist()
        [0, 1, 2]
    """
    if not labels:
        return None
    return np.unique(np.stack(list(labels.values())), axis=1, return_inverse=True)[1].ravel()


def in_single_class_stratum(
    strata: Int[np.ndarray, "example"], classes: Int[np.ndarray, "example"]
) -> Bool[np.ndarray, "example"]:
    """Return, for each example, whether all examples of its stratum have its class.

    Example:
        >>> in_single_class_stratum(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 0])).tolist()
        [False, False, True, True]
    """
    pairs = np.unique(np.stack([strata, classes]), axis=1)
    return np.bincount(pairs[0])[strata] == 1


def single_class_strata(strata: Int[np.ndarray, "example"], classes: Int[np.ndarray, "example"]) -> float:
    """Return the share of examples in strata that have one class only, which no shuffle within strata changes.

    Example:
        >>> single_class_strata(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 0]))
        0.5
    """
    return float(in_single_class_stratum(strata, classes).mean())


def log_shuffles_in_strata(strata: Int[np.ndarray, "example"], classes: Int[np.ndarray, "example"]) -> float:
    """Return the logarithm of the number of ways to hand out the classes within strata.

    Example:
        >>> round(math.exp(log_shuffles_in_strata(np.array([0, 0, 1, 1, 1]), np.array([0, 1, 0, 0, 1]))))
        6
    """
    cells = np.unique(np.stack([strata, classes]), axis=1, return_counts=True)[1]
    return _log_factorials(np.bincount(strata)) - _log_factorials(cells)


def _log_factorials(counts: Int[np.ndarray, "count"]) -> float:
    return sum(math.lgamma(count + 1) for count in counts.tolist())


def nothing_left_in_strata(label: str, given: str) -> str:
    """Return why a label cannot be measured given another."""
    return (
        f"label {label!r} is determined by {given!r} (each {given} has one {label}), so nothing of it is left once "
        f"{given!r} is given"
    )


def check_strata_labels(label: str, **others: str | None) -> None:
    """Raise an error if another argument names the label itself.

    Raises:
        InputError: naming the argument.
    """
    for argument, name in others.items():
        if name == label:
            raise InputError(f"{argument} is {name!r}, the label itself; give another label, or None")
