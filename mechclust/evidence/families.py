"""Headline findings as one family: which would still hold if all of them were tested at one level."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mechclust.evidence.bounds import Bound, TwoSidedBound
from mechclust.evidence.finding import Finding
from mechclust.evidence.intervals import share_interval_trials
from mechclust.evidence.parts import Part
from mechclust.evidence.verdict import verdict_of
from probes.functional.holm import holm

_LEVEL = 0.05


def family_notes(findings: Sequence[Finding]) -> list[str]:
    """Return which headline findings still hold after Holm's correction. Empty for fewer than two.

    A finding's p-value comes from the test that its interval inverts, against its bound. For several parts it is the
    largest.
    """
    tested = [finding for finding in findings if finding.shown == "headline" and finding.verdict != "not tested"]
    held = [finding.id for finding in tested if finding.verdict == "holds"]
    if len(tested) < 2 or not held:
        return []
    corrected = holm([_p_value(finding) for finding in tested])
    adjusted = dict(zip((finding.id for finding in tested), corrected, strict=True))
    lost = [id for id in held if adjusted[id] > _LEVEL]
    kept = f"{', '.join(held)} still hold{'s' if len(held) == 1 else ''}"
    what = f"{', '.join(lost)} would be undecided" if lost else kept
    return [f"Headline findings: {', '.join(adjusted)}. With Holm's correction over them, {what}."]


def _p_value(finding: Finding) -> float:
    """Return the p-value of the hypothesis that the finding's value lies at its bound or beyond.

    It is two-sided, as the interval is: below .05 if the interval satisfies the bound. It is 1 if there is no interval
    or the measured value violates the bound.
    """
    return max((_p_of_part(part) for part in finding.parts), default=1.0)


def _p_of_part(part: Part) -> float:
    if isinstance(part.bound, TwoSidedBound):
        ends = (Bound(">=", part.bound.low), Bound("<=", part.bound.high))
        return max(_p_of_bound(part, bound) for bound in ends)
    return _p_of_bound(part, part.bound)


def _p_of_bound(part: Part, bound: Bound) -> float:
    """Return the p-value against one bound, from the distance and the scale that the interval was made with."""
    from scipy.stats import norm, t

    if part.interval is None or part.measured is None or not bound.met(part.measured):
        return 1.0
    distance = abs(part.measured - bound.value)
    if distance == 0:
        return 0.0 if verdict_of(bound, part.interval) == "holds" else 1.0
    freedom = len(part.values) - 1.0
    low, high = part.interval
    if part.method == "share":
        trials, freedom = share_interval_trials(part.values)
        scale = math.sqrt(max(bound.value * (1 - bound.value), 0.0) / trials)
    elif part.method in ("mean", "one more run"):
        scale = (high - low) / 2 / float(t.ppf(0.975, freedom))
    else:  # a bootstrap interval may be asymmetric: use the end nearer to the bound
        near = part.measured - low if bound.relation.startswith(">") else high - part.measured
        if near <= 0:  # the value lies outside its interval
            near = (high - low) / 2
        scale = near / float(norm.ppf(0.975))
        freedom = math.inf
    return float(2 * t.sf(distance / scale, freedom)) if scale > 0 else 0.0
