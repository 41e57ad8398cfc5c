"""Intervals over several sources of variation at once: documents, the topic model's seed, and random weights."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from mechclust.evidence.intervals import Interval
from mechclust.mossa.task_bootstrap import MOST_UNDEFINED


def interval_of_mean(
    by_seed: Float[np.ndarray, "seed"],
    drawn: Float[np.ndarray, "seed resample"] | None = None,
    freedom: float = math.inf,
    without: Float[np.ndarray, "seed twin"] | None = None,
) -> Interval | None:
    """Return the 95% interval of a mean over topic models, whose documents were resampled too.

    The variances of all sources are added. Student's t has the degrees of freedom of Welch & Satterthwaite. All topic
    models see the same resampled documents and random weights.

    Args:
        by_seed: measured values. Their variance over their number counts.
        drawn: the values of resampled documents, or ``None`` if documents play no part. The variance of their means
            over seeds counts. Resamples with a value that is not finite are left out.
        freedom: degrees of freedom of their variance. A bootstrap has many.
        without: the values without each of several models with random weights, or ``None`` if these play no part. Their
            jackknife variance counts.

    Returns:
        ``None`` if nothing varies (one seed and nothing else), a value is not finite, or more than 5% of the resamples
        are not.

    Example:
        >>> low, high = interval_of_mean(np.array([1.0, 2.0, 3.0]))  # Student's t
        >>> round(low, 6), round(high, 6)
        (-0.484138, 4.484138)
    """
    from scipy.special import ndtri, stdtrit

    n = len(by_seed)
    parts: list[tuple[float, float]] = []  # variance, degrees of freedom
    if n > 1:
        parts.append((float(np.var(by_seed, ddof=1)) / n, n - 1))
    if drawn is not None:
        defined = np.isfinite(drawn).all(axis=0)
        if (~defined).mean() > MOST_UNDEFINED:
            return None
        parts.append((float(np.var(drawn[:, defined].mean(axis=0), ddof=1)), freedom))
    if without is not None:
        twins = without.shape[1]
        parts.append(((twins - 1) * float(np.var(without.mean(axis=0))), twins - 1))
    if not parts or not np.isfinite([*by_seed, *(variance for variance, _ in parts)]).all():
        return None
    total = sum(variance for variance, _ in parts)
    spent = sum(variance**2 / degrees for variance, degrees in parts)
    quantile = stdtrit(total**2 / spent, 0.975) if spent > 0 else ndtri(0.975)
    half = float(quantile) * math.sqrt(total)
    mean = float(np.mean(by_seed))
    return mean - half, mean + half
