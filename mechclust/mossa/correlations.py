"""Correlations of curves of similarity: with depth, and over tasks with a covariate."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float

from mechclust.mossa.nan_statistics import nan_mean
from mechclust.mossa.task_curves import LEAST_TASKS, Numbers, TaskCurves, Which

_LARGEST = 1 - 1e-12  # correlation whose arctanh is finite
_NORMAL = 1.959964  # upper 2.5% point
_ROUNDING = 1e-12  # spread, as a share of the largest value, below which a variable counts as constant


def base_median_depth_correlation(curves: TaskCurves) -> Numbers:
    """Return Spearman's correlation of base's median with depth. -1: it falls from layer to layer."""
    return _depth_correlation(curves.median("base"))


def base_spread_depth_correlation(curves: TaskCurves) -> Numbers:
    """Return Spearman's correlation of base's interquartile range over tasks with depth."""
    return _depth_correlation(curves.spread("base"))


def gain_correlation(curves: TaskCurves, covariate: str) -> Numbers:
    """Return Pearson's correlation over tasks of ``TaskCurves.gain`` with a covariate."""
    return correlation(curves.gain, curves.covariates[covariate])


def covariate_correlation(curves: TaskCurves, which: Which, covariate: str) -> Float[np.ndarray, "... layer"]:
    """Return Pearson's correlation over tasks of a curve with a covariate, by layer. NaN with fewer than 3 tasks.

    Raises:
        InputError: if the curve was not measured.
    """
    values = np.moveaxis(curves.values(which), -1, -2)
    return correlation(values, curves.covariates[covariate][..., None, :])


def band_correlation(curves: TaskCurves, which: Which, covariate: str, start: float, end: float) -> Numbers:
    """Return the mean of ``covariate_correlation`` over the layers from ``start`` to ``end``, at least one layer.

    Args:
        curves: similarity by task and layer.
        which: the curve.
        covariate: the covariate's name.
        start: where the band begins, as a share of the depth, rounded down to a layer.
        end: where it ends, rounded up. ``start=0, end=0`` is the first layer.
    """
    first = min(math.floor(start * curves.n_layers), curves.n_layers - 1)
    last = max(math.ceil(end * curves.n_layers), first + 1)
    return nan_mean(covariate_correlation(curves, which, covariate)[..., first:last])


def n_known(curves: TaskCurves, covariate: str) -> int:
    """Return how many tasks have the covariate and both curves, at the layer with fewest (layers without any aside)."""
    known = np.isfinite(curves.base) & np.isfinite(curves.tuned)
    known &= np.isfinite(curves.covariates[covariate])[:, None]
    counts = known.sum(axis=0)
    return int(min(counts[counts > 0], default=0))


def correlation_interval(r: Numbers | float, n: int) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Return the ends of the 95% interval of Pearson correlations over ``n`` tasks. NaN for fewer than ``LEAST_TASKS``.

    Of unrelated numbers of 6 to 40 tasks, 2% to 3% of samples have an interval above 0. If both are lognormal, 5%
    have. (Percentiles of a bootstrap over tasks: 4% to 6%, and as many below 0.)

    Source: Fisher 1921.

    Example:
        >>> low, high = correlation_interval(0.6, 20)
        >>> round(float(low), 3), round(float(high), 3)
        (0.214, 0.824)
    """
    if n < LEAST_TASKS:
        return (np.full(np.shape(r), np.nan),) * 2
    z = np.arctanh(np.clip(r, -_LARGEST, _LARGEST))
    half = _NORMAL / math.sqrt(n - 3)
    return np.asarray(np.tanh(z - half)), np.asarray(np.tanh(z + half))


def correlation(x: Float[np.ndarray, "..."], y: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return Pearson's correlation over the last axis of arrays that broadcast, where both are defined.

    NaN for fewer than 3 such places, or for a constant array.

    Example:
        >>> correlation(np.array([1.0, 2.0, 3.0, np.nan]), np.array([2.0, 4.0, 6.0, 0.0])).item()
        1.0
    """
    known = ~(np.isnan(x) | np.isnan(y))
    x_centred = _centred(x, known)
    y_centred = _centred(y, known)
    x_squares = (x_centred**2).sum(axis=-1)
    y_squares = (y_centred**2).sum(axis=-1)
    varies = (np.sqrt(x_squares) > _rounding(x, known)) & (np.sqrt(y_squares) > _rounding(y, known))
    enough = (known.sum(axis=-1) >= 3) & varies
    scale = np.sqrt(x_squares * y_squares)
    return np.where(enough, (x_centred * y_centred).sum(axis=-1) / np.where(enough, scale, 1.0), np.nan)


def _rounding(values: Float[np.ndarray, "..."], known: Bool[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return the spread that rounding of the known values of the last axis may have."""
    return np.asarray(_ROUNDING * np.where(known, np.abs(values), 0).max(axis=-1, initial=0))


def _centred(values: Float[np.ndarray, "..."], known: Bool[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return values minus their mean over the known places of the last axis, and 0 elsewhere."""
    values = np.where(known, values, np.nan)
    return np.where(known, values - nan_mean(values)[..., None], 0.0)


def _depth_correlation(values: Float[np.ndarray, "... layer"]) -> Numbers:
    """Return Spearman's correlation with depth, over the layers with a value. NaN for a flat curve.

    Example:
        >>> _depth_correlation(np.array([[1.0, 0.9, 0.2], [0.5, 0.5, 0.5]])).round(6).tolist()
        [-1.0, nan]
        >>> _depth_correlation(np.array([1.0, 2.0, np.nan, np.nan, np.nan, 3.0])).round(6).item()
        1.0
    """
    from scipy.stats import rankdata

    missing = np.isnan(values)
    ranks = np.where(missing, np.nan, rankdata(np.where(missing, np.inf, values), axis=-1))
    depth = np.where(missing, np.nan, np.cumsum(~missing, axis=-1))
    return correlation(ranks, depth)
