"""Findings as functions of data: the same code judges what was measured, null draws and planted draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mechclust.report.claims import Claim, EarlierRun, claim
from mechclust.report.severity import Severity, severity_of
from mechclust.report.verdicts import Bound, Interval, Verdict

Data = Mapping[str, Any]
Parts = list[tuple[str, Sequence[float], Bound]]
Draw = Callable[[Data, np.random.Generator], Data]


@dataclass(frozen=True)
class Finding:
    """What a claim tests, apart from the data.

    Attributes:
        id, statement, source, paper, chance, note: fields of the claim.
        predicted: the verdict that was expected when the bound was written.
        data: the measured data; ``None`` if there are none, for the reason in ``why_not``.
        parts: computes name, values and bound of each part from the data; the first is the main value.
        null: draws data in which the claim is false, with a description.
        planted: the same for data in which it is true, or ``None``.
        intervals: intervals of parts by name, if they are not over the values.
        shares: whether the values are 0 or 1.
        why_not: why the claim cannot be tested; ``""`` if it can.
    """

    id: str
    statement: str
    source: str
    predicted: Verdict
    data: Data | None
    parts: Callable[[Data], Parts]
    null: tuple[Draw, str]
    planted: tuple[Draw, str] | None = None
    intervals: Callable[[Data], Mapping[str, Interval]] | None = None
    shares: bool = False
    paper: float | None = None
    chance: str | None = None
    note: str = ""
    why_not: str = ""

    def claimed(self, data: Data | None, severity: Severity | None = None) -> Claim:
        """The claim judged on data, either measured or drawn."""
        known = {"paper": self.paper, "chance": self.chance, "severity": severity, "why_not": self.why_not}
        if data is None:
            found = claim(self.id, self.statement, self.source, [], Bound(">", 0), tested=False, **known)  # type: ignore[arg-type]
            return replace(found, bound="-")
        parts = self.parts(data)
        return claim(
            self.id,
            self.statement,
            self.source,
            parts[0][1],
            parts if len(parts) > 1 else parts[0][2],
            shares=self.shares,
            interval=None if self.intervals is None else self.intervals(data),
            note="; ".join(filter(None, [f"predicted: {self.predicted}", self.note])),
            **known,  # type: ignore[arg-type]
        )


def judged(finding: Finding, history: Sequence[EarlierRun] = (), *, draws: bool = True) -> Claim:
    """The claim with its verdict, severity, power and history.

    Args:
        finding: what is claimed, and of what.
        history: what earlier runs said.
        draws: whether to draw null and planted data.
    """
    data = finding.data
    empty = data is None or any(not len(values) for _, values, _ in finding.parts(data))
    if data is None or empty or not draws:
        why = finding.why_not or "there is nothing to draw from"
        severity = Severity(None, 0, why if empty else "this size tests nothing")
    else:
        verdict = partial(_verdict, finding, data)
        text = finding.null[1] + (f"; power: {finding.planted[1]}" if finding.planted else "")
        planted = None if finding.planted is None else partial(verdict, finding.planted[0])
        severity = severity_of(partial(verdict, finding.null[0]), text, planted=planted)
    return replace(finding.claimed(data, severity), history=tuple(history))


def _verdict(finding: Finding, data: Data, draw: Draw, rng: np.random.Generator) -> Verdict:
    return finding.claimed(draw(data, rng)).verdict


# ---- draws ----


def coins(name: str, *chances: float) -> Draw:
    """Zeros and ones in place of ``data[name]``, with one of the chances of a one, each as likely as the others.

    Example:
        >>> drawn = coins("solved", 1.0)({"solved": np.zeros(3)}, np.random.default_rng(0))
        >>> drawn["solved"].tolist()
        [1.0, 1.0, 1.0]
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        return {**data, name: (rng.random(len(data[name])) < rng.choice(chances)).astype(float)}

    return draw


def exchanged(*pairs: tuple[str, str]) -> Draw:
    """Two arms exchanged seed by seed at random: all pairs of a seed together.

    Example:
        >>> data = {"a": np.zeros(50), "b": np.ones(50)}
        >>> drawn = exchanged(("a", "b"))(data, np.random.default_rng(0))
        >>> bool((drawn["a"] + drawn["b"] == 1).all()), bool(0 < drawn["a"].mean() < 1)
        (True, True)
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        swap = rng.random(len(data[pairs[0][0]])) < 0.5
        new = dict(data)
        for a, b in pairs:
            new[a], new[b] = np.where(swap, data[b], data[a]), np.where(swap, data[a], data[b])
        return new

    return draw


def signs(name: str) -> Draw:
    """Differences with random signs."""
    return lambda data, rng: {**data, name: data[name] * rng.choice([-1.0, 1.0], len(data[name]))}


def moved(name: str, to: float) -> Draw:
    """Values with the measured spread about a predicted mean."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        x = data[name]
        return {**data, name: rng.choice(x - x.mean(), len(x)) + to}

    return draw


def relabelled(name: str) -> Draw:
    """Which networks are of which kind, at random."""
    return lambda data, rng: {**data, name: rng.permutation(data[name])}


# ---- ROC ----


def roc_area(positive: np.ndarray, negative: np.ndarray) -> tuple[float, Interval]:
    """Area under the ROC curve, ties counting half, and a 95% interval over both kinds of networks (bootstrap).

    Args:
        positive: ``[n]`` scores of what should be found.
        negative: ``[m]`` of what should not.

    Example:
        >>> area, (low, high) = roc_area(np.array([0.9, 0.8, 0.4]), np.array([0.1, 0.4]))
        >>> round(area, 3), low <= area <= high
        (0.917, True)
    """
    above = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    rng = np.random.default_rng(0)
    n, m = above.shape
    rows = rng.multinomial(n, np.full(n, 1 / n), size=500) / n
    columns = rng.multinomial(m, np.full(m, 1 / m), size=500) / m
    areas = np.einsum("bm,bm->b", rows @ above, columns)
    low, high = np.quantile(areas, (0.025, 0.975))
    return float(above.mean()), (float(low), float(high))
