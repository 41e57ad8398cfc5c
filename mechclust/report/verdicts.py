"""Verdicts: intervals of measured values, and how a bound judges them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np

from tasks import InputError

Verdict = Literal["holds", "does not hold", "undecided", "not tested"]
Kind = Literal["finding", "check"]
Interval = tuple[float, float]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
KINDS: tuple[Kind, ...] = get_args(Kind)

_RELATIONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Bound:
    """``>= 0.95`` and its like: how a measured value is judged. NaN satisfies no bound."""

    relation: str
    value: float

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"

    def met(self, measured: float) -> bool:
        return bool(_RELATIONS[self.relation](measured, self.value))

    def judge(self, span: Interval | None) -> Verdict:
        """What an interval says: all of it satisfies the bound, all of it violates it, or it reaches across.

        Without an interval nothing is decided.

        Example:
            >>> bound = Bound(">=", 0.5)
            >>> bound.judge((0.6, 0.9)), bound.judge((0.1, 0.4)), bound.judge((0.4, 0.9)), bound.judge(None)
            ('holds', 'does not hold', 'undecided', 'undecided')
        """
        if span is None or not np.isfinite(span).all():
            return "undecided"
        met = [self.met(end) for end in span]
        return "holds" if all(met) else "undecided" if any(met) else "does not hold"

    def worst(self, values: Sequence[float]) -> float:
        """The value that is nearest to violating the bound, or violates it most; NaN for none, or where one is."""
        if not len(values):
            return math.nan
        return float(np.min(values) if self.relation.startswith(">") else np.max(values))


@dataclass(frozen=True)
class Part:
    """A statement of a claim: the only one, or one of several.

    Attributes:
        name: what is measured; ``""`` where the claim's statement says it.
        per_seed: the values.
        measured: their mean, or ``None`` where there is none.
        interval: its 95% interval, or ``None``.
        bound: as text.
        verdict: of this part alone.
    """

    name: str
    per_seed: tuple[float, ...]
    measured: float | None
    interval: Interval | None
    bound: str
    verdict: Verdict


def part_of(name: str, values: Sequence[float], bound: Bound, span: Interval | None, kind: Kind = "finding") -> Part:
    """A part with its verdict: of a finding by its interval, of a check by its worst value; without values, none.

    Args:
        name: what is measured.
        values: one per seed.
        bound: what they are to satisfy.
        span: the interval of their mean.
        kind: ``"finding"`` or ``"check"``.
    """
    mean = float(np.mean(values)) if len(values) else math.nan
    verdict: Verdict
    if not len(values):
        verdict = "not tested"
    elif kind == "check":
        verdict = "holds" if bound.met(bound.worst(values)) else "does not hold"
    else:
        verdict = bound.judge(span)
    measured = mean if math.isfinite(mean) else None
    return Part(name, tuple(float(v) for v in values), measured, span, str(bound), verdict)


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a claim whose parts have these.

    It holds when all do, and does not hold when one does not. Else a part without a value leaves it untested, and what
    remains is undecided.

    Example:
        >>> together(["holds", "undecided"]), together(["does not hold", "undecided"])
        ('undecided', 'does not hold')
    """
    found = set(verdicts)
    if "does not hold" in found:
        return "does not hold"
    if not found or "not tested" in found:
        return "not tested"
    return "holds" if found == {"holds"} else "undecided"


def interval(values: Sequence[float]) -> Interval | None:
    """95% interval of the mean (Student's t); ``None`` with fewer than two values, or where one is not finite.

    Example:
        >>> low, high = interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    half = _t(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


@cache
def _t(freedom: int) -> float:
    """The upper 2.5% point of Student's distribution; severities ask for it thousands of times."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def share_interval(values: Sequence[float]) -> Interval | None:
    """95% interval of a share (Wilson's) from values 0 and 1; ``None`` for none, or where one is not finite.

    Raises:
        InputError: for other values.

    Example:
        >>> low, high = share_interval([1.0] * 17 + [0.0] * 23)
        >>> round(low, 3), round(high, 3)
        (0.285, 0.578)
    """
    from scipy.stats import binomtest

    if not len(values) or not np.isfinite(values).all():
        return None
    if other := [value for value in values if value not in (0, 1)]:
        raise InputError(f"{other[0]} is not 0 or 1, so these are no shares; give the interval of their mean")
    found = binomtest(round(sum(values)), len(values)).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def paired_share_interval(differences: Sequence[float]) -> Interval | None:
    """95% interval of the difference of two shares of the same cases, from -1, 0 or 1 for each; ``None`` for none.

    It has a width also where no case differs.

    Source: Bonett & Price, Journal of Educational and Behavioral Statistics 37 (2012).

    Example:
        >>> low, high = paired_share_interval([1.0] * 5 + [0.0] * 15)
        >>> round(low, 3), round(high, 3)
        (0.012, 0.443)
    """
    n = len(differences)
    if not n or not np.isfinite(differences).all():
        return None
    values = np.asarray(differences)
    more, less = (float((values == sign).sum() + 1) / (n + 2) for sign in (1, -1))
    half = 1.959963984540054 * math.sqrt((more + less - (more - less) ** 2) / (n + 2))
    return max(-1.0, more - less - half), min(1.0, more - less + half)
