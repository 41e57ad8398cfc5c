"""Severity: how rarely a claim is called true on data in which it is false. And power, the reverse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mechclust.report.verdicts import Verdict
from tasks import InputError

LEAST_DRAWS = 200
WEAK = 0.95  # below it a claim is marked as weak
ONE_SEED = "not computed: one seed decides nothing"


@dataclass(frozen=True)
class Severity:
    """The verdicts of a claim's own code on data with a known truth.

    Attributes:
        share: of the null draws that could be tested, those that are not called *holds*; ``None`` where there were
            none.
        draws: how many null draws could be tested.
        note: what they were, or why there are none.
        power: of the planted draws, the share that is called *holds*; ``None`` where there were none.
    """

    share: float | None
    draws: int
    note: str
    power: float | None = None

    def __post_init__(self) -> None:
        if not self.note:
            raise InputError("severity has no note; say what the null draws were, or why there are none")


NOT_COMPUTED = Severity(None, 0, "not computed: this claim has no null draws")

_VerdictOf = Callable[[np.random.Generator], Verdict]
_VerdictsOf = Callable[[np.random.Generator], Mapping[str, Verdict]]


def severity_of(
    verdict_of: _VerdictOf, note: str, *, planted: _VerdictOf | None = None, draws: int = LEAST_DRAWS, seed: int = 0
) -> Severity:
    """Run a claim's own function on draws of null data, and of planted data if given.

    Args:
        verdict_of: draws data in which the claim is false from a generator, and gives the verdict of the same
            function that judges the measured data.
        note: what these draws are.
        planted: the same, of data in which the claim is true.
        draws: how many of each, at least 200.
        seed: for the draws; every draw has a generator of its own.

    Raises:
        InputError: for fewer draws.

    Example:
        >>> from mechclust.report.verdicts import Bound, interval
        >>> def above(draw, mean):
        ...     return Bound(">", 0).judge(interval(draw.normal(mean, 1, 10)))
        >>> severity_of(lambda draw: above(draw, 0), "noise", planted=lambda draw: above(draw, 2))
        Severity(share=0.99, draws=200, note='noise', power=1.0)
    """
    several = None if planted is None else (lambda draw: {"": planted(draw)})
    return severities_of(lambda draw: {"": verdict_of(draw)}, note, planted=several, draws=draws, seed=seed)[""]


def severities_of(
    verdicts_of: _VerdictsOf, note: str, *, planted: _VerdictsOf | None = None, draws: int = LEAST_DRAWS, seed: int = 0
) -> dict[str, Severity]:
    """``severity_of`` for claims that share their null data: every draw is judged by all of them.

    Args:
        verdicts_of: from a generator to verdicts by a claim's id, the same ids in every draw. A draw that cannot be
            tested counts neither for nor against a claim; the note says how many there were.
        note: what the null draws are.
        planted: the same, of data in which the claims are true.
        draws: how many of each, at least 200.
        seed: for the draws.

    Raises:
        InputError: for fewer draws.
    """
    if draws < LEAST_DRAWS:
        raise InputError(f"draws is {draws}; expected at least {LEAST_DRAWS}, or the share says little")
    power = {} if planted is None else _power(planted, draws, (seed, 1))
    return {
        id: _severity(counts, note, power.get(id)) for id, counts in _verdicts(verdicts_of, draws, (seed, 0)).items()
    }


def power_of(planted: _VerdictsOf, *, draws: int = LEAST_DRAWS, seed: int = 0) -> dict[str, float]:
    """The share of planted draws, in which the claims are true, that is called *holds*, by claim.

    Args:
        planted: from a generator to verdicts by a claim's id.
        draws: how many.
        seed: for the draws.
    """
    return _power(planted, draws, (seed, 0))


def _severity(found: Counter[Verdict], note: str, power: float | None) -> Severity:
    draws, tested = found.total(), found.total() - found["not tested"]
    if tested < draws:
        note = f"{note}; {draws - tested} of {draws} draws could not be tested"
    share = (tested - found["holds"]) / tested if tested >= draws / 2 else None
    return Severity(share, tested if share is not None else 0, note, power)


def _power(planted: _VerdictsOf, draws: int, seed: tuple[int, int]) -> dict[str, float]:
    return {id: found["holds"] / draws for id, found in _verdicts(planted, draws, seed).items()}


def _verdicts(verdicts_of: _VerdictsOf, draws: int, seed: tuple[int, int]) -> dict[str, Counter[Verdict]]:
    """How many draws have which verdict, by claim."""
    found: dict[str, Counter[Verdict]] = {}
    for i in range(draws):
        for id, verdict in verdicts_of(np.random.default_rng([*seed, i])).items():
            found.setdefault(id, Counter())[verdict] += 1
    return found
