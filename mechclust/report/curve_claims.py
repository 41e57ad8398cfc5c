"""Claims about curves of similarity by task and layer: judged by bootstrap over tasks, with severity and power.

The measured curves, every null draw and every planted draw go through the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mechclust.report.claims import Claim, claim
from mechclust.report.severity import LEAST_DRAWS, Severity, power_of, severities_of
from mechclust.report.task_curves import Statistic, TaskCurves, percentiles
from mechclust.report.text import join
from mechclust.report.verdicts import Bound, Interval, Verdict, together

RESAMPLES = 1000
_RESAMPLES_OF_DRAWS = 200

Draw = Callable[[TaskCurves, np.random.Generator], TaskCurves]


@dataclass(frozen=True)
class Null:
    """Curves in which a claim is false: how they are drawn, and what is said of them."""

    draw: Draw
    text: str


@dataclass(frozen=True)
class CurveClaim:
    """What a claim about curves tests, before any number.

    Attributes:
        id, statement, source, paper, chance, note: of the claim.
        parts: name, statistic of the curves, bound; the first is the main value.
        null: where it is false.
        curves: what it looks at; None: not measured.
        why_not: why it cannot be tested; ``""``: it can.
        planted: draws curves in which it is true, or None.
    """

    id: str
    statement: str
    source: str
    parts: tuple[tuple[str, Statistic, Bound], ...]
    null: Null
    curves: TaskCurves | None
    why_not: str = ""
    planted: Draw | None = None
    paper: float | None = None
    chance: str | None = None
    note: str = ""

    @property
    def has_interval(self) -> bool:
        """Whether it can be tested, on enough tasks."""
        return not self.why_not and self.curves is not None and not self.curves.few


def judged(
    tests: Sequence[CurveClaim], *, resamples: int = RESAMPLES, draws: int = LEAST_DRAWS, seed: int = 0
) -> list[Claim]:
    """The claims with their values, intervals over tasks, verdicts, severity and power.

    Args:
        tests: what is claimed, and of which curves.
        resamples: how often tasks are drawn anew for an interval.
        draws: how many null draws, and as many planted ones; 0: no severity and no power.
        seed: for all draws.

    Example:
        >>> from mechclust.report.curve_statistics import upper_gap
        >>> from mechclust.report.null_curves import swapped
        >>> base = np.linspace(0.2, 0.4, 20)[:, None]
        >>> tasks = tuple(map(str, range(20)))
        >>> curves = TaskCurves(tasks, ("1",), base, base + 0.3, None, None, base[:, 0] < 0, (None,) * 20)
        >>> parts = (("", upper_gap, Bound(">", 0)),)
        >>> found = judged([CurveClaim("X1", "tuned > pre", "ours", parts, Null(swapped, "swapped"), curves)])
        >>> found[0].verdict, found[0].severity > 0.9
        ('holds', True)
    """
    tests = [_defined(test) for test in tests]
    severities = _severities([test for test in tests if test.has_interval], draws, seed)
    return [_judged(test, severities.get(test.id), resamples, seed) for test in tests]


def _defined(test: CurveClaim) -> CurveClaim:
    """The claim, which cannot be tested where a value of it is undefined."""
    if test.why_not or test.curves is None:
        return test
    lost = _undefined(test, test.curves)
    return replace(test, why_not=f"{join(lost)} {'is' if len(lost) == 1 else 'are'} undefined") if lost else test


def _undefined(test: CurveClaim, curves: TaskCurves) -> list[str]:
    return [name or "the value" for name, statistic, _ in test.parts if np.isnan(statistic(curves))]


def _judged(test: CurveClaim, severity: Severity | None, resamples: int, seed: int) -> Claim:
    values: list[tuple[str, Sequence[float], Bound]] = [(name, [], bound) for name, _, bound in test.parts]
    spans: dict[str, Interval | None] = {}
    shares: dict[str, float] = {}
    if not test.why_not and test.curves is not None:
        values = [(name, [float(statistic(test.curves))], bound) for name, statistic, bound in test.parts]
    if test.has_interval and test.curves is not None:
        drawn = test.curves.resampled(resamples, seed)
        for name, statistic, _ in test.parts:
            found = np.asarray(statistic(drawn), dtype=float)
            spans[name], shares[name] = _interval(found), float(np.isnan(found).mean())
    lost = [name or "the value" for name, span in spans.items() if span is None]
    some = [
        f"{share:.1%} of the draws of tasks leave {name or 'the value'} undefined and are left out of its interval"
        for name, share in shares.items()
        if share and spans[name] is not None
    ]
    few = not test.has_interval and test.curves is not None
    why_not = test.why_not or ("too few tasks for an interval over them" if few else "")
    undefined = f"no interval of {', '.join(lost)}: undefined in more than 5% of the draws of tasks" if lost else ""
    return claim(
        test.id,
        test.statement,
        test.source,
        values[0][1],
        values,
        interval=spans,
        tested=not why_not,
        why_not=why_not,
        paper=test.paper,
        chance=test.chance,
        severity=severity or Severity(None, 0, why_not or "it has no interval over tasks, and is never called true"),
        note="; ".join(filter(None, [test.note, undefined, *some])),
    )


def _interval(drawn: np.ndarray) -> Interval | None:
    """Of a statistic's values over draws of tasks; None where there is none."""
    low, high = percentiles(drawn)
    return (float(low), float(high)) if np.isfinite([low, high]).all() else None


def _verdict(test: CurveClaim, curves: TaskCurves, drawn: TaskCurves) -> Verdict:
    if _undefined(test, curves):
        return "not tested"  # as it would be of measured curves
    return together(bound.judge(_interval(statistic(drawn))) for _, statistic, bound in test.parts)


def _severities(tests: Sequence[CurveClaim], draws: int, seed: int) -> dict[str, Severity]:
    """By id. Claims of the same curves and the same null data are judged on the same draws."""
    if not draws:
        return {test.id: Severity(None, 0, "not counted, since no draws were asked for") for test in tests}
    found: dict[str, Severity] = {}
    for null, curves, group in _grouped(tests, lambda test: test.null):
        found |= severities_of(_verdicts(group, curves, null.draw, seed), null.text, draws=draws, seed=seed)
    for planted, curves, group in _grouped([test for test in tests if test.planted], lambda test: test.planted):
        for id, power in power_of(_verdicts(group, curves, planted, seed), draws=draws, seed=seed + 1).items():
            found[id] = replace(found[id], power=power)
    return found


def _grouped(
    tests: Sequence[CurveClaim], by: Callable[[CurveClaim], Any]
) -> list[tuple[Any, TaskCurves, list[CurveClaim]]]:
    """Those that look at the same curves and have the same data drawn."""
    groups: dict[tuple[int, int], tuple[Any, TaskCurves, list[CurveClaim]]] = {}
    for test in tests:
        if test.curves is not None:
            groups.setdefault((id(test.curves), id(by(test))), (by(test), test.curves, []))[2].append(test)
    return list(groups.values())


def _verdicts(
    group: Sequence[CurveClaim], curves: TaskCurves, data: Draw, seed: int
) -> Callable[[np.random.Generator], dict[str, Verdict]]:
    """What claims about the same curves say of one draw."""

    def verdicts(draw: np.random.Generator) -> dict[str, Verdict]:
        one = data(curves, draw)
        drawn = one.resampled(_RESAMPLES_OF_DRAWS, seed)
        return {test.id: _verdict(test, one, drawn) for test in group}

    return verdicts
