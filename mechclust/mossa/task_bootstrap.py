"""Intervals over tasks of statistics of curves, by resampling the tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from mechclust.mossa.nan_statistics import nan_quantile_over_tasks
from mechclust.mossa.task_curves import TaskCurves

Statistic = Callable[[TaskCurves], Any]
_LEVEL = (0.025, 0.975)
MOST_UNDEFINED = 0.05  # share of draws: an interval is not given where more of them are undefined


def task_bootstrap_interval(
    curves: TaskCurves, statistic: Statistic, draws: int = 1000, seed: int = 0
) -> tuple[Any, tuple[Any, Any]]:
    """Return a statistic of the curves with its 95% bootstrap interval over tasks (percentiles).

    The interval shows the dependence on which tasks were measured. It ignores the randomness of tuning (seeds, order of
    the data) and the similarity of tasks in one cluster. As many seen and held-out tasks are drawn as there are.

    Args:
        curves: to resample.
        statistic: of curves, such as ``last_layer_gap``, or ``lambda c: c.median("tuned")`` with a number for each
            layer. It is given all draws at once, as a leading axis.
        draws: how many.
        seed: for the draws.

    Returns:
        The statistic, and the ends of its interval: numbers, or arrays if the statistic is an array. NaN for fewer than
        ``LEAST_TASKS`` seen or held-out tasks (a group without tasks aside), and if the statistic is undefined in more
        than 5% of the draws.

    Example:
        >>> values = np.linspace(0.1, 0.9, 7)[:, None]
        >>> curves = TaskCurves(tuple("abcdefg"), ("1",), values, values, None, None, np.zeros(7, bool), (None,) * 7)
        >>> value, (low, high) = task_bootstrap_interval(curves, lambda c: c.median("base")[..., 0])
        >>> float(value), float(low) < 0.5 < float(high)
        (0.5, True)
    """
    value = np.asarray(statistic(curves), dtype=float)
    if curves.few:
        ends = (np.full(value.shape, np.nan),) * 2
    else:
        ends = task_bootstrap_ends(statistic(curves.resampled(draws, seed)))
    if value.ndim:
        return value, ends
    return float(value), (float(ends[0]), float(ends[1]))


def task_bootstrap_ends(drawn: ArrayLike) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Return the ends of the central 95% of the first axis, or NaN where more than 5% of it is NaN.

    Example:
        >>> low, high = task_bootstrap_ends(np.arange(1001.0))
        >>> float(low), float(high)
        (25.0, 975.0)
    """
    values = np.asarray(drawn, dtype=float)
    missing = np.isnan(values).mean(axis=0) > MOST_UNDEFINED
    by_draw = values.reshape(len(values), -1)
    low, high = (nan_quantile_over_tasks(by_draw, share).reshape(missing.shape) for share in _LEVEL)
    return np.where(missing, np.nan, low), np.where(missing, np.nan, high)
