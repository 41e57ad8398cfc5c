"""Curves of several seeds, in bands, and one band of chance around theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes

from mechclust.report.style import CHANCE, SOFT
from probes.engine.plots import plot_chance_band


def plot_seeds(
    axis: Axes, x: Sequence[float] | Shaped[np.ndarray, "n"], values: Shaped[np.ndarray, "seed n"], **style: Any
) -> None:
    """Draw the mean over seeds as a line, in a band from the least to the greatest seed.

    Args:
        axis: where to draw.
        x: of each value.
        values: of each seed.
        style: of the line. Its ``color`` is also the band's.
    """
    (line,) = axis.plot(x, values.mean(axis=0), **style)
    if len(values) > 1:
        axis.fill_between(x, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.12, lw=0)


def plot_seeds_by_layer(
    axis: Axes, values: Float[np.ndarray, "seed layer"], name: str, color: str
) -> tuple[float, str, str]:
    """Draw the mean over seeds by layer, in its band, and return its label for ``direct_labels``."""
    plot_seeds(axis, range(values.shape[1]), values, color=color, marker=".")
    return float(values[:, -1].mean()), name, color


def plot_seed_medians(
    axis: Axes,
    x: Sequence[float] | Shaped[np.ndarray, "n"],
    values: Float[np.ndarray, "seed n"],
    shares: Sequence[float],
    **style: Any,
) -> None:
    """Draw the median over seeds as a line, in bands of quantiles.

    Args:
        axis: where to draw.
        x: of each value.
        values: of each seed. Seeds with NaN at a place are left out there.
        shares: of the seeds left out on either side of a band, such as 0.25 for the middle half.
        style: of the line. Its ``color`` is also the bands'.
    """
    (line,) = axis.plot(x, np.nanmedian(values, axis=0), lw=1.6, **style)
    for share in shares:
        low, high = np.nanquantile(values, (share, 1 - share), axis=0)
        axis.fill_between(x, low, high, color=line.get_color(), alpha=0.2, lw=0)


def plot_chance_of_seeds(
    axis: Axes, x: Sequence[float] | Shaped[np.ndarray, "n"], null: Float[np.ndarray, "band n ends"]
) -> tuple[float, str, str]:
    """Draw one band of chance around several, and return its label for ``direct_labels``.

    Args:
        axis: where to draw.
        x: of each value.
        null: lower and upper end of each band, first along the last axis.
    """
    low = null[..., 0].min(axis=0)
    high = null[..., 1].max(axis=0)
    plot_chance_band(axis, x, low, high)
    return float(low[-1] + high[-1]) / 2, CHANCE, SOFT
