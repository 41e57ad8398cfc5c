"""Read from two curves which layers are shared, in transition, or refine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int, Shaped

from mechclust.mossa.crossovers import Layers, crossovers
from mechclust.mossa.nan_statistics import nan_mean
from mechclust.mossa.published import GROUPS, N_LAYERS
from mechclust.mossa.task_bootstrap import MOST_UNDEFINED, task_bootstrap_ends
from mechclust.mossa.task_curves import LEAST_TASKS, ByLayer, Numbers, TaskCurves
from mechclust.report.text import counted, ranges_text, span_text

_SPREAD_TOLERANCE = 0.02  # above the minimum of the spread, within a transition
_FULL_DIMS = 0.95  # share of the most dimensions, at which a transition ends
MAX_NARROW_SPREAD = 0.10
"""Interquartile range over tasks that a transition must reach."""
MARGIN = 0.02
"""Distance of tuned above base from which layers are no longer shared."""
LEAST_FOR_GROUPS = 4
"""Smallest number of tasks for which layer groups are named. They are read from medians over tasks and their spread."""


@dataclass(frozen=True)
class LayerGroups:
    """The layers of each group, counted from 1, by a fixed rule. ``transition`` may be empty.

    Shared: the layers before tuned stays above base by .02, in the medians over tasks of CKA with the controls.
    Transition: from there to the first layer with 95% of the most dimensions of the tuned model, or a single layer if
    none after the shared ones has as many. Without dimensions, it ends at the last layer before tuned's interquartile
    range over tasks leaves .02 of its minimum. There is none if that range never falls to .10 after the shared layers.
    Refinement: the rest.

    The rule is ours. On the paper's curves it gives the paper's groups, 1-9, 10-15 and 16-32 for seen tasks, and no
    transition for unseen ones. The first boundary depends on a difference of .020 at layer 9. With an error of .005 in
    every point, as from reading a figure, it is 8 in about half of the draws.

    Source: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008), figures 2 and 7.

    Attributes:
        shared: layers in which tuning did not bring the model nearer to its controls.
        transition: layers in which it does. In the paper's reading, representations of tasks are formed there. That
            needs controls that learnt their tasks, and a null.
        refinement: the rest.
    """

    shared: range
    transition: range
    refinement: range

    def __str__(self) -> str:
        """Return the groups as text.

        Example:
            >>> str(LayerGroups(range(1, 10), range(10, 16), range(16, 33)))
            'shared 1-9, transition 10-15, refinement 16-32'
        """
        parts = []
        for name, layers in (("shared", self.shared), ("transition", self.transition), ("refinement", self.refinement)):
            parts.append(f"{name} {ranges_text(layers)}" if layers else f"no {name}")
        return ", ".join(parts)


@dataclass(frozen=True, repr=False)
class LayerGroupsInterval:
    """Layer groups, with 95% intervals of their ends over tasks.

    Attributes:
        groups: of all tasks.
        shared_end: 95% interval of the last shared layer. 0 means that none is shared.
        transition_end: of the last layer of the transition, over the draws that have one. None if no draw has one.
        no_transition: share of draws without a transition.
        draws: how often tasks were drawn. Draws that leave a median undefined are not counted. 0 without intervals.
        notes: remarks for the reader.
        farther: layers in which tuned is less similar to the controls than base, see ``_farther_layers``.
        tuned_alone: the subset of ``farther`` in which the controls are like base, so that only tuned changed.
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
        """Return the groups as text, with 95% intervals of their ends.

        Example:
            >>> groups = LayerGroups(range(1, 10), range(10, 10), range(10, 33))
            >>> print(LayerGroupsInterval(groups, (8, 9), None, 1.0, 1000))
            shared 1-9 (95% over tasks: end at 8 to 9), no transition, refinement 10-32
        """
        parts = []
        for row in self.rows():
            notes = self._notes_on(row)
            layers = ranges_text(getattr(self.groups, row["group"]))
            group = f"{row['group']} {layers}" if layers else f"no {row['group']}"
            parts.append(f"{group} ({'; '.join(notes)})" if notes else group)
        return ", ".join(parts)

    def _notes_on(self, row: Mapping[str, Any]) -> list[str]:
        """Return remarks on one group, given its row."""
        is_empty = row["first_layer"] is None
        notes = []
        if row["end_low"] is not None and (not is_empty or row["group"] == "shared"):
            ends = f"end at {span_text((row['end_low'], row['end_high']))}"
            notes.append(f"95% over tasks: {ends}" if row["group"] == "shared" else ends)
        if row["tuned_alone"]:
            notes.append(f"tuned alone changed at {row['tuned_alone']}")
        if row["group"] == "transition" and self.draws:
            if not is_empty and self.no_transition > 0:
                notes.append(f"none in {_share_text(self.no_transition)} of draws")
            elif is_empty and self.no_transition < 1:
                notes.append(f"there is one in {_share_text(1 - self.no_transition)} of draws")
        return notes

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each group, for tables.

        Returns:
            ``group``. ``first_layer`` and ``last_layer``, None for an empty group. ``end_low`` and ``end_high``, the
            95% interval of its last layer over tasks (0: before the first layer) or None. ``tuned_alone``, its layers
            in which only tuned changed, such as ``"2-4"``.
        """
        rows = []
        for name, ends in (("shared", self.shared_end), ("transition", self.transition_end), ("refinement", None)):
            layers = getattr(self.groups, name)
            first, last = (layers[0], layers[-1]) if layers else (None, None)
            low, high = ends or (None, None)
            rows.append(
                {
                    "group": name,
                    "first_layer": first,
                    "last_layer": last,
                    "end_low": low,
                    "end_high": high,
                    "tuned_alone": ranges_text(layer for layer in self.tuned_alone if layer in layers),
                }
            )
        return rows


def _share_text(share: float) -> str:
    """Return a share that is neither 0 nor 1 as percent."""
    rounded = f"{share:.0%}"
    return {"0%": "under 1%", "100%": "over 99%"}.get(rounded, rounded)


def group_boundaries(
    base: ByLayer,
    tuned: ByLayer,
    spread: ByLayer,
    n_dims: Shaped[np.ndarray, "... layer"] | None = None,
    *,
    margin: float = MARGIN,
) -> tuple[Layers, Layers]:
    """Return the last shared layer and the last layer of the transition, of many curves at once (see ``LayerGroups``).

    Args:
        base: of the untuned model, median over tasks of CKA with the controls, by layer from 1.
        tuned: of the tuned model. NaN where not known.
        spread: interquartile range over tasks of ``tuned``.
        n_dims: dimensions for 99% of the variance, of the tuned model. NaN where not known.
        margin: how far ``tuned`` has to be above ``base``.

    Returns:
        Two arrays of layers, counted from 1. They are equal if there is no transition.

    Example:
        >>> base, tuned = np.array([[1.0, 0.9, 0.7], [1.0, 1.0, 1.0]]), np.full((2, 3), 0.9)
        >>> [layers.tolist() for layers in group_boundaries(base, tuned, np.full((2, 3), 0.05))]
        [[2, 3], [3, 3]]
    """
    last = base.shape[-1]
    shared = np.asarray(crossovers(base, tuned, margin)) - 1
    place = np.arange(last)
    after = place >= shared[..., None]
    narrow = np.where(after & ~np.isnan(spread), spread, np.inf)
    if n_dims is not None and not np.isnan(n_dims).all():
        full = after & (n_dims >= _FULL_DIMS * np.nanmax(n_dims, axis=-1, keepdims=True))
        end = np.where(full.any(axis=-1), np.argmax(full, axis=-1) + 1, shared + 1)
    else:
        least = np.argmin(narrow, axis=-1)[..., None]
        minimum = np.take_along_axis(narrow, least, axis=-1)
        left = (place > least) & np.isfinite(narrow) & (narrow > minimum + _SPREAD_TOLERANCE)
        end = np.where(left.any(axis=-1), np.argmax(left, axis=-1), last)
    has_transition = narrow.min(axis=-1) <= MAX_NARROW_SPREAD
    return shared, np.where(has_transition, end, shared)


def layer_groups_of(curves: TaskCurves) -> LayerGroups:
    """Return the layer groups of the curves' tasks, with the dimensions of the tuned model if they are known.

    Example:
        >>> base, tuned = np.array([[1.0, 0.5, 0.4]] * 3), np.array([[1.0, 0.9, 0.9]] * 3)
        >>> seen = np.zeros(3, dtype=bool)
        >>> print(layer_groups_of(TaskCurves(tuple("abc"), tuple("123"), base, tuned, None, None, seen, (None,) * 3)))
        shared 1, transition 2-3, no refinement
    """
    shared, end = map(int, group_boundaries_of(curves))
    return LayerGroups(range(1, shared + 1), range(shared + 1, end + 1), range(end + 1, curves.n_layers + 1))


def group_boundaries_of(curves: TaskCurves) -> tuple[Layers, Layers]:
    """Return ``group_boundaries`` of the curves, which may have leading axes."""
    return group_boundaries(
        curves.median("base"), curves.median("tuned"), curves.spread("tuned"), curves.dims.get("tuned")
    )


def _farther_layers(curves: TaskCurves, draws: int = 1000, seed: int = 0) -> tuple[int, ...]:
    """Return the layers, from 1, where tuned is less similar to the controls than base.

    There the median over tasks is lower by more than ``MARGIN``. With enough tasks for a bootstrap, the 95% interval of
    the difference also lies below 0, for all layers together: its width follows the bootstrap's largest deviation over
    layers, in standard deviations. A layer that is undefined in more than 5% of the draws has none.

    Example:
        >>> base, tuned = np.array([[1.0, 1.0, 0.9]] * 6), np.array([[1.0, 0.4, 0.9]] * 6)
        >>> seen = np.zeros(6, dtype=bool)
        >>> curves = TaskCurves(tuple("abcdef"), tuple("123"), base, tuned, None, None, seen, (None,) * 6)
        >>> _farther_layers(curves)
        (2,)
    """
    farther = curves.gap < -MARGIN
    if not curves.few:
        drawn = curves.resampled(draws, seed).gap
        deviation = np.sqrt(nan_mean((drawn.T - nan_mean(drawn.T)[:, None]) ** 2))
        deviation[np.isnan(drawn).mean(axis=0) > MOST_UNDEFINED] = np.nan
        deviations = (drawn - curves.gap) / np.where(deviation > 0, deviation, np.inf)
        largest = np.max(np.nan_to_num(deviations, nan=0.0), axis=1)
        farther &= curves.gap + np.quantile(largest, 0.975) * deviation < 0
    return tuple(int(layer) for layer in np.flatnonzero(farther) + 1)


def layer_groups_interval(curves: TaskCurves, draws: int = 1000, seed: int = 0) -> LayerGroupsInterval:
    """Return the layer groups of the curves' tasks, with 95% bootstrap intervals of both boundaries over tasks.

    Give ``curves.seen`` or ``curves.unseen``. Groups of seen and held-out tasks together mean little.

    Args:
        curves: by task. Dimensions, if there are any, belong to all tasks together and are not drawn.
        draws: how often tasks are drawn.
        seed: for the draws.

    Example:
        >>> base, tuned = np.array([[1.0, 0.5, 0.4]] * 6), np.array([[1.0, 0.9, 0.9]] * 6)
        >>> seen = np.zeros(6, dtype=bool)
        >>> curves = TaskCurves(tuple("abcdef"), tuple("123"), base, tuned, None, None, seen, (None,) * 6)
        >>> print(layer_groups_interval(curves))
        shared 1 (95% over tasks: end at 1), transition 2-3 (end at 3), no refinement
    """
    groups = layer_groups_of(curves)
    farther = _farther_layers(curves, draws, seed)
    tuned_alone = tuple(layer for layer in farther if curves.median("base")[layer - 1] >= 1 - MARGIN)
    drawn = curves.resampled(draws, seed)
    defined = (np.isfinite(drawn.gap) | np.isnan(curves.gap)).all(axis=-1)
    why = _why_no_interval(curves, defined)
    if why:
        return LayerGroupsInterval(groups, None, None, float(not groups.transition), 0, (why,), farther, tuned_alone)
    shared, end = (np.asarray(layers)[defined] for layers in group_boundaries_of(drawn))
    has_transition = end > shared
    notes = [f"intervals are over {len(curves.tasks)} tasks drawn with replacement"]
    if "tuned" in curves.dims:
        notes.append("dimensions, which end the transition, are of all tasks together and the same in every draw")
    if 0 < has_transition.mean() < 1:
        notes.append("the transition's end is over the draws that have one")
    return LayerGroupsInterval(
        groups=groups,
        shared_end=_whole(shared),
        transition_end=_whole(end[has_transition]) if has_transition.any() else None,
        no_transition=float(1 - has_transition.mean()),
        draws=int(defined.sum()),
        notes=tuple(notes),
        farther=farther,
        tuned_alone=tuned_alone,
    )


def _why_no_interval(curves: TaskCurves, defined: Bool[np.ndarray, "draw"]) -> str:
    if curves.few:
        return (
            f"{counted(len(curves.tasks), 'task')}: boundaries have no interval over tasks, which needs {LEAST_TASKS}"
        )
    if 1 - defined.mean() > MOST_UNDEFINED:
        return f"boundaries have no interval: undefined in more than {MOST_UNDEFINED:.0%} of the draws of tasks"
    return ""


def _whole(layers: Int[np.ndarray, "draw"]) -> tuple[int, int]:
    """Return the central 95% of layers, rounded outwards."""
    low, high = task_bootstrap_ends(layers)
    return math.floor(low), math.ceil(high)


def has_all_layer_groups(curves: TaskCurves) -> Numbers:
    """Return 1 if some layers are shared, some in transition and some refine, else 0. NaN if a median is undefined."""
    shared, end = group_boundaries_of(curves)
    has_all = (shared > 0) & (shared < end) & (end < curves.n_layers)
    return np.where(_is_defined(curves), has_all.astype(float), np.nan)


def shared_layers_end_distance(curves: TaskCurves) -> Numbers:
    """Return how far the shared layers' end is from the paper's, see ``_distance_from_paper``."""
    return _distance_from_paper(curves, "shared")


def transition_layers_end_distance(curves: TaskCurves) -> Numbers:
    """Return how far the transition's end is from the paper's, see ``_distance_from_paper``."""
    return _distance_from_paper(curves, "transition")


def _distance_from_paper(curves: TaskCurves, group: Literal["shared", "transition"]) -> Numbers:
    """Return how far a group's end is from the paper's, as a share of the depth.

    NaN without a transition, or if a median is undefined.
    """
    shared, end = group_boundaries_of(curves)
    last = shared if group == "shared" else end
    distance = np.abs(last / curves.n_layers - GROUPS[group][1] / N_LAYERS)
    return np.where((end > shared) & _is_defined(curves), distance, np.nan)


def _is_defined(curves: TaskCurves) -> Bool[np.ndarray, "..."]:
    """Return whether both medians are defined at every layer, without which the groups' ends are not known."""
    return np.asarray(np.isfinite(curves.gap).all(axis=-1))
