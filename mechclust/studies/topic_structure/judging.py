"""One claim of the topic-structure study as one function of data, measured or drawn: its severity and power."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from mechclust.report.claims import Claim, claim
from mechclust.report.severity import severity_of
from mechclust.report.verdicts import Bound

Data: TypeAlias = Mapping[str, np.ndarray]
Draw: TypeAlias = Callable[[Data, np.random.Generator], Data]
Parts: TypeAlias = Sequence[tuple[str, Sequence[float], Bound]]


@dataclass(frozen=True)
class Test:
    """A claim before any number.

    Attributes:
        id: of the claim.
        statement: what is claimed.
        source: where it comes from.
        parts: the values per seed of some data, each with its bound; the first is the main one.
        null: draws data in which the claim is false.
        what: what these are.
        planted: draws data in which it is true, or ``None``.
        planted_what: what those are.
        paper: the source's own value.
        chance: the value by chance.
    """

    id: str
    statement: str
    source: str
    parts: Callable[[Data], Parts]
    null: Draw
    what: str
    planted: Draw | None = None
    planted_what: str = ""
    paper: float | None = None
    chance: str | None = None

    def on(self, data: Data, **more: object) -> Claim:
        """The claim on some data, without its severity."""
        parts = self.parts(data)
        bounds = parts[0][2] if len(parts) == 1 and not parts[0][0] else parts
        return claim(
            self.id,
            self.statement,
            self.source,
            parts[0][1],
            bounds,
            paper=self.paper,
            chance=self.chance,
            **more,  # type: ignore[arg-type]
        )

    def judge(self, data: Data, *, tested: bool = True, why_not: str = "", note: str = "") -> Claim:
        """The claim on measured data, with its severity where it is tested."""
        if not tested or not all(len(values) for _, values, _ in self.parts(data)):
            return self.on(data, tested=tested, why_not=why_not, note=note)
        power = f"; power: {self.planted_what}" if self.planted else ""
        planted = self.planted
        severity = severity_of(
            lambda rng: self.on(self.null(data, rng)).verdict,
            self.what + power,
            planted=None if planted is None else lambda rng: self.on(planted(data, rng)).verdict,
        )
        return self.on(data, severity=severity, note=note)


# ---- ways to draw data ----


def shuffled(name: str) -> Draw:
    """Along the last axis, in another order for each seed (and whatever else comes before it)."""
    return lambda data, rng: {**data, name: rng.permuted(data[name], axis=-1)}


def replaced(name: str, by: str) -> Draw:
    """Values of something else in the place of these, of seeds drawn with replacement."""
    return lambda data, rng: {**data, name: data[by][rng.integers(len(data[by]), size=len(data[by]))]}


def exchanged(one: str, other: str) -> Draw:
    """Both exchanged at random, value by value."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        a, b = data[one], data[other]
        flip = rng.random(a.shape) < 0.5
        return {**data, one: np.where(flip, b, a), other: np.where(flip, a, b)}

    return draw


def moved(name: str, means: float | np.ndarray) -> Draw:
    """The measured spread over seeds about other means, seeds drawn with replacement."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        spread = data[name] - data[name].mean(axis=0)
        return {**data, name: means + spread[rng.integers(len(spread), size=len(spread))]}

    return draw


def at_bound(name: str, bound: Bound) -> Draw:
    """The measured spread over seeds about a mean just outside the bound."""
    return moved(name, bound.value + (-1e-9 if bound.relation.startswith(">") else 1e-9))
