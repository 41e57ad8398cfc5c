"""The verdict on an interval and its bound, on the parts of a finding, and of an earlier run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from mechclust.evidence.bounds import Bound, TwoSidedBound
from mechclust.evidence.intervals import Interval

Verdict = Literal["holds", "not specific", "does not hold", "undecided", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
MARKS: dict[Verdict, str] = {
    "holds": "✓",
    "not specific": "≈",
    "does not hold": "✗",
    "undecided": "?",
    "not tested": "–",
}
SEEDS_ADDED = "seeds added"  # ``EarlierVerdict.changed`` if it is this run with fewer seeds


def verdict_of(bound: Bound | TwoSidedBound, interval: Interval | None) -> Verdict:
    """Return the verdict of an interval: all of it satisfies the bound, none of it does, or it straddles an end.

    Without an interval the verdict is undecided.

    Example:
        >>> bound = Bound(">=", 0.5)
        >>> verdict_of(bound, (0.6, 0.9)), verdict_of(bound, (0.1, 0.4)), verdict_of(bound, (0.4, 0.9))
        ('holds', 'does not hold', 'undecided')
        >>> verdict_of(TwoSidedBound(0.2, 0.6), (0.1, 0.7))
        'undecided'
    """
    if interval is None or not np.isfinite(interval).all():
        return "undecided"
    low, high = interval
    if bound.met(low) and bound.met(high):
        return "holds"
    if isinstance(bound, TwoSidedBound):
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


@dataclass(frozen=True)
class EarlierVerdict:
    """An earlier run's verdict on a finding.

    Attributes:
        run: which, such as its date and seeds.
        seeds: how many.
        verdict: of that run.
        changed: the change made after it.
    """

    run: str
    seeds: int
    verdict: Verdict
    changed: str = ""
