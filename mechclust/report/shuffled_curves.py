"""Curves of similarity in which a finding is false: what the severity of findings about such curves is counted on.

Each takes measured curves and a generator, and gives curves of the same tasks and layers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mechclust.report.task_curves import TaskCurves, over_tasks
from tasks import InputError


def swapped(curves: TaskCurves, draw: np.random.Generator) -> TaskCurves:
    """Base and tuned change places in about half of the tasks: tuning has no direction.

    Example:
        >>> one, seen = np.ones((2, 1)), np.zeros(2, dtype=bool)
        >>> curves = TaskCurves(("a", "b"), ("1",), 0 * one, one, None, None, seen, (None, None))
        >>> found = swapped(curves, np.random.default_rng(0))
        >>> found.base[:, 0].tolist(), found.tuned[:, 0].tolist()
        ([0.0, 1.0], [1.0, 0.0])
    """
    change = draw.random((len(curves.tasks), 1)) < 0.5
    base, tuned = np.where(change, curves.tuned, curves.base), np.where(change, curves.base, curves.tuned)
    return replace(curves, base=base, tuned=tuned)


def exchanged_controls(curves: TaskCurves, draw: np.random.Generator) -> TaskCurves:
    """A task's own control and those of other tasks change places in about half of the tasks."""
    own, others = curves.tuned, curves.values("null")
    change = draw.random((len(curves.tasks), 1)) < 0.5
    return replace(curves, tuned=np.where(change, others, own), null=np.where(change, own, others))


def permuted_layers(curves: TaskCurves, draw: np.random.Generator) -> TaskCurves:
    """Layers in another order, the same for all tasks and curves: depth means nothing."""
    order = draw.permutation(curves.n_layers)
    return replace(
        curves,
        base=curves.base[:, order],
        tuned=curves.tuned[:, order],
        ceiling=None if curves.ceiling is None else curves.ceiling[:, order],
        null=None if curves.null is None else curves.null[:, order],
        dims={name: np.asarray(values)[order] for name, values in curves.dims.items()},
    )


def permuted_held_out(curves: TaskCurves, draw: np.random.Generator) -> TaskCurves:
    """Other tasks are called held out, as many: being held out means nothing."""
    return replace(curves, held_out=draw.permutation(curves.held_out))


def permuted_held_out_within(curves: TaskCurves, draw: np.random.Generator) -> TaskCurves:
    """In each cluster other tasks are called held out, as many.

    Example:
        >>> one, held = np.zeros((4, 1)), np.array([True, False, False, True])
        >>> curves = TaskCurves(tuple("abcd"), ("1",), one, one, None, None, held, ("x", "x", "y", "y"))
        >>> permuted_held_out_within(curves, np.random.default_rng(5)).held_out.tolist()
        [False, True, True, False]
    """
    found, clusters = curves.held_out.copy(), np.array(curves.clusters)
    for cluster in dict.fromkeys(curves.clusters):
        own = np.flatnonzero(clusters == cluster)
        found[own] = draw.permutation(found[own])
    return replace(curves, held_out=found)


def permuted_covariates(curves: TaskCurves, draw: np.random.Generator) -> TaskCurves:
    """Covariates of other tasks, of seen ones for seen ones: they mean nothing."""
    order = np.arange(len(curves.tasks))
    for kind in (False, True):
        own = np.flatnonzero(curves.held_out == kind)
        order[own] = draw.permutation(own)
    return replace(curves, covariates={name: np.asarray(v)[order] for name, v in curves.covariates.items()})


def wandering(curves: TaskCurves, draw: np.random.Generator) -> TaskCurves:
    """Base wanders from layer to layer without a direction, with the roughness that was measured.

    It starts at its measured values and is a random walk, whose steps are common to all tasks, with the standard
    deviation of the steps of the measured median, and each task's own, with that of the tasks' steps about it.
    Similarity is at most 1: what would pass it is reflected.

    Raises:
        InputError: with fewer than three layers, where no roughness is known.
    """
    if curves.n_layers < 3:
        raise InputError(f"the curves have {curves.n_layers} layers; expected at least 3 for a random walk")
    measured = curves.base
    common = np.diff(over_tasks(measured, 0.5))
    own = np.diff(measured) - common
    steps = draw.normal(0.0, _deviation(common), common.shape) + draw.normal(0.0, _deviation(own), own.shape)
    known = np.argmax(~np.isnan(measured), axis=1)[:, None]
    start = np.take_along_axis(measured, known, axis=1)
    walk = np.concatenate([start, start + np.cumsum(steps, axis=1)], axis=1)
    walk = np.where(np.isnan(measured), np.nan, walk)
    return replace(curves, base=1 - np.abs(1 - walk))


def _deviation(steps: np.ndarray) -> float:
    """Standard deviation of the steps that are known; 0 for none."""
    known = steps[np.isfinite(steps)]
    return float(known.std()) if len(known) else 0.0
