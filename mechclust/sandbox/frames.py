"""Choose the epochs that a sandbox keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from tasks import InputError

_BEFORE = 2  # epochs kept before an event
_AFTER = 5  # epochs kept after an event


def choose_frames(epochs: Sequence[int], max_frames: int, *, around: Sequence[int] = ()) -> list[int]:
    """Pick epochs to keep: the first, the last, those around events, and others evenly spaced.

    Args:
        epochs: ``[n]`` the available epochs, in order.
        max_frames: how many to keep at most.
        around: epochs of events, such as spikes: each is kept with a few before and after it.

    Returns:
        Places in ``epochs``, in order: ``min(n, max_frames)`` of them.

    Raises:
        InputError: for fewer than two epochs or frames.

    Example:
        >>> choose_frames(range(100), 12, around=[50])
        [0, 23, 48, 49, 50, 51, 52, 53, 54, 55, 76, 99]
    """
    n = len(epochs)
    if n < 2:
        raise InputError(f"there is {n} epoch to show; a sandbox needs at least 2: keep more snapshots in training")
    if max_frames < 2:
        raise InputError(f"max_frames is {max_frames}; expected at least 2, the first and the last")
    if n <= max_frames:
        return list(range(n))
    kept = _events(np.asarray(epochs), around, max_frames)
    others = [place for place in range(n) if place not in kept]
    more = max_frames - len(kept)
    return sorted([*kept, *(others[(2 * i + 1) * len(others) // (2 * more)] for i in range(more))])


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
