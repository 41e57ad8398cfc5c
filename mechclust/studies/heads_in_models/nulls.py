"""Null draws: measured values changed so that a claim about them is false. And planted ones, in which it is true.

Data are arrays by name, one value per seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Data = Mapping[str, np.ndarray]
Draw = Callable[[Data, np.random.Generator], Data]


def coins(p: float, *names: str) -> Draw:
    """Of each of these, 1 with probability ``p`` and else 0."""
    return lambda data, rng: {**data, **{name: (rng.random(len(data[name])) < p) * 1.0 for name in names}}


def replaced(by: Mapping[str, str]) -> Draw:
    """The seeds' values of something else in the place of these, drawn with replacement."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        return {**data, **{name: rng.choice(data[other], len(data[other])) for name, other in by.items()}}

    return draw


def exchanged(pairs: Mapping[str, str]) -> Draw:
    """The two values of every pair exchanged at random, seed by seed, those of all pairs together."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        new = dict(data)
        flip = rng.random(len(data[next(iter(pairs))])) < 0.5
        for one, other in pairs.items():
            new[one], new[other] = (np.where(flip, data[a], data[b]) for a, b in ((other, one), (one, other)))
        return new

    return draw


def moved_to(mean: float, *names: str) -> Draw:
    """The measured spread over seeds about another mean, drawn with replacement."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        spreads = {name: data[name] - data[name].mean() for name in names}
        return {**data, **{name: mean + rng.choice(spread, len(spread)) for name, spread in spreads.items()}}

    return draw
