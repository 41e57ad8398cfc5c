"""Bounds that a measured value must satisfy."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.settings import check_choice

_RELATIONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Bound:
    """``>= 0.95`` and its like. NaN satisfies no bound.

    Attributes:
        relation: ``>=``, ``>``, ``<=`` or ``<``.
        value: the number that the measured value is compared with.

    Example:
        >>> Bound(">=", 0.95).met(0.97)
        True
    """

    relation: str
    value: float

    def __post_init__(self) -> None:
        check_choice(relation=(self.relation, tuple(_RELATIONS)))

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"

    def met(self, measured: float) -> bool:
        """Return whether a value satisfies the bound."""
        return bool(_RELATIONS[self.relation](measured, self.value))

    def worst(self, values: Sequence[float]) -> float:
        """Return the value that is nearest to violating the bound. NaN for no values, or if one is NaN."""
        if not len(values):
            return math.nan
        return float(np.min(values) if self.relation.startswith(">") else np.max(values))


@dataclass(frozen=True)
class TwoSidedBound:
    """``0.25 to 0.6``, ends included. NaN lies within no range.

    Attributes:
        low: the lower end.
        high: the upper end.
    """

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def met(self, measured: float) -> bool:
        """Return whether a value lies within the range."""
        return self.low <= measured <= self.high

    def worst(self, values: Sequence[float]) -> float:
        """Return the value that lies farthest from the middle. NaN for no values, or if one is NaN."""
        if not len(values):
            return math.nan
        distances = np.abs(np.asarray(values) - (self.low + self.high) / 2)
        return float(values[int(np.argmax(distances))])
