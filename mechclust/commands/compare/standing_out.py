"""Decide which tasks stand out, and over which layers tasks are compared."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int


def standing_out(
    change: Float[np.ndarray, "task"],
    low: Float[np.ndarray, "task"],
    high: Float[np.ndarray, "task"],
    *,
    tolerance: float,
    factor: float,
) -> np.ma.MaskedArray:
    """Find the tasks that changed clearly more than the others.

    The tasks are split in two by least squared deviations of log change from the two groups' means (Jenks' natural
    break). In this, changes count as at least the tolerance. Tasks above the split stand out under two conditions.
    Their intervals lie above the tolerance and above every interval of the others. The least of them changed at least
    ``factor`` times as much as the most of the others. Otherwise none does: the tasks changed alike, or there are no
    two groups. This compares these tasks only. It does not test which data a model was tuned on.

    Args:
        change: such as 1 - CKA, or NaN if undefined.
        low: lower end of its interval, or NaN if there is none.
        high: upper end of its interval.
        tolerance: a change up to this is none.
        factor: least ratio of the changes of the two groups.

    Returns:
        A boolean for each task, masked if it cannot be decided: for a task without a change or without an interval,
        and for all tasks if fewer than two can be compared.

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
    known = np.isfinite(change) & np.isfinite(low) & np.isfinite(high)
    out = np.ma.MaskedArray(np.zeros(len(change), dtype=bool), mask=~known)
    usable = np.flatnonzero(known)
    if len(usable) < 2:
        out.mask = True
        return out
    order = usable[np.argsort(-change[usable], kind="stable")]
    size = np.maximum(change[order], tolerance)
    logs = np.log(size)
    deviations = [k * logs[:k].var() + (len(logs) - k) * logs[k:].var() for k in range(1, len(logs))]
    k = 1 + int(np.argmin(deviations))
    separate = low[order[:k]].min() > max(tolerance, high[order[k:]].max())
    out[order[:k]] = separate and size[k - 1] >= factor * size[k]
    return out


def common_layers(known: Bool[np.ndarray, "layer task"]) -> tuple[Bool[np.ndarray, "layer"], Bool[np.ndarray, "task"]]:
    """Choose the layers over which tasks are compared, and the tasks that can be.

    Layers change by different amounts, so means of two tasks over different layers could differ even if the tasks do
    not. The layers must thus be common to every task. They are the layers at which every task is known. If these are
    fewer than half of the layers at which any task is known, the task that costs the most layers is left out. This
    repeats as long as more than two tasks are left.

    Args:
        known: whether the task has a change and an interval at the layer.

    Returns:
        The layers and the tasks. A task that is known at no layer is never one of them.

    Example:
        >>> known = np.array([[True, True, False], [True, True, True], [True, True, True], [True, True, True]])
        >>> [chosen.tolist() for chosen in common_layers(known)]  # the last task has no interval at layer 0
        [[False, True, True, True], [True, True, True]]
        >>> known[1:3, 2] = False  # nor at layers 1 and 2
        >>> [chosen.tolist() for chosen in common_layers(known)]
        [[True, True, True, True], [True, True, False]]
    """
    tasks = np.flatnonzero(known.any(axis=0))
    while len(tasks) > 2 and 2 * _n_common(known, tasks) < known.any(axis=1).sum():
        layers_left = [(_n_common(known, np.delete(tasks, i)), -known[:, k].sum()) for i, k in enumerate(tasks)]
        tasks = np.delete(tasks, max(range(len(tasks)), key=layers_left.__getitem__))
    layers = np.asarray(known[:, tasks].all(axis=1)) & (len(tasks) > 0)
    return layers, np.isin(np.arange(known.shape[1]), tasks)


def _n_common(known: Bool[np.ndarray, "layer task"], tasks: Int[np.ndarray, "chosen"]) -> int:
    """Count the layers at which all of these tasks are known."""
    return int(known[:, tasks].all(axis=1).sum())
