"""A claim as a function of what was measured, so that it also judges draws in which it is false, or true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from mechclust.report.claims import Claim, claim
from mechclust.report.severity import severity_of
from mechclust.report.verdicts import Bound

F = TypeVar("F")
Parts = list[tuple[str, Sequence[float], Bound]]
NEAR = Bound("<=", 0.5)


@dataclass(frozen=True)
class Finding(Generic[F]):
    """One claim of the study.

    Attributes:
        parts: from what was measured to name, values per seed and bound of each part.
        null: from what was measured to a draw in which the claim is false.
        what: what these draws are.
        planted: to a draw in which it is true.
    """

    id: str
    statement: str
    parts: Callable[[F], Parts]
    null: Callable[[F, np.random.Generator], F]
    what: str
    chance: str | None = None
    note: str = ""
    planted: Callable[[F, np.random.Generator], F] | None = None

    def claimed(self, found: F, **more: object) -> Claim:
        """The claim of what was measured."""
        parts = self.parts(found)
        bounds = parts if len(parts) > 1 else parts[0][2]
        return claim(self.id, self.statement, "ours", parts[0][1], bounds, chance=self.chance, note=self.note, **more)  # type: ignore[arg-type]

    def judged(self, found: F, *, tested: bool, why_not: str = "") -> Claim:
        """The same, with its severity and power where it is tested."""
        severity, planted = None, self.planted
        if tested and all(len(values) for _, values, _ in self.parts(found)):
            severity = severity_of(
                lambda draw: self.claimed(self.null(found, draw)).verdict,
                self.what,
                planted=None if planted is None else lambda draw: self.claimed(planted(found, draw)).verdict,
            )
        return self.claimed(found, tested=tested, why_not=why_not, severity=severity)
