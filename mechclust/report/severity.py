"""Severity: how rarely a claim is called true on data in which it is false. And power, the reverse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mechclust.report.verdicts import Verdict
from tasks import InputError

LEAST_DRAWS = 200
WEAK = 0.95  # below it a claim is marked as weak


@dataclass(frozen=True)
class Severity:
    """The verdicts of a claim's own code on data with a known truth.

    Attributes:
        share: of the null draws, those that are not called *holds*; ``None`` where there were none.
        draws: how many null draws.
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
        verdicts_of: from a generator to verdicts by a claim's id, the same ids in every draw.
        note: what the null draws are.
        planted: the same, of data in which the claims are true.
        draws: how many of each, at least 200.
        seed: for the draws.

    Raises:
        InputError: for fewer draws.
    """
    if draws < LEAST_DRAWS:
        raise InputError(f"draws is {draws}; expected at least {LEAST_DRAWS}, or the share says little")
    null = _count_held(verdicts_of, draws, (seed, 0))
    power = {} if planted is None else _count_held(planted, draws, (seed, 1))
    return {
        id: Severity((draws - held) / draws, draws, note, _share(power.get(id), draws)) for id, held in null.items()
    }


def _share(held: int | None, draws: int) -> float | None:
    return None if held is None else held / draws


def _count_held(verdicts_of: _VerdictsOf, draws: int, seed: tuple[int, int]) -> dict[str, int]:
    """How many draws are called *holds*, by claim."""
    held: dict[str, int] = {}
    for i in range(draws):
        for id, verdict in verdicts_of(np.random.default_rng([*seed, i])).items():
            held[id] = held.get(id, 0) + (verdict == "holds")
    return held
