"""Decide from changes and their intervals which layers changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float


@dataclass(frozen=True)
class LayerVerdict:
    """Judge whether the interval of 1 - debiased CKA lies above the tolerance.

    Attributes:
        change: 1 - debiased CKA.
        low: lower end of its interval, or NaN if there is none.
        high: upper end of its interval, or NaN if there is none.
        tolerance: a change up to this is none.

    Example:
        >>> change = np.array([[0.0, 0.5]])
        >>> LayerVerdict(change, change - 0.1, change + 0.1, 0.01).changed.tolist()
        [[False, True]]
    """

    change: Float[np.ndarray, "layer label"]
    low: Float[np.ndarray, "layer label"]
    high: Float[np.ndarray, "layer label"]
    tolerance: float

    @cached_property
    def known(self) -> Bool[np.ndarray, "layer label"]:
        """Return whether there is a change with an interval, so that it can be judged."""
        return np.isfinite(self.change) & np.isfinite(self.low) & np.isfinite(self.high)

    @cached_property
    def changed(self) -> np.ma.MaskedArray:
        """Return whether the interval lies above the tolerance, masked if there is none."""
        return np.ma.MaskedArray(self.low > self.tolerance, mask=~self.known)

    @cached_property
    def maybe_changed(self) -> Bool[np.ndarray, "layer label"]:
        """Return for which layers a change beyond the tolerance cannot be judged, because it has no interval."""
        return ~self.known & (self.change > self.tolerance)
