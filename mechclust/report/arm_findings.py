"""Findings about the arms of a study: which they need, and how their data are gathered from the runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mechclust.report.claims import Claim
from mechclust.report.draws import Data, Draw
from mechclust.report.findings import Finding, Parts
from mechclust.report.verdicts import Bound

R = TypeVar("R")


@dataclass(frozen=True)
class ArmFinding(Generic[R]):
    """A finding, the arms that it needs, and how its data are gathered from them.

    Attributes:
        arms: without one of them it is not tested.
        data: from each arm's runs, in the order of the seeds.
        finding: of these data.
    """

    arms: tuple[str, ...]
    data: Callable[[Mapping[str, Sequence[R]]], Data]
    finding: Finding[Data]

    def judged(self, runs: Mapping[str, Sequence[R]], *, tested: bool) -> Claim:
        """The claim with its severity and power; not tested where an arm is lacking.

        Args:
            runs: each arm's, in the order of the seeds.
            tested: whether this size of the study can test it.
        """
        if lacking := [arm for arm in self.arms if arm not in runs]:
            return self.finding.lacking(f"needs the arm {lacking[0]!r}")
        return self.finding.judged(self.data(runs), tested=tested)


def arm_finding(
    id: str,
    statement: str,
    arms: tuple[str, ...],
    data: Callable[[Mapping[str, Sequence[R]]], Data],
    parts: Callable[[Data], Parts],
    null: Draw,
    what: str,
    planted: Draw,
    *,
    source: str,
    shares: bool | Collection[str] = False,
    chance: str | None = None,
) -> ArmFinding[R]:
    """An ``ArmFinding`` whose planted draws are predicted means (``moved_to``). Arguments are those of both classes.

    Example:
        >>> import numpy as np
        >>> from mechclust.report.draws import at_bound, moved_to
        >>> high = Bound(">=", 0.5)
        >>> found = arm_finding("X1", "it is high", ("main",), gathered(v=lambda runs: np.array(runs["main"])),
        ...                     one("v", high), at_bound("v", high), "the measured spread about the bound",
        ...                     moved_to(v=0.7), source="ours")
        >>> found.judged({"main": [0.8, 0.7, 0.75]}, tested=True).verdict, found.judged({}, tested=True).verdict
        ('holds', 'not tested')
    """
    means = "predicted means with the measured spread over seeds"
    finding = Finding(id, statement, source, parts, null, what, planted, means, shares=shares, chance=chance)
    return ArmFinding(arms, data, finding)


def gathered(**of: Callable[[Mapping[str, Sequence[R]]], Any]) -> Callable[[Mapping[str, Sequence[R]]], Data]:
    """Data by name, each gathered from the runs."""
    return lambda runs: {name: get(runs) for name, get in of.items()}


def one(name: str, bound: Bound) -> Callable[[Data], Parts]:
    """The only part of a claim: one of the data, against a bound."""
    return lambda data: [("", data[name].tolist(), bound)]


def gap(a: str, b: str, bound: Bound) -> Callable[[Data], Parts]:
    """The only part of a claim: the difference of two of the data, against a bound."""
    return lambda data: [("", (data[a] - data[b]).tolist(), bound)]
