"""Keep similarity with single-task controls by task and layer, and resample the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from mechclust.mossa.nan_statistics import nan_mean, nan_quantile_over_tasks
from tasks import InputError

ByTaskAndLayer: TypeAlias = Float[np.ndarray, "... task layer"]
ByLayer: TypeAlias = Float[np.ndarray, "... layer"]
Numbers: TypeAlias = Float[np.ndarray, "..."] | np.floating[Any]
Which = Literal["base", "tuned", "ceiling", "null"]
CURVE_NAMES: tuple[Which, ...] = ("base", "tuned", "ceiling", "null")
MODELS: tuple[Which, ...] = ("base", "tuned")
LEAST_TASKS = 6
"""Smallest number of tasks with an interval over tasks. For fewer, a median has no distribution-free 95% interval, and
resampling covers too little (two tasks: 50%, three: 75%)."""


@dataclass(frozen=True, repr=False)
class TaskCurves:
    """Similarity of models to each task's control by task and layer, such as debiased CKA.

    Medians and quartiles are over the tasks for which the number is defined. ``base``, ``tuned``, ``ceiling``, ``null``
    and ``covariates`` may have leading axes (see ``resampled``). Results then have these axes too.

    Attributes:
        tasks: their names.
        layers: their labels, from the first block to the last.
        base: of the untuned model. NaN where undefined.
        tuned: of the model that was tuned on many tasks.
        ceiling: of a second control of each task. None if no task has two.
        null: of the tuned model with the controls of other tasks, or None.
        held_out: true for tasks that ``tuned`` was not tuned on.
        clusters: the cluster of each task, or None.
        dims: for ``"base"`` and ``"tuned"``, the dimensions for 99% of the variance over the prompts of all tasks that
            are not held out. May be empty.
        covariates: by name, such as readability of the prompts. NaN where unknown.

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
    base: ByTaskAndLayer
    tuned: ByTaskAndLayer
    ceiling: ByTaskAndLayer | None
    null: ByTaskAndLayer | None
    held_out: Bool[np.ndarray, "task"]
    clusters: tuple[str | None, ...]
    dims: Mapping[str, Shaped[np.ndarray, "layer"]] = field(default_factory=dict)
    covariates: Mapping[str, Shaped[np.ndarray, "... task"]] = field(default_factory=dict)
    _quantiles: dict[tuple[str, float], ByLayer] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        n = len(self.tasks)
        shape = (n, len(self.layers))
        for which in CURVE_NAMES:
            values = getattr(self, which)
            if values is not None and np.shape(values)[-2:] != shape:
                raise InputError(f"{which} has the shape {np.shape(values)}; expected {shape}, tasks by layers")
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
        """The number of layers."""
        return len(self.layers)

    @property
    def few(self) -> bool:
        """Whether there are fewer than ``LEAST_TASKS`` seen or held-out tasks (a group without tasks aside)."""
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
        """The held-out tasks, without dimensions, which belong to the other tasks."""
        return self.select(self.held_out)

    @cached_property
    def with_ceiling(self) -> TaskCurves:
        """The tasks that have a ceiling."""
        known = np.zeros(len(self.tasks), dtype=bool) if self.ceiling is None else ~np.isnan(self.ceiling).all(axis=-1)
        return replace(self.select(known), dims=self.dims)

    def select(self, mask: Bool[np.ndarray, "task"]) -> TaskCurves:
        """Return some of the tasks, without dimensions, which belong to all tasks together."""
        places = np.arange(len(self.tasks))[mask]
        return self._take(
            places,
            tasks=tuple(self.tasks[i] for i in places),
            held_out=self.held_out[places],
            clusters=tuple(self.clusters[i] for i in places),
            dims={},
        )

    def resampled(self, draws: int, seed: int = 0) -> TaskCurves:
        """Draw tasks with replacement, seen ones from the seen and held-out ones from the held-out ones.

        Returns:
            Curves with a leading axis of draws in every array. Names and clusters are not drawn.
        """
        rng = np.random.default_rng(seed)
        places = np.zeros((draws, len(self.tasks)), dtype=int)
        for held_out in (False, True):
            group = np.flatnonzero(self.held_out == held_out)
            if len(group):
                places[:, group] = group[rng.integers(len(group), size=(draws, len(group)))]
        return self._take(places)

    def _take(self, places: Int[np.ndarray, "... place"], **others: Any) -> TaskCurves:
        """Return the curves of the tasks at these places."""
        curves: dict[str, Any] = {}
        for name in CURVE_NAMES:
            curve = getattr(self, name)
            curves[name] = None if curve is None else np.take(curve, places, axis=-2)
        covariates = {name: np.take(values, places, axis=-1) for name, values in self.covariates.items()}
        return replace(self, **curves, covariates=covariates, **others)

    def values(self, which: Which) -> ByTaskAndLayer:
        """Return one of the curves.

        Raises:
            InputError: if it was not measured.
        """
        curve: ByTaskAndLayer | None = getattr(self, which)
        if curve is None:
            raise InputError(f"the curves have no {which}; measure it, or look at base and tuned")
        return curve

    def has(self, which: Which) -> bool:
        """Return whether any task has a number of a curve."""
        curve: ByTaskAndLayer | None = getattr(self, which)
        return curve is not None and bool(np.isfinite(curve).any())

    def median(self, which: Which) -> ByLayer:
        """Return the median over tasks. NaN at a layer if no task has a number there."""
        return self._over_tasks(which, 0.5)

    def quartiles(self, which: Which) -> tuple[ByLayer, ByLayer]:
        """Return the first and third quartile over tasks."""
        return self._over_tasks(which, 0.25), self._over_tasks(which, 0.75)

    def _over_tasks(self, which: Which, share: float) -> ByLayer:
        key = (which, share)
        if key not in self._quantiles:
            self._quantiles[key] = nan_quantile_over_tasks(self.values(which), share)
        return self._quantiles[key].copy()

    def spread(self, which: Which) -> ByLayer:
        """Return the interquartile range over tasks."""
        low, high = self.quartiles(which)
        return high - low

    @property
    def gap(self) -> ByLayer:
        """Tuned - base, of the medians over tasks."""
        return self.median("tuned") - self.median("base")

    @property
    def undefined_layers(self) -> tuple[str, ...]:
        """Labels of the layers at which no task has a number for base or for tuned."""
        return tuple(layer for layer, gap in zip(self.layers, self.gap, strict=True) if np.isnan(gap))

    @property
    def gain(self) -> Float[np.ndarray, "... task"]:
        """Tuned - base, mean over the upper half of the layers."""
        return nan_mean((self.tuned - self.base)[..., self.upper])
