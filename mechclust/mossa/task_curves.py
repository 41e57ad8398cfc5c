"""Similarity with single-task controls by task and layer, and what resampling tasks says of a number made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from tasks import InputError

Which = Literal["base", "tuned", "ceiling", "null"]
_LEVEL = (0.025, 0.975)
MOST_UNDEFINED = 0.05  # share of draws: an interval is not given where more of them are undefined


@dataclass(frozen=True, repr=False)
class TaskCurves:
    """How similar models are to each task's control, by task and layer, such as by debiased CKA.

    Medians and quartiles are over the tasks where the number is defined. The arrays ``base``, ``tuned``, ``ceiling``,
    ``null`` and those of ``covariates`` may have axes in front, as ``resampled`` gives them; what is computed from
    them has these axes too.

    Attributes:
        tasks: their names.
        layers: their labels, from the first block to the last.
        base: ``[task layer]`` of the untuned model; NaN where undefined.
        tuned: of the model that was tuned on many tasks.
        ceiling: of another control of the same task; None where no task has two.
        null: of the tuned model with the controls of other tasks, or None.
        held_out: ``[task]`` not among the tasks that ``tuned`` was tuned on.
        clusters: the cluster of each task, or None.
        dims: ``"base"`` and ``"tuned"`` to ``[layer]``, dimensions for 99% of the variance over the prompts of all
            tasks that are not held out; may be empty.
        covariates: name to ``[task]``, such as readability of the prompts; NaN where not known.

    Example:
        >>> base = np.array([[1.0, 0.6], [1.0, 0.2], [1.0, 0.1]])
        >>> curves = TaskCurves(
        ...     tasks=("copa", "piqa", "rte"), layers=("1", "2"), base=base, tuned=np.full((3, 2), 0.9), ceiling=None,
        ...     null=None, held_out=np.array([False, False, True]), clusters=("commonsense", "commonsense", "nli"),
        ... )
        >>> curves.seen.median("base").tolist(), curves.seen.gap.round(2).tolist()
        ([1.0, 0.4], [-0.1, 0.5])
    """

    tasks: tuple[str, ...]
    layers: tuple[str, ...]
    base: np.ndarray
    tuned: np.ndarray
    ceiling: np.ndarray | None
    null: np.ndarray | None
    held_out: np.ndarray
    clusters: tuple[str | None, ...]
    dims: Mapping[str, np.ndarray] = field(default_factory=dict)
    covariates: Mapping[str, np.ndarray] = field(default_factory=dict)
    _kept: dict[tuple[str, float], np.ndarray] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        n, shape = len(self.tasks), (len(self.tasks), len(self.layers))
        for name in ("base", "tuned", "ceiling", "null"):
            values = getattr(self, name)
            if values is not None and np.shape(values)[-2:] != shape:
                raise InputError(f"{name} has the shape {np.shape(values)}; expected {shape}, tasks by layers")
        of_tasks: dict[str, Any] = {"held_out": self.held_out, "clusters": self.clusters, **self.covariates}
        for name, values in of_tasks.items():
            if np.shape(values)[-1:] != (n,):
                raise InputError(f"{name} has the shape {np.shape(values)}; expected one for each of {n} tasks")
        for name, values in self.dims.items():
            if np.shape(values) != shape[1:]:
                raise InputError(f"dims of {name} have the shape {np.shape(values)}; expected one for each layer")

    def __repr__(self) -> str:
        return f"TaskCurves({len(self.tasks)} tasks, {self.n_layers} layers)"

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def few(self) -> bool:
        """Whether the seen or the held-out tasks, where there are any, are fewer than ``LEAST_TASKS``."""
        unseen = int(self.held_out.sum())
        return any(0 < count < LEAST_TASKS for count in (unseen, len(self.tasks) - unseen)) or not self.tasks

    @property
    def upper(self) -> slice:
        """The upper half of the layers."""
        return slice(self.n_layers // 2, None)

    @cached_property
    def seen(self) -> TaskCurves:
        """The tasks that ``tuned`` was tuned on."""
        return replace(self.select(~self.held_out), dims=self.dims)

    @cached_property
    def unseen(self) -> TaskCurves:
        """The held-out tasks; without dimensions, which are the other tasks'."""
        return self.select(self.held_out)

    @cached_property
    def with_ceiling(self) -> TaskCurves:
        """The tasks that have a ceiling: what is said of it depends on these alone."""
        known = np.zeros(len(self.tasks), dtype=bool) if self.ceiling is None else ~np.isnan(self.ceiling).all(axis=-1)
        return replace(self.select(known), dims=self.dims)

    def select(self, tasks: np.ndarray | Sequence[str]) -> TaskCurves:
        """Some of the tasks, by names or by a mask; without dimensions, which are of all tasks together.

        Raises:
            InputError: naming a task that is not there.
        """
        if isinstance(tasks, np.ndarray) and tasks.dtype == bool:
            places = np.flatnonzero(tasks)
        else:
            if missing := [name for name in tasks if name not in self.tasks]:
                raise InputError(f"no task {missing[0]!r}; there are {', '.join(self.tasks)}")
            places = np.array([self.tasks.index(str(name)) for name in tasks], dtype=int)
        return self._take(
            lambda values, axis: np.take(values, places, axis=axis),
            tasks=tuple(self.tasks[i] for i in places),
            held_out=self.held_out[places],
            clusters=tuple(self.clusters[i] for i in places),
            dims={},
        )

    def resampled(self, draws: int, seed: int = 0) -> TaskCurves:
        """Tasks drawn with replacement, seen ones among seen ones and held-out ones among held-out ones.

        Returns:
            Curves with an axis for the draws in front of every array. Names and clusters stay those of the places.
        """
        rng, places = np.random.default_rng(seed), np.zeros((draws, len(self.tasks)), dtype=int)
        for kind in (False, True):
            own = np.flatnonzero(self.held_out == kind)
            if len(own):
                places[:, own] = own[rng.integers(len(own), size=(draws, len(own)))]
        return self._take(lambda values, axis: values[places])

    def _take(self, chosen: Callable[[np.ndarray, int], np.ndarray], **others: Any) -> TaskCurves:
        return replace(
            self,
            base=chosen(self.base, -2),
            tuned=chosen(self.tuned, -2),
            ceiling=None if self.ceiling is None else chosen(self.ceiling, -2),
            null=None if self.null is None else chosen(self.null, -2),
            covariates={name: chosen(np.asarray(values, dtype=float), -1) for name, values in self.covariates.items()},
            **others,
        )

    def values(self, which: Which) -> np.ndarray:
        """``[task layer]`` of one of the curves.

        Raises:
            InputError: where these curves were not measured.
        """
        found: np.ndarray | None = getattr(self, which)
        if found is None:
            raise InputError(f"the curves have no {which}; measure it, or look at base and tuned")
        return found

    def median(self, which: Which) -> np.ndarray:
        """``[layer]`` over tasks; NaN at a layer where no task has a number."""
        return self._over_tasks(which, 0.5)

    def quartiles(self, which: Which) -> tuple[np.ndarray, np.ndarray]:
        """``[layer]`` first and third quartile over tasks."""
        return self._over_tasks(which, 0.25), self._over_tasks(which, 0.75)

    def _over_tasks(self, which: Which, share: float) -> np.ndarray:
        key = (which, share)
        if key not in self._kept:
            self._kept[key] = over_tasks(self.values(which), share)
        return self._kept[key].copy()

    def spread(self, which: Which) -> np.ndarray:
        """``[layer]`` interquartile range over tasks."""
        low, high = self.quartiles(which)
        return high - low

    @property
    def gap(self) -> np.ndarray:
        """``[layer]`` tuned - base, of the medians over tasks."""
        return self.median("tuned") - self.median("base")

    @property
    def undefined_layers(self) -> tuple[str, ...]:
        """Labels of the layers where no task has a number for base or for tuned."""
        return tuple(layer for layer, gap in zip(self.layers, self.gap, strict=True) if np.isnan(gap))

    @property
    def gain(self) -> np.ndarray:
        """``[task]`` tuned - base, mean over the upper half."""
        return defined_mean((self.tuned - self.base)[..., self.upper])


def over_tasks(values: np.ndarray, share: float) -> np.ndarray:
    """A quantile over the tasks of ``[... task layer]``, of the numbers that are defined; NaN where none is.

    Example:
        >>> over_tasks(np.array([[1.0, np.nan], [2.0, np.nan], [np.nan, np.nan]]), 0.5).tolist()
        [1.5, nan]
    """
    if not values.shape[-2]:
        return np.full((*values.shape[:-2], values.shape[-1]), np.nan)
    if not np.isnan(values).any():
        return np.median(values, axis=-2) if share == 0.5 else np.quantile(values, share, axis=-2)
    ordered = np.sort(values, axis=-2)  # NaN last
    last = np.maximum((~np.isnan(values)).sum(axis=-2, keepdims=True) - 1, 0)
    below = np.floor(share * last).astype(int)
    low, high = (np.take_along_axis(ordered, np.minimum(i, last), axis=-2) for i in (below, below + 1))
    return (low + (share * last - below) * (high - low)).squeeze(-2)


def defined_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis of the numbers that are defined; NaN where none is.

    Example:
        >>> defined_mean(np.array([[1.0, 3.0], [np.nan, 2.0], [np.nan, np.nan]])).tolist()
        [2.0, 2.0, nan]
    """
    known = ~np.isnan(values)
    if known.all() and values.shape[-1]:
        return values.mean(axis=-1)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


Statistic = Callable[[TaskCurves], Any]
LEAST_TASKS = 6
"""From which on there are intervals over tasks: a median of fewer has none of 95% that asks nothing of the data, and
resampling covers too little (two tasks: 50%, three: 75%)."""


def bootstrap(
    curves: TaskCurves, statistic: Statistic, draws: int = 1000, seed: int = 0
) -> tuple[Any, tuple[Any, Any]]:
    """A statistic of the curves, and its 95% bootstrap interval over tasks (percentiles).

    The interval says how much depends on which tasks were measured. It knows nothing of the tuning's own chance (seeds,
    order of the data), nor that tasks of one cluster are alike. As many seen and held-out tasks are drawn as there are.

    Args:
        curves: to resample.
        statistic: of curves, such as ``last_gap``, or ``lambda c: c.median("tuned")`` with a number for each layer.
            It is given all draws at once, as axes in front.
        draws: how many.
        seed: for the draws.

    Returns:
        The statistic, and the ends of its interval: numbers, or arrays where the statistic is an array. NaN for
        fewer than ``LEAST_TASKS`` seen or held-out tasks, where there are any, and where the statistic is undefined in
        more than 5% of the draws.

    Example:
        >>> values = np.linspace(0.1, 0.9, 7)[:, None]
        >>> curves = TaskCurves(tuple("abcdefg"), ("1",), values, values, None, None, np.zeros(7, bool), (None,) * 7)
        >>> value, (low, high) = bootstrap(curves, lambda c: c.median("base")[..., 0])
        >>> float(value), float(low) < 0.5 < float(high)
        (0.5, True)
    """
    value = np.asarray(statistic(curves), dtype=float)
    if curves.few:
        ends = (np.full(value.shape, np.nan),) * 2
    else:
        ends = percentiles(np.asarray(statistic(curves.resampled(draws, seed)), dtype=float))
    if value.ndim:
        return value, ends
    return float(value), (float(ends[0]), float(ends[1]))


def percentiles(drawn: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The central 95% of the first axis; NaN where more than 5% of it is.

    Example:
        >>> low, high = percentiles(np.arange(1001.0))
        >>> float(low), float(high)
        (25.0, 975.0)
    """
    values = np.asarray(drawn, dtype=float)
    flat = values.reshape(len(values), -1)
    missing = np.isnan(flat).mean(axis=0) > MOST_UNDEFINED
    columns = flat.T[:, :, None]  # [place draw 1]
    low, high = (np.where(missing, np.nan, over_tasks(columns, share)[:, 0]) for share in _LEVEL)
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])
