"""Draws of data in which a claim is false, or true: measured values changed at random.

Data are arrays by name, ``[seed ...]`` each. A draw takes the measured data and a generator and returns new data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mechclust.report.verdicts import Bound

Data = Mapping[str, Any]
D = TypeVar("D")
Draw = Callable[[Data, np.random.Generator], Data]


def replaced(**by: str) -> Draw:
    """In place of each array the values of another one, of seeds drawn with replacement.

    Example:
        >>> replaced(trained="untrained")({"untrained": np.ones(2)}, np.random.default_rng(0))["trained"].tolist()
        [1.0, 1.0]
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        return {**data, **{name: _resampled(data[other], rng) for name, other in by.items()}}

    return draw


def moved_to(**means: float | np.ndarray) -> Draw:
    """The measured spread over seeds about other means (``spread_like``).

    Example:
        >>> moved_to(score=0.5)({"score": np.array([2.0, 2.0])}, np.random.default_rng(0))["score"].tolist()
        [0.5, 0.5]
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        return {**data, **{name: mean + spread_like(data[name], rng) for name, mean in means.items()}}

    return draw


def spread_like(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """``[seed ...]`` normal numbers with mean 0 and the covariance of the values over seeds.

    A claim whose mean is just outside a bound is then called true in 2.5% of draws, also with few seeds; with seeds
    drawn with replacement, it is called true in 5% of draws with 5 seeds, and in 9% with 3.

    Example:
        >>> values = np.arange(10.0)[:, None] + np.zeros(3)
        >>> drawn = spread_like(values, np.random.default_rng(0))
        >>> drawn.shape, bool(np.allclose(drawn, drawn[:, :1]))
        ((10, 3), True)
    """
    rest = np.asarray(values, dtype=float) - np.mean(values, axis=0)
    weights = rng.normal(size=(len(rest), len(rest))) / math.sqrt(max(1, len(rest) - 1))
    return np.tensordot(weights, rest, axes=1)


def at_bound(name: str, bound: Bound) -> Draw:
    """The measured spread over seeds about a mean at the bound, just outside."""
    return moved_to(**{name: bound.value + (-1e-9 if bound.relation.startswith(">") else 1e-9)})


def as_shares(draw: Draw, *names: str) -> Draw:
    """Draws of arrays of shares: what lies beyond 0 or 1 is reflected there.

    Example:
        >>> drawn = as_shares(moved_to(share=1.0), "share")({"share": np.array([0.5, 0.7])}, np.random.default_rng(0))
        >>> bool((drawn["share"] <= 1).all())
        True
    """

    def reflected(data: Data, rng: np.random.Generator) -> Data:
        drawn = draw(data, rng)
        return {**drawn, **{name: 1 - np.abs(1 - drawn[name] % 2) for name in names}}

    return reflected


def exchanged(*pairs: tuple[str, str]) -> Draw:
    """The two arrays of a pair exchanged at random, seed by seed, those of all pairs together.

    Example:
        >>> drawn = exchanged(("a", "b"))({"a": np.zeros(50), "b": np.ones(50)}, np.random.default_rng(0))
        >>> bool((drawn["a"] + drawn["b"] == 1).all()), bool(0 < drawn["a"].mean() < 1)
        (True, True)
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        flip = rng.random(len(data[pairs[0][0]])) < 0.5
        return {**data, **{k: v for pair in pairs for k, v in _swapped(data, pair, flip).items()}}

    return draw


def exchanged_by_column(one: str, other: str) -> Draw:
    """Two arrays ``[seed column]`` exchanged at random, a column in all seeds together: seeds repeat a column.

    Example:
        >>> drawn = exchanged_by_column("a", "b")({"a": np.zeros((3, 50)), "b": np.ones((3, 50))},
        ...                                       np.random.default_rng(0))["a"]
        >>> bool((drawn == drawn[0]).all()), bool(0 < drawn.mean() < 1)
        (True, True)
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        flip = np.broadcast_to(rng.random(data[one].shape[1:]) < 0.5, data[one].shape)
        return {**data, **_swapped(data, (one, other), flip)}

    return draw


def in_random_order(*names: str) -> Draw:
    """Along the last axis in another order for each seed, and along any axes between; the same for all names.

    Example:
        >>> drawn = in_random_order("layers")({"layers": np.arange(4.0)[None]}, np.random.default_rng(0))
        >>> sorted(drawn["layers"][0].tolist())
        [0.0, 1.0, 2.0, 3.0]
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        shape = data[names[0]].shape
        orders = rng.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1)
        return {**data, **{name: np.take_along_axis(data[name], orders, axis=-1) for name in names}}

    return draw


def relabelled(name: str) -> Draw:
    """The values of an array given to other seeds at random: which networks are of which kind."""
    return lambda data, rng: {**data, name: rng.permutation(data[name])}


def random_signs(name: str) -> Draw:
    """Differences with random signs."""
    return lambda data, rng: {**data, name: data[name] * rng.choice([-1.0, 1.0], len(data[name]))}


def random_walk(name: str) -> Draw:
    """Curves ``[seed step]`` whose steps have the measured sizes, each up or down at random."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        curves = data[name]
        moves = np.diff(curves, axis=-1) * rng.choice([-1.0, 1.0], (len(curves), curves.shape[-1] - 1))
        return {**data, name: np.concatenate([curves[:, :1], curves[:, :1] + moves.cumsum(-1)], axis=-1)}

    return draw


def first_from_later(name: str) -> Draw:
    """Of curves ``[seed checkpoint]`` the first value replaced by a later one of the same seed, drawn at random.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> first_from_later("curve")({"curve": np.array([[0.0, 1.0, 1.0]])}, rng)["curve"].tolist()
        [[1.0, 1.0, 1.0]]
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        curves = data[name]
        chosen = curves[np.arange(len(curves)), rng.integers(1, curves.shape[1], len(curves))]
        return {**data, name: np.concatenate([chosen[:, None], curves[:, 1:]], axis=1)}

    return draw


def coins(*names: str, chance: float | Sequence[float]) -> Draw:
    """Zeros and ones in place of each array, with a chance of a one; of several chances one is drawn, all alike.

    Example:
        >>> coins("solved", chance=1)({"solved": np.zeros(3)}, np.random.default_rng(0))["solved"].tolist()
        [1.0, 1.0, 1.0]
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        uniform = {name: rng.random(len(data[name])) for name in names}
        p = rng.choice(chance) if isinstance(chance, Sequence) else chance
        return {**data, **{name: (u < p).astype(float) for name, u in uniform.items()}}

    return draw


def one_column(name: str, by: str) -> Draw:
    """Of ``[seed column]`` one column, drawn at random, replaced by that of another array."""

    def draw(data: Data, rng: np.random.Generator) -> Data:
        new, column = data[name].copy(), int(rng.integers(data[name].shape[-1]))
        new[:, column] = _resampled(data[by][:, column], rng)
        return {**data, name: new}

    return draw


def one_of(*draws: Callable[[D, np.random.Generator], D]) -> Callable[[D, np.random.Generator], D]:
    """One of several draws, at random: the ways in which a claim of several parts is false."""
    return lambda data, rng: draws[int(rng.integers(len(draws)))](data, rng)


def one_false(planted: Draw, false: Mapping[str, Draw]) -> Draw:
    """Data in which a claim of several parts is true, but for one part, drawn at random.

    Args:
        planted: gives all parts' data.
        false: by name, what gives one part's own.

    Example:
        >>> draw = one_false(moved_to(a=1.0, b=1.0), {"a": moved_to(a=0.0), "b": moved_to(b=0.0)})
        >>> drawn = draw({"a": np.zeros(2), "b": np.zeros(2)}, np.random.default_rng(0))
        >>> sorted(float(values.mean()) for values in drawn.values())
        [0.0, 1.0]
    """

    def draw(data: Data, rng: np.random.Generator) -> Data:
        name = [*false][int(rng.integers(len(false)))]
        return {**planted(data, rng), name: false[name](data, rng)[name]}

    return draw


def _resampled(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    drawn: np.ndarray = values[rng.integers(len(values), size=len(values))]
    return drawn


def _swapped(data: Data, pair: tuple[str, str], flip: np.ndarray) -> dict[str, np.ndarray]:
    a, b = (data[name] for name in pair)
    where = flip.reshape(flip.shape + (1,) * (a.ndim - flip.ndim))
    return {pair[0]: np.where(where, b, a), pair[1]: np.where(where, a, b)}
