"""Families of claims: which would still hold if all of them had been tested at one level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from mechclust.report.claims import Claim
from mechclust.report.verdicts import Bound, Part, interval, share_interval, share_trials
from probes.functional.holm import holm

__all__ = ["family_notes", "holm", "p_value"]

_LEVEL = 0.05


def family_notes(claims: Sequence[Claim]) -> list[str]:
    """Which findings still hold if all that were tested are one family; empty for fewer than two.

    A finding's p-value is that of its interval's own test against its bound (Student's t; of shares the score test,
    which is Wilson's; of an interval that was given, a normal one of its width), and of several parts the largest.
    """
    tested = [c for c in claims if c.kind == "finding" and c.verdict != "not tested"]
    held = [c for c in tested if c.verdict == "holds"]
    if len(tested) < 2 or not held:
        return []
    adjusted = dict(zip((c.id for c in tested), holm([p_value(c) for c in tested]), strict=True))
    lost = [c.id for c in held if adjusted[c.id] > _LEVEL]
    kept = f"all {len(held)} findings that hold still do" if len(held) > 1 else f"{held[0].id}, which holds, still does"
    what = f"{', '.join(lost)} would be undecided" if lost else kept
    return [f"With Holm's correction over the {len(tested)} findings that were tested, {what}."]


def p_value(c: Claim) -> float:
    """Of the hypothesis that the claim's value lies at its bound or beyond, two-sided as its interval is.

    Below .05 where the interval satisfies the bound; 1 where there is no interval, or the measured value
    violates the bound.
    """
    return max(_p_of(part) for part in c.parts or c.rows)


def _p_of(part: Part) -> float:
    from scipy.stats import norm, t

    relation, value = part.bound.split(";")[0].split()[-2:]
    bound, n = Bound(relation, float(value)), len(part.per_seed)
    if part.interval is None or part.measured is None or not bound.met(part.measured):
        return 1.0
    far, wide = abs(part.measured - bound.value), part.interval[1] - part.interval[0]
    if _is(part.interval, interval(part.per_seed)):
        scale, tail = wide / 2 / float(t.ppf(0.975, n - 1)), partial(t.sf, df=n - 1)
    elif all(0 <= x <= 1 for x in part.per_seed) and _is(part.interval, share_interval(part.per_seed)):
        trials, freedom = share_trials(part.per_seed)
        scale, tail = math.sqrt(max(bound.value * (1 - bound.value), 0.0) / trials), partial(t.sf, df=freedom)
    else:  # a bootstrap's may be longer on one side: what counts is the end nearer to the bound
        near = part.measured - part.interval[0] if relation.startswith(">") else part.interval[1] - part.measured
        scale, tail = near / float(norm.ppf(0.975)), norm.sf
    if far == 0:
        return 1.0
    return float(2 * tail(far / scale)) if scale > 0 else 0.0


def _is(span: tuple[float, float], other: tuple[float, float] | None) -> bool:
    return other is not None and bool(np.allclose(span, other, rtol=1e-9, atol=1e-12))
