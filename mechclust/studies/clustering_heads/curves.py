"""Events in a training curve: phases in which the loss falls, spikes, and quiet epochs to compare spikes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from tasks import InputError
from tasks.settings import check_at_least


class Drop(NamedTuple):
    """A phase in which the loss falls fast.

    Attributes:
        start: last epoch at which at most a tenth of the fall has happened.
        end: first epoch at which at least nine tenths have.
        before: level of the loss before it.
        after: level of the loss after it.
    """

    start: int
    end: int
    before: float
    after: float


class Spike(NamedTuple):
    """A sudden rise of the loss.

    Attributes:
        epoch: the first epoch of the spike.
        loss: the loss at that epoch.
        before: median loss of the epochs before it.
        end: first epoch at which the loss is back below the threshold, or the number of epochs if it never is.
    """

    epoch: int
    loss: float
    before: float
    end: int


def first_below(curve: ArrayLike, level: float) -> int | None:
    """Return the first index at which a curve is below ``level``, or ``None``. NaN never is.

    Raises:
        InputError: if ``curve`` has not exactly one axis.

    Example:
        >>> first_below([0.7, 0.2, float("nan"), 0.1], 0.2)
        3
    """
    return _first(_curve("curve", curve) < level)


def first_above(curve: ArrayLike, level: float) -> int | None:
    """Return the first index at which a curve is above ``level``, or ``None``. NaN never is.

    Raises:
        InputError: if ``curve`` has not exactly one axis.

    Example:
        >>> first_above([0.5, 0.98, 0.99], 0.98)
        2
    """
    return _first(_curve("curve", curve) > level)


def loss_drops(loss: ArrayLike, *, window: int = 10, least: float = 0.1) -> list[Drop]:
    """Return the phases in which the loss falls fast, in order.

    The level of the loss is its lowest running median over ``window`` epochs so far. A drop is a stretch that lowers
    the level by at least ``least`` of its starting value. Every ``window`` epochs of it must bring at least half of
    that.

    A slow drift is not a drop. Nor is the recovery from a spike or a jump, since the level never rises. To date drops
    after a jump, cut the curve there. Drops less than about ``window`` apart count as one. Loss that is not finite
    counts as missing. The function is meant for losses whose optimum is about 0, on a linear scale: a fall from 1e-2 to
    1e-4 is not a drop.

    Args:
        loss: training or test loss, a number for each epoch.
        window: epochs over which the loss is smoothed and its fall measured.
        least: share of the starting level that a drop must cover.

    Raises:
        InputError: for ``window`` below 1 or ``least`` outside (0, 1).

    Example:
        >>> loss_drops([0.7] * 40 + [0.4] * 40 + [0.0] * 40)
        [Drop(start=39, end=40, before=0.7, after=0.4), Drop(start=79, end=80, before=0.4, after=0.0)]
    """
    import pandas as pd

    x = _curve("loss", loss)
    check_at_least(window=(window, 1))
    if not 0 < least < 1:
        raise InputError(f"least is {least}; expected a share between 0 and 1, such as 0.1")
    near = pd.Series(np.where(np.isfinite(x), x, np.nan)).rolling(window // 2 * 2 + 1, min_periods=1, center=True)
    level = np.fmin.accumulate(near.median().to_numpy())
    known = np.flatnonzero(~np.isnan(level))
    if len(level) <= window or not len(known):
        return []
    whole = least * level[known[0]]
    drops = []
    for first, last in _stretches(level[:-window] - level[window:] >= whole / 2):
        before = level[first]
        after = level[last + window]
        fall = before - after
        if fall >= whole > 0:
            start = int(np.flatnonzero(level >= before - fall / 10)[-1])
            end = int(np.flatnonzero(level <= after + fall / 10)[0])
            drops.append(Drop(start, end, float(before), float(after)))
    return drops


def below_guessing(loss: ArrayLike, p: int) -> int | None:
    """Return the first index at which a loss is below 1.05 times the loss of guessing among ``p`` answers, or ``None``.

    Before that point, it falls from the random initialisation.

    Example:
        >>> below_guessing([9.0, 0.7, 0.69], 2)
        1
    """
    return first_below(loss, 1.05 * np.log(p))


def drops_after_guessing(loss: ArrayLike, p: int) -> list[Drop]:
    """Return the drops of a loss after it first is as low as guessing, see ``below_guessing``.

    Example:
        >>> drops_after_guessing([9.0] * 20 + [0.69] * 40 + [0.0] * 40, 2)
        [Drop(start=59, end=60, before=0.69, after=0.0)]
    """
    x = _curve("loss", loss)
    start = below_guessing(x, p)
    if start is None:
        return []
    return [drop._replace(start=drop.start + start, end=drop.end + start) for drop in loss_drops(x[start:])]


def loss_spikes(loss: ArrayLike, *, factor: float = 5.0, window: int = 10, floor: float = 1e-3) -> list[Spike]:
    """Return the spikes: the loss exceeds ``floor`` and ``factor`` times the median of the ``window`` epochs before.

    Consecutive epochs are one spike. It lasts until the loss is back below that threshold, taken from the median before
    the spike. Epochs inside a spike, and loss that is not finite, are left out of later medians. The first ``window``
    epochs cannot be spikes. A loss that becomes NaN is not a spike. If it becomes NaN during a spike, it has not
    recovered.

    Args:
        loss: training loss, a number for each epoch.
        factor: how many times the median.
        window: epochs whose median is taken.
        floor: loss below which there are no spikes, in the units of the loss.

    Raises:
        InputError: for ``window`` below 1, ``factor`` not above 1 or a negative ``floor``.

    Example:
        >>> loss_spikes([6e-5] * 20 + [0.11, 0.02] + [6e-5] * 5)
        [Spike(epoch=20, loss=0.11, before=6e-05, end=22)]
    """
    x = _curve("loss", loss)
    check_at_least(window=(window, 1))
    if not factor > 1:
        raise InputError(f"factor is {factor}; expected more than 1, such as 5.0")
    if not floor >= 0:
        raise InputError(f"floor is {floor}; expected at least 0")
    spikes: list[Spike] = []
    quiet: list[float] = []
    epoch = 0
    while epoch < len(x):
        if len(quiet) >= window:
            before = float(np.median(quiet[-window:]))
            threshold = spike_threshold(before, factor=factor, floor=floor)
            if x[epoch] > threshold:
                back = _first(x[epoch:] <= threshold)
                end = len(x) if back is None else epoch + back
                spikes.append(Spike(epoch, float(x[epoch]), before, end))
                epoch = end
                continue
        if np.isfinite(x[epoch]):
            quiet.append(float(x[epoch]))
        epoch += 1
    return spikes


def spikes_after_solving(loss: ArrayLike, accuracy: ArrayLike, level: float) -> list[Spike]:
    """Return loss spikes after the accuracy first exceeded ``level``.

    There are none if it never does.

    Example:
        >>> loss = [0.01] * 20 + [1.0] + [0.01] * 9
        >>> [spike.epoch for spike in spikes_after_solving(loss, [1.0] * 30, 0.98)]
        [20]
        >>> spikes_after_solving(loss, [0.5] * 30, 0.98)
        []
    """
    solved = first_above(accuracy, level)
    if solved is None:
        return []
    return [spike for spike in loss_spikes(loss) if spike.epoch > solved]


def spike_threshold(before: float, *, factor: float = 5.0, floor: float = 1e-3) -> float:
    """Return the loss above which ``loss_spikes`` finds a spike, given a median of ``before``.

    Example:
        >>> spike_threshold(0.01), spike_threshold(1e-5)
        (0.05, 0.001)
    """
    return max(factor * before, floor)


def away_from(spikes: Sequence[Spike], n: int, gap: int) -> Bool[np.ndarray, "epoch"]:
    """Return which of ``n`` epochs lie at least ``gap`` away from every spike, from its first epoch to its end."""
    away = np.ones(n, dtype=bool)
    for spike in spikes:
        away[max(0, spike.epoch - gap + 1) : spike.end + gap] = False
    return away


def _curve(name: str, values: ArrayLike) -> Float[np.ndarray, "epoch"]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1:
        raise InputError(f"{name} has shape {x.shape}; expected one number per epoch")
    return x


def _first(true: Bool[np.ndarray, "epoch"]) -> int | None:
    places = np.flatnonzero(true)
    return int(places[0]) if len(places) else None


def _stretches(true: Bool[np.ndarray, "epoch"]) -> list[tuple[int, int]]:
    """Return the first and last index of every run of ``True``."""
    edges = np.diff(true.astype(np.int8), prepend=0, append=0)
    first = np.flatnonzero(edges > 0)
    last = np.flatnonzero(edges < 0) - 1
    return list(zip(first.tolist(), last.tolist(), strict=True))
