"""Wilson's 95% interval of a share."""

from __future__ import annotations

import math

from tasks import InputError
from tasks.settings import check_at_least

_HITS_ROUNDING = 1e-9  # rounding of a rescaled number of hits


def wilson_interval(hits: float, n: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the 95% interval of a share: of ``hits`` among ``n`` independent examples (Wilson 1927).

    Raises:
        InputError: for no example, or more hits than examples.

    Example:
        >>> [round(x, 3) for x in wilson_interval(8, 10)]
        [0.49, 0.943]
    """
    check_at_least(hits=(hits, 0), n=(n, 1))
    if hits > n * (1 + _HITS_ROUNDING):
        raise InputError(f"hits is {hits:g}; expected at most n, {n:g}")
    share = hits / n
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return ends_around(share, (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n))


def wilson_ends(share: float, z2: float) -> tuple[float, float]:
    """Return both ends of Wilson's interval (1927) of a share.

    Args:
        share: a share from 0 to 1.
        z2: square of the quantile, times the share's variance in units of ``share (1 - share)``.
    """
    middle = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (share * (1 - share)) + z2 * z2 / 4) / (1 + z2)
    return middle - half, middle + half


def ends_around(share: float, low: float, high: float) -> tuple[float, float]:
    """Return the ends of an interval, from 0 to 1 and around the share in spite of rounding."""
    return max(0.0, min(low, share)), min(1.0, max(high, share))
