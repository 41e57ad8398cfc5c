"""Statistics of the curves of similarity by task and layer: the numbers that MOSSA's findings judge.

Correlations are in ``correlations``.

A statistic takes ``TaskCurves`` and uses all of their tasks, so give it ``curves.seen`` or ``curves.unseen``. The three
named ``unseen_...`` separate both themselves, so give them all curves. Curves with leading axes (``resampled``) give
arrays with these axes. Layers are chosen by their share of the depth, so that models of any depth can be compared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mechclust.mossa.nan_statistics import nan_mean, nan_quantile_over_tasks
from mechclust.mossa.task_curves import Numbers, TaskCurves, Which


def _second_eighth(curves: TaskCurves) -> slice:
    """Return the second eighth of the layers: layers 5 to 8 of 32."""
    start = curves.n_layers // 8
    return slice(start, max(curves.n_layers // 4, start + 1))


def _second_quarter(curves: TaskCurves) -> slice:
    """Return the second quarter of the layers: layers 9 to 16 of 32."""
    return slice(curves.n_layers // 4, curves.n_layers // 2)


# ---- the untuned model ----


def base_median_fall(curves: TaskCurves) -> Numbers:
    """Return how far base's median falls: its mean over the first quarter of the layers minus that over the last."""
    median = curves.median("base")
    part = max(curves.n_layers // 4, 1)
    return nan_mean(median[..., :part]) - nan_mean(median[..., -part:])


def base_spread_doubling(curves: TaskCurves) -> Numbers:
    """Return base's interquartile range over tasks: the upper half's mean minus twice the first layer's value."""
    spread = curves.spread("base")
    return nan_mean(spread[..., curves.upper]) - 2 * spread[..., 0]


# ---- tuned against untuned ----


def last_layer_gap(curves: TaskCurves) -> Numbers:
    """Return the tuned median minus the base median, at the last layer."""
    return curves.gap[..., -1]


def upper_half_gap(curves: TaskCurves) -> Numbers:
    """Return the tuned median minus the base median, mean over the upper half."""
    return nan_mean(curves.gap[..., curves.upper])


def gap_after_first_third(curves: TaskCurves) -> Numbers:
    """Return the tuned median minus the base median, mean over the layers after the first third."""
    return nan_mean(curves.gap[..., curves.n_layers // 3 :])


def least_upper_half_gap(curves: TaskCurves) -> Numbers:
    """Return the least difference of tuned median minus base median over the layers of the upper half."""
    return np.fmin.reduce(curves.gap[..., curves.upper], axis=-1)


def second_eighth_gap(curves: TaskCurves) -> Numbers:
    """Return the tuned median minus the base median, mean over the second eighth of the layers."""
    return nan_mean(curves.gap[..., _second_eighth(curves)])


def middle_spread_ratio(curves: TaskCurves) -> Numbers:
    """Return the ratio of tuned's mean interquartile range in the second quarter to that in the second eighth."""
    spread = curves.spread("tuned")
    return _ratio(nan_mean(spread[..., _second_quarter(curves)]), nan_mean(spread[..., _second_eighth(curves)]))


def upper_half_spread_ratio(curves: TaskCurves) -> Numbers:
    """Return tuned's interquartile range over tasks as a share of base's, means over the upper half."""
    tuned = nan_mean(curves.spread("tuned")[..., curves.upper])
    base = nan_mean(curves.spread("base")[..., curves.upper])
    return _ratio(tuned, base)


def unseen_upper_half_gap(curves: TaskCurves) -> Numbers:
    """Return ``upper_half_gap`` of the held-out tasks."""
    return upper_half_gap(curves.unseen)


# ---- held-out tasks ----


def unseen_gap_deficit(curves: TaskCurves) -> Numbers:
    """Return by how much the held-out tasks' gap is below the seen tasks' gap, mean over the second quarter."""
    band = _second_quarter(curves)
    return nan_mean(curves.seen.gap[..., band]) - nan_mean(curves.unseen.gap[..., band])


def unseen_spread_excess(curves: TaskCurves) -> Numbers:
    """Return tuned's interquartile range over held-out tasks minus that over seen ones, mean over the upper half."""
    unseen = nan_mean(curves.unseen.spread("tuned")[..., curves.upper])
    seen = nan_mean(curves.seen.spread("tuned")[..., curves.upper])
    return unseen - seen


# ---- against a second control and other tasks' controls ----


def ceiling_gap_share(curves: TaskCurves) -> Numbers:
    """Return (tuned - base) / (ceiling - base), upper half. NaN if the ceiling is less than .01 above base.

    Give ``curves.with_ceiling``, because in many draws from all tasks none has a ceiling.
    """
    known = _with_ceiling(curves)
    base = _upper_median(known, "base")
    tuned = _upper_median(known, "tuned")
    way = _upper_median(curves, "ceiling") - base
    return np.where(way >= 0.01, _ratio(tuned - base, way), np.nan)


def own_control_advantage(curves: TaskCurves) -> Numbers:
    """Return how much more similar tuned is to a task's own control than to other tasks' controls.

    Mean over the upper half of the layers, then median over tasks.
    """
    difference = nan_mean((curves.values("tuned") - curves.values("null"))[..., curves.upper])
    return nan_quantile_over_tasks(difference[..., None], 0.5)[..., 0]


# ---- ratios and medians ----


def _ratio(over: Numbers, under: Numbers) -> Numbers:
    return np.divide(over, under, out=np.full(np.broadcast_shapes(over.shape, under.shape), np.nan), where=under > 0)


def _upper_median(curves: TaskCurves, which: Which) -> Numbers:
    return nan_mean(curves.median(which)[..., curves.upper])


def _with_ceiling(curves: TaskCurves) -> TaskCurves:
    """Return the curves, with NaN in base and tuned for each value without a ceiling."""
    known = ~np.isnan(curves.values("ceiling"))
    base = np.where(known, curves.base, np.nan)
    tuned = np.where(known, curves.tuned, np.nan)
    return replace(curves, base=base, tuned=tuned)
