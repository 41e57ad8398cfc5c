"""Reading layers off two curves: which are shared, in transition, or refine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mechclust.mossa.task_curves import LEAST_TASKS, TaskCurves, percentiles
from mechclust.report.text import ranges
from tasks import InputError

_WIDE, _NARROW, _FULL = 0.10, 0.02, 0.95
MARGIN = 0.02
"""How far tuned has to be above base where layers are no longer shared."""
LEAST_FOR_GROUPS = 4
"""Tasks from which on layer groups are named: they are read from medians over tasks and their spread."""


@dataclass(frozen=True)
class LayerGroups:
    """Layers, counted from 1, of each group; ``transition`` may be empty.

    Attributes:
        shared: where tuning did not bring the model nearer to its controls.
        transition: where it does. The paper reads it as where representations of tasks are formed, which needs
            controls that learnt their tasks, and a null.
        refinement: the rest.
    """

    shared: range
    transition: range
    refinement: range

    def __str__(self) -> str:
        """
        Example:
            >>> str(LayerGroups(range(1, 10), range(10, 16), range(16, 33)))
            'shared 1-9, transition 10-15, refinement 16-32'
        """
        parts = []
        for name, layers in (("shared", self.shared), ("transition", self.transition), ("refinement", self.refinement)):
            parts.append(f"{name} {layers[0]}-{layers[-1]}" if layers else f"no {name}")
        return ", ".join(parts)


@dataclass(frozen=True, repr=False)
class LayerGroupsInterval:
    """Layer groups, and how much they depend on which tasks were measured.

    Attributes:
        groups: of all tasks.
        shared_end: 95% interval of the last shared layer; 0: none is shared.
        transition_end: of the last layer of the transition, over the draws that have one; None where none has.
        no_transition: share of draws without a transition.
        draws: how often tasks were drawn anew; 0: there were too few.
        notes: what a reader must know.
        farther: layers where tuned is less similar to the controls than base, see ``farther_layers``.
        tuned_alone: those of them where the controls are like base, so that tuned alone changed.
    """

    groups: LayerGroups
    shared_end: tuple[int, int] | None
    transition_end: tuple[int, int] | None
    no_transition: float
    draws: int
    notes: tuple[str, ...] = ()
    farther: tuple[int, ...] = ()
    tuned_alone: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"LayerGroupsInterval({self.groups}; {self.draws} draws)"

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, labels: Sequence[str] | None = None, rest: str = "refinement") -> str:
        """The groups, with 95% intervals of their ends.

        Args:
            labels: of the layers; by default their numbers.
            rest: name of the layers above the transition.

        Example:
            >>> groups = LayerGroups(range(1, 10), range(10, 10), range(10, 33))
            >>> LayerGroupsInterval(groups, (8, 9), None, 1.0, 1000).in_words()
            'shared 1-9 (95% over tasks: end at 8 to 9), no transition, refinement 10-32'
        """
        parts = []
        for row in self.rows(labels, rest):
            name, first, last = row["group"], row["first_layer"], row["last_layer"]
            said = f"no {name}" if first is None else f"{name} {first}" + (f"-{last}" if last != first else "")
            notes = []
            if row["end_low"] is not None and (first is not None or name == "shared"):
                low, high = row["end_low"], row["end_high"]
                ends = f"{low}" if low == high else f"{low} to {high}"
                notes.append(f"{'95% over tasks: ' * (name == 'shared')}end at {ends}")
            if row["tuned_alone"]:
                notes.append(f"tuned alone changed at {row['tuned_alone']}")
            if name == "transition" and self.draws:
                if first is not None and self.no_transition > 0:
                    notes.append(f"none in {self.no_transition:.0%} of draws")
                elif first is None and self.no_transition < 1:
                    notes.append(f"there is one in {1 - self.no_transition:.0%} of draws")
            parts.append(said + (f" ({'; '.join(notes)})" if notes else ""))
        return ", ".join(parts)

    def rows(self, labels: Sequence[str] | None = None, rest: str = "refinement") -> list[dict[str, Any]]:
        """One for each group, for tables.

        Args:
            labels: of the layers; by default their numbers.
            rest: name of the layers above the transition.

        Returns:
            ``group``; ``first_layer`` and ``last_layer``, None where no layer is in it; ``end_low`` and ``end_high``,
            95% of its last layer over tasks drawn anew (0: before the first layer), None where there is none;
            ``tuned_alone``, those of its layers where tuned alone changed, such as ``"2-4"``.
        """

        def called(layer: int | None) -> Any:
            return layer if layer is None or labels is None else labels[layer - 1] if layer else "0"

        rows = []
        for name, ends in (("shared", self.shared_end), ("transition", self.transition_end), ("refinement", None)):
            layers = getattr(self.groups, name)
            first, last = (layers[0], layers[-1]) if layers else (None, None)
            low, high = ends or (None, None)
            places = {"first_layer": first, "last_layer": last, "end_low": low, "end_high": high}
            group = rest if name == "refinement" else name
            alone = ranges(int(called(layer)) for layer in self.tuned_alone if layer in layers)
            rows.append({"group": group, **{k: called(layer) for k, layer in places.items()}, "tuned_alone": alone})
        return rows


def layer_groups(
    base: ArrayLike,
    tuned: ArrayLike,
    spread: ArrayLike,
    n_dims: ArrayLike | None = None,
    *,
    margin: float = MARGIN,
) -> LayerGroups:
    """Shared, transition and refinement layers, by a fixed rule.

    Shared: the layers before ``crossover(base, tuned, margin)``. Transition: from there to the first layer with 95%
    of the most dimensions; without dimensions, to the last layer before ``spread`` leaves .02 of its minimum. There
    is none where the spread never falls to .10 after the shared layers. Refinement: the rest.

    The rule is ours. On the paper's curves it gives the paper's groups, 1-9, 10-15 and 16-32 for seen tasks, and no
    transition for unseen ones. The first boundary depends on a difference of .020 at layer 9 there: with an error of
    .005 in every point, as of reading a figure, it is 8 in about half of the draws.

    Source: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008), figures 2 and 7.

    Args:
        base: median over tasks of CKA with the controls, by layer from 1; of the untuned model.
        tuned: of the tuned model. NaN where not known.
        spread: interquartile range over tasks of ``tuned``.
        n_dims: dimensions for 99% of the variance, of the tuned model; NaN where not known.
        margin: how far ``tuned`` has to be above ``base``.

    Example:
        >>> base, tuned = [1.0, 0.9, 0.7, 0.5, 0.4], [1.0, 0.9, 0.9, 0.9, 0.9]
        >>> print(layer_groups(base, tuned, spread=[0, 0.2, 0.1, 0.04, 0.1]))
        shared 1-2, transition 3-4, refinement 5-5
    """
    given = (base, tuned, spread, *(() if n_dims is None else (n_dims,)))
    curves = [np.asarray(values, dtype=float) for values in given]
    if len({len(values) for values in curves}) != 1 or not len(curves[0]):
        raise InputError(f"the curves have {', '.join(str(len(v)) for v in curves)} layers; expected one number each")
    shared, end = boundaries(*curves, margin=margin)
    return _groups(int(shared), int(end), len(curves[0]))


def _groups(shared: int, end: int, last: int) -> LayerGroups:
    return LayerGroups(range(1, shared + 1), range(shared + 1, end + 1), range(end + 1, last + 1))


def boundaries(
    base: np.ndarray,
    tuned: np.ndarray,
    spread: np.ndarray,
    n_dims: np.ndarray | None = None,
    *,
    margin: float = MARGIN,
) -> tuple[np.ndarray, np.ndarray]:
    """The last shared layer and the last layer of the transition, of many curves at once (see ``layer_groups``).

    Args:
        base, tuned, spread: ``[... layer]``.
        n_dims: ``[layer]`` or ``[... layer]``.

    Returns:
        Two arrays of layers, counted from 1; the same layer where there is no transition.

    Example:
        >>> base, tuned = np.array([[1.0, 0.9, 0.7], [1.0, 1.0, 1.0]]), np.full((2, 3), 0.9)
        >>> [found.tolist() for found in boundaries(base, tuned, np.full((2, 3), 0.05))]
        [[2, 3], [3, 3]]
    """
    last = base.shape[-1]
    shared = np.asarray(crossovers(base, tuned, margin)) - 1
    place = np.arange(last)
    after = place >= shared[..., None]
    narrow = np.where(after & ~np.isnan(spread), spread, np.inf)
    if n_dims is not None and not np.isnan(n_dims).all():
        full = after & (n_dims >= _FULL * np.nanmax(n_dims, axis=-1, keepdims=True))
        end = np.where(full.any(axis=-1), np.argmax(full, axis=-1) + 1, shared + 1)
    else:
        least = np.argmin(narrow, axis=-1)[..., None]
        minimum = np.take_along_axis(narrow, least, axis=-1)
        left = (place > least) & np.isfinite(narrow) & (narrow > minimum + _NARROW)
        end = np.where(left.any(axis=-1), np.argmax(left, axis=-1), last)
    found = narrow.min(axis=-1) <= _WIDE
    return shared, np.where(found, end, shared)


def crossover(base: ArrayLike, tuned: ArrayLike, margin: float = 0.0, *, exceptions: int = 1) -> int:
    """The first layer from which ``tuned - base`` stays above ``margin``, up to a number of exceptions.

    Layers count from 1; one more than there are where it never does. A layer where either is NaN is not above.

    Example:
        >>> crossover([1.0, 0.9, 0.8, 0.8, 0.7], [0.9, 0.8, 0.9, 0.8, 0.9])
        3
    """
    found = crossovers(np.asarray(base, dtype=float), np.asarray(tuned, dtype=float), margin, exceptions=exceptions)
    return int(found)


def crossovers(base: np.ndarray, tuned: np.ndarray, margin: float = 0.0, *, exceptions: int = 1) -> np.ndarray:
    """``crossover`` of many curves at once, ``[... layer]``.

    Example:
        >>> crossovers(np.array([[0.5, 0.5], [0.5, 0.9]]), np.array([0.4, 0.6])).tolist()
        [2, 3]
    """
    above = tuned - base > margin
    ahead = np.flip(np.cumsum(np.flip(~above, axis=-1), axis=-1), axis=-1)  # layers not above, from each on
    starts = above & (ahead <= exceptions)
    return np.where(starts.any(axis=-1), np.argmax(starts, axis=-1) + 1, above.shape[-1] + 1)


def groups_of(curves: TaskCurves) -> LayerGroups:
    """The layer groups of the curves' tasks, with the dimensions of the tuned model where they are known.

    Example:
        >>> base, tuned = np.array([[1.0, 0.5, 0.4]] * 3), np.array([[1.0, 0.9, 0.9]] * 3)
        >>> seen = np.zeros(3, dtype=bool)
        >>> print(groups_of(TaskCurves(tuple("abc"), tuple("123"), base, tuned, None, None, seen, (None,) * 3)))
        shared 1-1, transition 2-3, no refinement
    """
    shared, end = boundaries_of(curves)
    return _groups(int(shared), int(end), curves.n_layers)


def boundaries_of(curves: TaskCurves) -> tuple[np.ndarray, np.ndarray]:
    """``boundaries`` of the curves, which may have axes in front."""
    return boundaries(curves.median("base"), curves.median("tuned"), curves.spread("tuned"), curves.dims.get("tuned"))


def farther_layers(curves: TaskCurves, draws: int = 1000, seed: int = 0) -> tuple[int, ...]:
    """Return the layers, from 1, where tuned is less similar to the controls than base.

    There the median over tasks is lower by more than ``MARGIN``, and the 95% interval of the difference, by bootstrap
    over tasks where these are enough, lies below 0.

    Example:
        >>> base, tuned = np.array([[1.0, 1.0, 0.9]] * 6), np.array([[1.0, 0.4, 0.9]] * 6)
        >>> seen = np.zeros(6, dtype=bool)
        >>> curves = TaskCurves(tuple("abcdef"), tuple("123"), base, tuned, None, None, seen, (None,) * 6)
        >>> farther_layers(curves)
        (2,)
    """
    farther = curves.gap < -MARGIN
    if not curves.few:
        _, high = percentiles(curves.resampled(draws, seed).gap)
        farther &= high < 0
    return tuple(int(layer) for layer in np.flatnonzero(farther) + 1)


def layer_groups_interval(curves: TaskCurves, draws: int = 1000, seed: int = 0) -> LayerGroupsInterval:
    """The layer groups of the curves' tasks, with 95% intervals of both boundaries by bootstrap over tasks.

    Give ``curves.seen`` or ``curves.unseen``: groups of seen and held-out tasks together mean little.

    Args:
        curves: by task. Dimensions, where there are any, are of all tasks together and the same in every draw.
        draws: how often tasks are drawn anew.
        seed: for the draws.

    Example:
        >>> base, tuned = np.array([[1.0, 0.5, 0.4]] * 6), np.array([[1.0, 0.9, 0.9]] * 6)
        >>> seen = np.zeros(6, dtype=bool)
        >>> curves = TaskCurves(tuple("abcdef"), tuple("123"), base, tuned, None, None, seen, (None,) * 6)
        >>> print(layer_groups_interval(curves))
        shared 1 (95% over tasks: end at 1), transition 2-3 (end at 3), no refinement
    """
    groups = groups_of(curves)
    farther = farther_layers(curves, draws, seed)
    tuned_alone = tuple(layer for layer in farther if curves.median("base")[layer - 1] >= 1 - MARGIN)
    if curves.few:
        many = f"{len(curves.tasks)} task{'s' * (len(curves.tasks) != 1)}"
        why = f"{many}: boundaries have no interval over tasks, which needs {LEAST_TASKS}"
        return LayerGroupsInterval(groups, None, None, float(not groups.transition), 0, (why,), farther, tuned_alone)
    shared, end = boundaries_of(curves.resampled(draws, seed))
    found = end > shared
    notes = [f"intervals are over {len(curves.tasks)} tasks drawn with replacement"]
    if "tuned" in curves.dims:
        notes.append("dimensions, which end the transition, are of all tasks together and the same in every draw")
    if 0 < found.mean() < 1:
        notes.append("the transition's end is over the draws that have one")
    return LayerGroupsInterval(
        groups=groups,
        shared_end=_whole(shared),
        transition_end=_whole(end[found]) if found.any() else None,
        no_transition=float(1 - found.mean()),
        draws=draws,
        notes=tuple(notes),
        farther=farther,
        tuned_alone=tuned_alone,
    )


def _whole(layers: np.ndarray) -> tuple[int, int]:
    low, high = percentiles(layers)
    return math.floor(low), math.ceil(high)
