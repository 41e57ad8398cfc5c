"""Intervals over two sources of variation at once: the documents measured, and the seed of the topic model."""

from __future__ import annotations

import math

import numpy as np

from mechclust.report.verdicts import Interval


def spread(by_seed: np.ndarray, drawn: np.ndarray | None = None, freedom: float = math.inf) -> Interval | None:
    """95% interval of a mean over topic models, whose documents were resampled too.

    The variance is that of the resampled means, plus that between the seeds over how many there are; Student's t with
    the degrees of freedom of Welch & Satterthwaite. All topic models see the same resampled documents.

    Args:
        by_seed: ``[seed]`` measured values.
        drawn: ``[seed resample]`` the values of resampled documents; ``None`` where documents play no part.
        freedom: degrees of freedom of their variance; a bootstrap has many.

    Returns:
        ``None`` where nothing varies: one seed and no resampling, or a value that is not finite.

    Example:
        >>> low, high = spread(np.array([1.0, 2.0, 3.0]))  # Student's t
        >>> round(low, 6), round(high, 6)
        (-0.484138, 4.484138)
    """
    from scipy.special import ndtri, stdtrit

    n = len(by_seed)
    between = float(np.var(by_seed, ddof=1)) / n if n > 1 else 0.0
    within = 0.0 if drawn is None else float(np.var(drawn.mean(axis=0), ddof=1))
    if (n < 2 and drawn is None) or not np.isfinite([between, within, *by_seed]).all():
        return None
    total = between + within
    spent = within**2 / freedom + (between**2 / (n - 1) if n > 1 else 0.0)
    quantile = stdtrit(total**2 / spent, 0.975) if spent > 0 else ndtri(0.975)
    half = float(quantile) * math.sqrt(total)
    mean = float(np.mean(by_seed))
    return mean - half, mean + half
