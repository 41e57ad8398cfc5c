"""The rule by which tasks are said to stand out, and over which layers they are compared."""

from __future__ import annotations

import numpy as np


def standing_out(
    change: np.ndarray, low: np.ndarray, high: np.ndarray, *, tolerance: float, factor: float
) -> np.ma.MaskedArray:
    """Which tasks changed clearly more than the others.

    The tasks are split in two where the squared deviations of log change from the two groups' means are least
    (Jenks' natural break; changes count as at least the tolerance). Those above stand out if their intervals lie
    above the tolerance and above every interval of the others, and the least of them changed at least ``factor``
    times as much as the most of the others. Otherwise none does: the tasks changed alike, or there are no two groups.
    A comparison between these tasks, therefore; not a test of what a model was tuned on.

    Args:
        change: ``[task]``, such as 1 - CKA; NaN where there is none.
        low, high: ``[task]`` ends of its interval; NaN where there is none.
        tolerance: a change up to this is none.
        factor: see above.

    Returns:
        ``[task]`` booleans, masked where it cannot be told: for a task without a change or without an interval, and
        for all where fewer than two are left to compare.

    Example:
        >>> change = np.array([0.9, 0.1, 0.5, 0.12])
        >>> standing_out(change, change - 0.05, change + 0.05, tolerance=0.01, factor=1.5).tolist()
        [True, False, True, False]
        >>> bool(standing_out(change, change - 0.3, change + 0.3, tolerance=0.01, factor=1.5).any())
        False
        >>> low = np.array([np.nan, 0.05, 0.45, 0.07])  # no interval for the first: left open, not denied
        >>> standing_out(change, low, change + 0.05, tolerance=0.01, factor=1.5).tolist()
        [None, False, True, False]
    """
    change, low, high = (np.asarray(x, dtype=float) for x in (change, low, high))
    known = np.isfinite(change) & np.isfinite(low) & np.isfinite(high)
    found = np.ma.MaskedArray(np.zeros(len(change), dtype=bool), mask=~known)
    usable = np.flatnonzero(known)
    order = usable[np.argsort(-change[usable], kind="stable")]
    if len(order) < 2:
        found.mask = True
        return found
    size = np.maximum(change[order], tolerance)
    logs = np.log(size)
    spread = [len(logs[:k]) * logs[:k].var() + len(logs[k:]) * logs[k:].var() for k in range(1, len(logs))]
    k = 1 + int(np.argmin(spread))
    apart = low[order[:k]].min() > max(tolerance, high[order[k:]].max())
    found[order[:k]] = apart and size[k - 1] >= factor * size[k]
    return found


def common_layers(known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The layers over which tasks are compared, and the tasks that can be.

    Layers change by different amounts, so that means of two tasks over different layers differ where the tasks do
    not: the layers must be the same for every task. They are those at which every task is known. Where these are
    fewer than half of the layers at which any task is, the task that costs the most layers is left out, and so on, as
    long as more than two are left.

    Args:
        known: ``[layer task]`` where the task has a change and an interval.

    Returns:
        ``[layer]`` and ``[task]`` booleans; a task that is known at no layer is never one of them.

    Example:
        >>> known = np.array([[True, True, False], [True, True, True], [True, True, True], [True, True, True]])
        >>> [found.tolist() for found in common_layers(known)]  # the last task has no interval at layer 0
        [[False, True, True, True], [True, True, True]]
        >>> known[1:3, 2] = False  # nor at layers 1 and 2
        >>> [found.tolist() for found in common_layers(known)]
        [[True, True, True, True], [True, True, False]]
    """
    tasks = set(np.flatnonzero(known.any(axis=0)).tolist())

    def layers(of: set[int]) -> np.ndarray:
        return np.asarray(known[:, sorted(of)].all(axis=1)) if of else np.zeros(len(known), dtype=bool)

    def without(task: int) -> tuple[int, int]:
        return int(layers(tasks - {task}).sum()), -int(known[:, task].sum())

    while len(tasks) > 2 and 2 * layers(tasks).sum() < known.any(axis=1).sum():
        tasks.remove(max(sorted(tasks), key=without))
    return layers(tasks), np.isin(np.arange(known.shape[1]), sorted(tasks))
