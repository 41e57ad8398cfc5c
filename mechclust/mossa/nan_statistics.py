"""Means and quantiles of the numbers that are defined."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def nan_quantile_over_tasks(
    values: Float[np.ndarray, "... task layer"], share: float
) -> Float[np.ndarray, "... layer"]:
    """Return a quantile over tasks of the numbers that are defined, or NaN.

    Example:
        >>> nan_quantile_over_tasks(np.array([[1.0, np.nan], [2.0, np.nan], [np.nan, np.nan]]), 0.5).tolist()
        [1.5, nan]
    """
    if not values.shape[-2]:
        return np.full((*values.shape[:-2], values.shape[-1]), np.nan)
    if not np.isnan(values).any():
        return np.median(values, axis=-2) if share == 0.5 else np.quantile(values, share, axis=-2)
    ordered = np.sort(values, axis=-2)  # NaN last
    last = np.maximum((~np.isnan(values)).sum(axis=-2, keepdims=True) - 1, 0)
    below = np.floor(share * last).astype(int)
    low = np.take_along_axis(ordered, np.minimum(below, last), axis=-2)
    high = np.take_along_axis(ordered, np.minimum(below + 1, last), axis=-2)
    return (low + (share * last - below) * (high - low)).squeeze(-2)


def nan_mean(values: Float[np.ndarray, "... n"]) -> Float[np.ndarray, "..."]:
    """Return the mean over the last axis of the numbers that are defined, or NaN.

    Example:
        >>> nan_mean(np.array([[1.0, 3.0], [np.nan, 2.0], [np.nan, np.nan]])).tolist()
        [2.0, 2.0, nan]
    """
    known = ~np.isnan(values)
    if known.all() and values.shape[-1]:
        return np.asarray(values.mean(axis=-1))
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
