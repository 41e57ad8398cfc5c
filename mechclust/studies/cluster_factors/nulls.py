"""Null draws: measured values changed so that a claim about them is false. And planted ones, in which it is true.

Data are arrays by name, ``[seed ...]`` each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mechclust.report.verdicts import Bound

Data = Mapping[str, np.ndarray]
Draw = Callable[[Data, np.random.Generator], Data]


def at_bound(name: str, bound: Bound) -> Draw:
    """The measured spread over seeds, moved so that its mean lies at the bound, just outside."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        spread = data[name] - data[name].mean()
        outside = bound.value + (-1e-9 if bound.relation.startswith(">") else 1e-9)
        return {**data, name: outside + rng.choice(spread, len(spread))}

    return draw


def replaced(name: str, by: str) -> Draw:
    """The seeds' values of something else in the place of these, drawn with replacement."""
    return lambda data, rng: {**data, name: rng.choice(data[by], len(data[by]))}


def exchanged(one: str, other: str) -> Draw:
    """Both exchanged at random, seed by seed."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        a, b = data[one], data[other]
        flip = (rng.random(len(a)) < 0.5).reshape(-1, *[1] * (a.ndim - 1))
        return {**data, one: np.where(flip, b, a), other: np.where(flip, a, b)}

    return draw


def in_random_order(*names: str) -> Draw:
    """Along the last axis, in another order for each seed, the same for all of these."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        first = data[names[0]]
        orders = np.stack([rng.permutation(first.shape[-1]) for _ in first])
        return {**data, **{name: np.take_along_axis(data[name], orders, axis=-1) for name in names}}

    return draw


def random_walk(name: str) -> Draw:
    """Curves ``[seed step]`` whose steps have the measured sizes, each up or down at random."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        curves = data[name]
        moves = np.diff(curves, axis=-1) * rng.choice([-1.0, 1.0], (len(curves), curves.shape[-1] - 1))
        return {**data, name: np.concatenate([curves[:, :1], curves[:, :1] + moves.cumsum(-1)], axis=-1)}

    return draw


def one_of(*draws: Draw) -> Draw:
    """One of several ways in which a claim of several parts is false, at random."""
    return lambda data, rng: draws[int(rng.integers(len(draws)))](data, rng)


def one_column(name: str, by: str) -> Draw:
    """Of ``[seed column]`` one column, drawn at random, replaced by that of another array."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        new, column = data[name].copy(), int(rng.integers(data[name].shape[-1]))
        new[:, column] = rng.choice(data[by][:, column], len(new))
        return {**data, name: new}

    return draw


def moved_to(**means: np.ndarray | float) -> Draw:
    """Planted: the measured spread over seeds about other means, drawn with replacement."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        new = dict(data)
        for name, mean in means.items():
            spread = data[name] - data[name].mean(0)
            new[name] = mean + spread[rng.integers(len(spread), size=len(spread))]
        return new

    return draw
