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
from tasks.text.visible import quoted

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


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return f"Part({quoted(self.name)}, {len(self.per_seed)} values: {self.verdict})"


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
def _t(freedom: float) -> float:
    """The upper 2.5% point of Student's distribution; severities ask for it thousands of times."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def share_interval(values: Sequence[float]) -> Interval | None:
    """95% interval of a share (Wilson's); ``None`` for no values, or if one is not finite.

    It lies within 0 and 1, and has a width even if all values are equal.

    Args:
        values: one per seed: 0 or 1, or a share of many examples.

    Raises:
        InputError: for a value below 0 or above 1.

    Source: Wilson 1927; for shares of many examples with the number of trials of ``share_trials``.

    Example:
        >>> low, high = share_interval([1.0] * 17 + [0.0] * 23)
        >>> round(low, 3), round(high, 3)
        (0.285, 0.578)
        >>> low, high = share_interval([1.0, 0.96, 0.35])  # Student's t gives -0.135 to 1.675
        >>> round(low, 3), round(high, 3)
        (0.107, 0.989)
    """
    if not len(values) or not np.isfinite(values).all():
        return None
    if other := [value for value in values if not 0 <= value <= 1]:
        raise InputError(f"{other[0]} is not between 0 and 1, so it is no share; give the interval of the mean")
    trials, freedom = share_trials(values)
    share = float(np.mean(values))
    z = _t(freedom)
    scale = 1 + z**2 / trials
    middle = (share + z**2 / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return 0.0 if share == 0 else middle - half, 1.0 if share == 1 else middle + half  # exact at both ends


def share_trials(values: Sequence[float]) -> tuple[float, float]:
    """Return how many independent trials the shares of several seeds are worth, and its degrees of freedom.

    Values 0 and 1 are one trial each. Shares of many examples are worth as many trials as give a share the variance
    that their mean has over seeds, which is estimated with one degree of freedom fewer than there are seeds. Seeds that
    are all equal say nothing about that variance, so each is one trial: thirty seeds without an error do not rule out
    that one in twenty fails.

    Args:
        values: finite, one per seed, each between 0 and 1.

    Source: Kish 1965; Korn & Graubard, Survey Methodology 24 (1998).

    Example:
        >>> share_trials([1.0, 1.0, 0.0])
        (3, inf)
        >>> trials, freedom = share_trials([0.9, 0.8, 0.85])
        >>> round(trials), freedom
        (153, 2)
    """
    n = len(values)
    if set(values) <= {0, 1} or np.ptp(values) == 0:
        return n, math.inf
    share = float(np.mean(values))
    return n * share * (1 - share) / float(np.var(values, ddof=1)), n - 1


def interval_over_seeds(values: Sequence[float], *, share: bool) -> Interval | None:
    """Return the 95% interval over seeds of a share or of anything else; ``None`` for fewer than two seeds.

    Args:
        values: one per seed.
        share: whether they are shares.
    """
    if len(values) < 2:
        return None
    return share_interval(values) if share else interval(values)


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
