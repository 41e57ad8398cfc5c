"""Bounds that a measured value must satisfy, and the verdict on whether it does."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from mechclust.evidence.intervals import Interval

Verdict = Literal["holds", "not specific", "does not hold", "undecided", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

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
class Within:
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


def verdict_of(bound: Bound | Within, interval: Interval | None) -> Verdict:
    """Return the verdict of an interval: all of it satisfies the bound, none of it does, or it straddles an end.

    Without an interval the verdict is undecided.

    Example:
        >>> bound = Bound(">=", 0.5)
        >>> verdict_of(bound, (0.6, 0.9)), verdict_of(bound, (0.1, 0.4)), verdict_of(bound, (0.4, 0.9))
        ('holds', 'does not hold', 'undecided')
        >>> verdict_of(Within(0.2, 0.6), (0.1, 0.7))
        'undecided'
    """
    if interval is None or not np.isfinite(interval).all():
        return "undecided"
    low, high = interval
    if bound.met(low) and bound.met(high):
        return "holds"
    if isinstance(bound, Within):
        apart = high < bound.low or low > bound.high
    else:
        apart = not bound.met(low) and not bound.met(high)
    return "does not hold" if apart else "undecided"


def joint_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a finding whose parts have these verdicts.

    It holds if all parts do, and does not hold if one does not. Otherwise it is not tested if a part is not tested, and
    undecided in all other cases.

    Example:
        >>> joint_verdict(["holds", "undecided"]), joint_verdict(["does not hold", "undecided"])
        ('undecided', 'does not hold')
    """
    distinct = set(verdicts)
    if "does not hold" in distinct:
        return "does not hold"
    if not distinct or "not tested" in distinct:
        return "not tested"
    return "holds" if distinct == {"holds"} else "undecided"
