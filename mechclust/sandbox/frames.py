"""Choose the epochs that a sandbox keeps: more of them during large changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from tasks import InputError

_UNIFORM = 0.35  # share of the frames spread evenly, so that quiet stretches play on too
_BEFORE = 2  # epochs kept before an event
_AFTER = 5  # epochs kept after an event


def choose_frames(
    epochs: Sequence[int], change: ArrayLike, max_frames: int, *, around: Sequence[int] = ()
) -> list[int]:
    """Pick epochs to keep: the first, the last, those around events, and more of them during large changes.

    The rest divides a path into equal parts whose length from one epoch to the next is a mixture of its
    share of ``change`` and an even share.

    Args:
        epochs: ``[n]`` the available epochs, in order.
        change: ``[n - 1]`` the size of the change from each to the next, in any unit. NaN and infinity count as 0.
        max_frames: how many to keep at most.
        around: epochs of events, such as spikes: each is kept with a few before and after it.

    Returns:
        Places in ``epochs``, in order: ``min(n, max_frames)`` of them.

    Raises:
        InputError: for fewer than two epochs or frames.

    Example:
        >>> choose_frames(range(100), [0.0] * 50 + [1.0] * 10 + [0.0] * 39, 12)
        [0, 26, 51, 52, 53, 55, 56, 57, 59, 60, 74, 99]
    """
    n = len(epochs)
    if n < 2:
        raise InputError(f"there is {n} epoch to show; a sandbox needs at least 2: keep more snapshots in training")
    if max_frames < 2:
        raise InputError(f"max_frames is {max_frames}; expected at least 2, the first and the last")
    lengths = np.asarray(change, dtype=np.float64)
    if lengths.shape != (n - 1,):
        raise InputError(f"change has shape {lengths.shape} for {n} epochs; expected one number from each to the next")
    if n <= max_frames:
        return list(range(n))
    kept = _events(np.asarray(epochs), around, max_frames)
    path = np.concatenate([[0.0], np.cumsum(_mixed(lengths))])
    # Equal parts that fall on one epoch, or on one kept already, are lost: take the most parts that fit.
    low = 0
    high = 8 * n
    while high - low > 1:
        middle = (low + high) // 2
        if len(kept | _parts(path, middle)) <= max_frames:
            low = middle
        else:
            high = middle
    kept |= _parts(path, low)
    for place in np.argsort(-np.diff(path, prepend=0.0), kind="stable").tolist():
        if len(kept) == max_frames:
            break
        kept.add(place)
    return sorted(kept)


def frame_change_shares(change: ArrayLike) -> Float[np.ndarray, "n"]:
    """Return each change's share of the total, or zeros without change. NaN and infinity count as 0."""
    values = np.abs(np.nan_to_num(np.asarray(change, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0))
    total = values.sum()
    return values / total if total > 0 else np.zeros_like(values)


def _mixed(lengths: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    even = np.full(len(lengths), 1 / len(lengths))
    share = frame_change_shares(lengths)
    return even if not share.any() else _UNIFORM * even + (1 - _UNIFORM) * share


def _parts(path: Float[np.ndarray, "n"], parts: int) -> set[int]:
    """Return the places at which equal parts of the path end."""
    ends = np.linspace(0.0, path[-1], parts + 1)[1:-1] if parts > 1 else np.zeros(0)
    return set(np.clip(np.searchsorted(path, ends), 0, len(path) - 1).tolist())


def _events(epochs: Int[np.ndarray, "epoch"], around: Sequence[int], max_frames: int) -> set[int]:
    """Return the first place, the last, and those around events, nearest first until ``max_frames`` are kept."""
    kept = {0, len(epochs) - 1}
    places = [int(np.abs(epochs - event).argmin()) for event in around]
    near = sorted(range(-_BEFORE, _AFTER + 1), key=abs)
    for offset in near:
        for place in places:
            if len(kept) < max_frames and 0 <= place + offset < len(epochs):
                kept.add(place + offset)
    return kept
