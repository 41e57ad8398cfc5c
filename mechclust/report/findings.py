"""A finding: a claim as a function of data, so that the code that judges what was measured judges draws too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from mechclust.report.claims import Claim, EarlierRun, claim
from mechclust.report.severity import ONE_SEED, Severity, severity_of
from mechclust.report.verdicts import Bound, Interval
from tasks.text.visible import quoted

D = TypeVar("D")
Parts = Sequence[tuple[str, Sequence[float], Bound]]


@dataclass(frozen=True, repr=False)
class Finding(Generic[D]):
    """What a claim tests, written before there are numbers.

    Attributes:
        id: of the claim.
        statement: what is claimed.
        source: where it comes from.
        parts: computes name, values per seed and bound of each part from data; the first is the main value.
        null: draws data in which the claim is false, given the measured data and a generator.
        what: what these draws are.
        planted: draws data in which it is true, or ``None``.
        planted_what: what those are, or ``""`` to leave them out of the severity's note.
        intervals: intervals of parts by name, where they are not over the values.
        shares: whether all values are shares, or the names of the parts whose values are.
        paper: the source's own value.
        chance: the value by chance, as text.
        note: what a reader must know.

    Example:
        >>> from mechclust.report.draws import exchanged
        >>> above = Finding("X1", "a is above b", "ours", lambda data: [("", data["a"] - data["b"], Bound(">", 0))],
        ...                 exchanged(("a", "b")), "both exchanged at random, seed by seed")
        >>> found = above.judged({"a": np.arange(1.0, 13.0), "b": np.zeros(12)})
        >>> found.verdict, found.severity
        ('holds', 0.99)
    """

    id: str
    statement: str
    source: str
    parts: Callable[[D], Parts]
    null: Callable[[D, np.random.Generator], D]
    what: str
    planted: Callable[[D, np.random.Generator], D] | None = None
    planted_what: str = ""
    intervals: Callable[[D], Mapping[str, Interval | None]] | None = None
    shares: bool | Collection[str] = False
    paper: float | None = None
    chance: str | None = None
    note: str = ""

    def __repr__(self) -> str:
        return f"Finding({self.id!r}, {quoted(self.statement)})"

    def claimed(self, data: D, *, severity: Severity | None = None, tested: bool = True, why_not: str = "") -> Claim:
        """The claim on data, measured or drawn."""
        parts = self.parts(data)
        return claim(
            self.id,
            self.statement,
            self.source,
            parts[0][1],
            parts if len(parts) > 1 or parts[0][0] else parts[0][2],
            interval=None if self.intervals is None else self.intervals(data),
            tested=tested,
            why_not=why_not,
            shares=self.shares,
            paper=self.paper,
            chance=self.chance,
            severity=severity,
            note=self.note,
        )

    def judged(self, data: D, *, tested: bool = True, why_not: str = "", history: Sequence[EarlierRun] = ()) -> Claim:
        """The claim on measured data with its severity and power, if it is tested.

        Args:
            data: as measured.
            tested: whether this run can test it.
            why_not: why it cannot; also used where a part has no values.
            history: what earlier runs said.
        """
        if not tested:
            severity = Severity(None, 0, why_not or "this size of the study cannot test it")
        elif any(not len(values) for _, values, _ in self.parts(data)):
            severity = Severity(None, 0, why_not or "there is nothing to draw from")
        elif self.claimed(data).verdict == "not tested":
            severity = Severity(None, 0, ONE_SEED)
        else:
            severity = self._severity(data)
        return replace(self.claimed(data, severity=severity, tested=tested, why_not=why_not), history=tuple(history))

    def lacking(self, why: str, history: Sequence[EarlierRun] = ()) -> Claim:
        """The claim where nothing was measured, for the reason given."""
        found = claim(
            self.id,
            self.statement,
            self.source,
            [],
            Bound(">", 0),
            paper=self.paper,
            chance=self.chance,
            severity=Severity(None, 0, why),
            why_not=why,
            note=self.note,
        )
        return replace(found, bound="-", history=tuple(history))

    def _severity(self, data: D) -> Severity:
        planted = self.planted
        return severity_of(
            lambda rng: self.claimed(self.null(data, rng)).verdict,
            self.what + (f"; power: {self.planted_what}" if self.planted_what else ""),
            planted=None if planted is None else lambda rng: self.claimed(planted(data, rng)).verdict,
        )
