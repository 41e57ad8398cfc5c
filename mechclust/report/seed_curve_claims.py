"""Claims about curves of similarity by task and layer, one set of curves a seed: judged over seeds, with severity.

The measured curves, every null draw and every planted draw go through the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mechclust.report.claims import Claim, claim
from mechclust.report.curve_claims import Draw
from mechclust.report.severity import LEAST_DRAWS, ONE_SEED, Severity, severities_of
from mechclust.report.task_curves import Statistic, TaskCurves
from mechclust.report.verdicts import Bound, Verdict

Curves = Sequence[TaskCurves]
SeedDraw = Callable[[Curves, np.random.Generator], Curves]


@dataclass(frozen=True)
class SeedNull:
    """Curves of all seeds in which a claim is false: how they are drawn, and what is said of them."""

    draw: SeedDraw
    text: str


def each(draw: Draw) -> SeedDraw:
    """Every seed's curves drawn on their own."""
    return lambda curves, rng: [draw(one, rng) for one in curves]


@dataclass(frozen=True)
class SeedCurveClaim:
    """What a claim about the curves of several seeds tests, before any number.

    Attributes:
        id, statement, source, paper, chance, note: of the claim.
        parts: name, statistic of one seed's curves, bound; the first is the main value.
        null: where it is false.
        curves: one for each seed; none: not measured.
        why_not: why it cannot be tested; ``""``: it can.
        planted: draws curves in which it is true, or None.
        shares: the statistics are shares.
        least_seeds: it is about the seeds where all statistics are defined, and is tested from so many on; 0: about
            all seeds, and one where a statistic is undefined leaves it undecided.
    """

    id: str
    statement: str
    source: str
    parts: tuple[tuple[str, Statistic, Bound], ...]
    null: SeedNull
    curves: Curves
    why_not: str = ""
    planted: SeedDraw | None = None
    shares: bool = False
    least_seeds: int = 0
    paper: float | None = None
    chance: str | None = None
    note: str = ""

    def claimed(self, curves: Curves, severity: Severity | None = None) -> Claim:
        """The claim judged on some curves: those that were measured, or a draw."""
        measured, why_not = self._measured(curves)
        values = [(name, of, bound) for (name, _, bound), of in zip(self.parts, measured, strict=True)]
        return claim(
            self.id,
            self.statement,
            self.source,
            values[0][1],
            values if len(values) > 1 else values[0][2],
            tested=not why_not,
            why_not=why_not,
            shares=self.shares,
            paper=self.paper,
            chance=self.chance,
            severity=severity,
            note=self.note,
        )

    def untested(self, curves: Curves) -> str:
        """Why it cannot be tested on some curves; ``""``: it can."""
        return self._measured(curves)[1]

    def _measured(self, curves: Curves) -> tuple[list[list[float]], str]:
        """Values of each part, of the seeds that it is about; and why they decide nothing."""
        if self.why_not:
            return [[] for _ in self.parts], self.why_not
        values = np.array([[statistic(one) for one in curves] for _, statistic, _ in self.parts], dtype=float)
        if not self.least_seeds:
            return values.tolist(), ""
        defined = np.isfinite(values).all(axis=0)
        if (n := int(defined.sum())) < self.least_seeds:
            return [[] for _ in self.parts], (
                f"defined in {n} of {len(curves)} seeds; at least {self.least_seeds} are needed"
            )
        return values[:, defined].tolist(), ""


def judged_over_seeds(tests: Sequence[SeedCurveClaim], *, draws: int = LEAST_DRAWS, seed: int = 0) -> list[Claim]:
    """The claims with their values per seed, intervals over seeds, verdicts, severity and power.

    Args:
        tests: what is claimed, and of which curves.
        draws: how many null draws, and as many planted ones; 0: no severity and no power.
        seed: for all draws.

    Example:
        >>> from mechclust.report.curve_statistics import upper_gap
        >>> from mechclust.report.null_curves import swapped
        >>> base = np.linspace(0.2, 0.4, 20)[:, None]
        >>> tasks, none = tuple(map(str, range(20))), base[:, 0] < 0
        >>> curves = [
        ...     TaskCurves(tasks, ("1",), base, base + gain, None, None, none, (None,) * 20) for gain in (0.3, 0.4, 0.5)
        ... ]
        >>> parts = (("", upper_gap, Bound(">", 0)),)
        >>> test = SeedCurveClaim("X1", "tuned > pre", "ours", parts, SeedNull(each(swapped), "swapped"), curves)
        >>> found = judged_over_seeds([test])
        >>> found[0].verdict, found[0].severity > 0.9
        ('holds', True)
    """
    why_not = {test.id: test.untested(test.curves) for test in tests}
    able = [test for test in tests if not why_not[test.id] and len(test.curves) > 1]
    found: dict[str, Severity] = {}
    for test in able if draws else []:

        def verdict(draw: SeedDraw, test: SeedCurveClaim = test) -> Callable[[np.random.Generator], dict[str, Verdict]]:
            return lambda rng: {test.id: test.claimed(draw(test.curves, rng)).verdict}

        planted = None if test.planted is None else verdict(test.planted)
        found |= severities_of(verdict(test.null.draw), test.null.text, planted=planted, draws=draws, seed=seed)
    return [test.claimed(test.curves, found.get(test.id) or _without(why_not[test.id], draws)) for test in tests]


def _without(why_not: str, draws: int) -> Severity:
    if why_not:
        return Severity(None, 0, why_not)
    if not draws:
        return Severity(None, 0, "not counted, since no draws were asked for")
    return Severity(None, 0, ONE_SEED)


def same_clusters(curves: Curves, draw: np.random.Generator, covariate: str) -> Curves:
    """A covariate that is the same within a cluster goes to other clusters, the same in all seeds.

    Example:
        >>> one, none = np.zeros((4, 1)), np.zeros(4, dtype=bool)
        >>> curves = TaskCurves(tuple("abcd"), ("1",), one, one, None, None, none, ("x", "x", "y", "y"),
        ...                     covariates={"new": np.array([0, 0, 1, 1])})
        >>> [c.covariates["new"].tolist() for c in same_clusters([curves] * 2, np.random.default_rng(0), "new")]
        [[1, 1, 0, 0], [1, 1, 0, 0]]
    """
    known = dict(zip(curves[0].clusters, curves[0].covariates[covariate], strict=True))
    values = np.array(list(known.values()))
    given = draw.permutation(values)
    while len(set(known.values())) > 1 and np.array_equal(given, values):
        given = draw.permutation(values)
    of = dict(zip(known, given, strict=True))
    return [
        replace(one, covariates={**one.covariates, covariate: np.array([of[cluster] for cluster in one.clusters])})
        for one in curves
    ]
