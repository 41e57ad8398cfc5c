"""Curves of similarity in which a statement is false: measured ones, with one thing shuffled.

Every function shuffles once, identically for all curves with equal numbers of tasks and layers and, if clusters are
shuffled, equal covariates. The seeds of a study are so shuffled alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mechclust.evidence.random_order import random_order
from mechclust.mossa.task_curves import ByTaskAndLayer, TaskCurves


@dataclass(frozen=True)
class FalseCurves:
    """Curves in which a statement should be false.

    Attributes:
        name: the change in words.
        change: makes them from the measured curves.
        random: whether ``change`` draws at random. All seeds then share one draw, and reports add this to the name.
    """

    name: str
    change: Callable[[TaskCurves], TaskCurves]
    random: bool = True


def swapped_curves(curves: TaskCurves) -> TaskCurves:
    """Return the curves with base and tuned swapped for a random half of the seen and of the held-out tasks.

    Of an odd number of tasks, one is left over. Both of its curves are their mean.

    Example:
        >>> base, seen = np.zeros((2, 1)), np.zeros(2, dtype=bool)
        >>> changed = swapped_curves(TaskCurves(("a", "b"), ("1",), base, base + 1, None, None, seen, (None, None)))
        >>> sorted(changed.base[:, 0].tolist()), (changed.base + changed.tuned).tolist()
        ([0.0, 1.0], [[1.0], [1.0]])
    """
    base, tuned = _exchanged(curves, curves.base, curves.tuned)
    return replace(curves, base=base, tuned=tuned)


def control_shuffled_curves(curves: TaskCurves) -> TaskCurves:
    """Return the curves with a task's control and others' controls exchanged for a random half of the tasks.

    Of an odd number of tasks, one is left over. Both of its curves are their mean.
    """
    tuned, null = _exchanged(curves, curves.tuned, curves.values("null"))
    return replace(curves, tuned=tuned, null=null)


def permuted_layers(curves: TaskCurves) -> TaskCurves:
    """Return the curves with the layers in one random order for all tasks and measures."""
    order = random_order(curves.n_layers)
    return replace(
        curves,
        base=curves.base[:, order],
        tuned=curves.tuned[:, order],
        ceiling=None if curves.ceiling is None else curves.ceiling[:, order],
        null=None if curves.null is None else curves.null[:, order],
        dims={name: values[order] for name, values in curves.dims.items()},
    )


def held_out_shuffled_curves(curves: TaskCurves) -> TaskCurves:
    """Return the seen tasks, with as many at random called held out as there are held-out ones.

    One is drawn for each held-out task, from its cluster if a seen task is left there.

    Example:
        >>> curves = np.zeros((5, 1))
        >>> held_out = np.array([True, False, False, True, False])
        >>> clusters = ("x", "x", "x", None, "y")
        >>> changed = held_out_shuffled_curves(
        ...     TaskCurves(tuple("abcde"), ("1",), curves, curves, None, None, held_out, clusters)
        ... )
        >>> changed.tasks, int(changed.held_out.sum()), bool(changed.held_out[:2].any())
        (('b', 'c', 'e'), 2, True)
    """
    seen = curves.seen
    order = np.random.default_rng(0).permutation(len(seen.tasks)).tolist()
    held_out = np.zeros(len(seen.tasks), dtype=bool)
    for cluster in curves.unseen.clusters:
        free = [place for place in order if not held_out[place]]
        in_cluster = [place for place in free if seen.clusters[place] == cluster]
        held_out[(in_cluster or free)[:1]] = True
    return replace(seen, held_out=held_out)


def covariate_shuffled_curves(curves: TaskCurves) -> TaskCurves:
    """Return the curves with the covariates of other tasks, of seen ones for seen ones.

    Each task has those of the one before it in a random order. A single held-out task keeps its own.
    """
    rng = np.random.default_rng(0)
    order = np.arange(len(curves.tasks))
    for kind in (False, True):
        places = rng.permutation(np.flatnonzero(curves.held_out == kind))
        order[places] = np.roll(places, 1)
    covariates = {name: values[order] for name, values in curves.covariates.items()}
    return replace(curves, covariates=covariates)


def cluster_shuffled_curves(curves: TaskCurves) -> TaskCurves:
    """Return the curves with the covariates of other clusters, each taken from a cluster's first task.

    They differ from the given ones, unless all clusters have the same.

    Example:
        >>> curves = np.zeros((4, 1))
        >>> none = np.zeros(4, dtype=bool)
        >>> covariates = {"new": np.array([0, 0, 1, 1])}
        >>> tasks = TaskCurves(tuple("abcd"), ("1",), curves, curves, None, None, none, tuple("xxyy"), {}, covariates)
        >>> cluster_shuffled_curves(tasks).covariates["new"].tolist()
        [1, 1, 0, 0]
    """
    rng = np.random.default_rng(0)
    clusters, first, of_task = np.unique(
        [str(cluster) for cluster in curves.clusters], return_index=True, return_inverse=True
    )
    codes = [np.unique(values[first], return_inverse=True)[1] for values in curves.covariates.values()]
    differ = any(of_clusters.any() for of_clusters in codes)
    order = rng.permutation(len(clusters))
    while differ and all(np.array_equal(of_clusters[order], of_clusters) for of_clusters in codes):
        order = rng.permutation(len(clusters))
    places = first[order][of_task]
    covariates = {name: values[places] for name, values in curves.covariates.items()}
    return replace(curves, covariates=covariates)


def _exchanged(
    curves: TaskCurves, first: ByTaskAndLayer, second: ByTaskAndLayer
) -> tuple[ByTaskAndLayer, ByTaskAndLayer]:
    """Exchange two curves for a random half of the seen and of the held-out tasks.

    A task that is left over has the mean of both. As it was, it would decide both medians over tasks.
    """
    rng = np.random.default_rng(0)
    dtype = np.result_type(first, second, 0.5)
    one = first.astype(dtype)
    other = second.astype(dtype)
    for kind in (False, True):
        places = rng.permutation(np.flatnonzero(curves.held_out == kind))
        n, is_odd = divmod(len(places), 2)
        half = places[:n]
        one[half] = second[half]
        other[half] = first[half]
        left_over = places[n : n + is_odd]
        one[left_over] = other[left_over] = (first[left_over] + second[left_over]) / 2
    return one, other
