"""Decide from patching which layers matter to the output, and which are the first and the last of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

LEAST_DIVERGENCE = 1e-4  # nats, about that of weights that were rounded to bfloat16


@dataclass(frozen=True)
class OutputVerdict:
    """Judge whether patching a layer restores more or less than patching the one before.

    Attributes:
        rise: share restored, minus the layer before's.
        low: lower end of its interval, or NaN if there is none.
        high: upper end of its interval, or NaN if there is none.
        least: a share up to this, up or down, is none.

    Example:
        >>> rise = np.array([0.0, 0.2, 0.0, 0.8, 0.0])
        >>> verdict = OutputVerdict(rise, rise - 0.1 * rise, rise + 0.1 * rise, 0.01)
        >>> verdict.matters.tolist(), verdict.first, verdict.last
        ([False, True, False, True, False], (1, 1, 1), (3, 3, 3))
    """

    rise: Float[np.ndarray, "layer"]
    low: Float[np.ndarray, "layer"]
    high: Float[np.ndarray, "layer"]
    least: float

    @cached_property
    def matters(self) -> Bool[np.ndarray, "layer"]:
        """Return whether the interval lies above the least share, or below its negative."""
        return (self.low > self.least) | (self.high < -self.least)

    @cached_property
    def may_matter(self) -> Bool[np.ndarray, "layer"]:
        """Return whether the interval reaches beyond the least share, or there is none."""
        return ~((self.low >= -self.least) & (self.high <= self.least))

    @property
    def first(self) -> tuple[int, int, int] | None:
        """Return the place of the first layer that matters by its share alone, and the first that may and that does."""
        return self._ends(0)

    @property
    def last(self) -> tuple[int, int, int] | None:
        """Return the place of the last layer that matters by its share alone, and the last that does and that may."""
        ends = self._ends(-1)
        return None if ends is None else (ends[0], ends[2], ends[1])

    def _ends(self, end: int) -> tuple[int, int, int] | None:
        if not self.matters.any():
            return None
        by_share = np.flatnonzero(np.abs(self.rise) > self.least)[end]
        return int(by_share), int(np.flatnonzero(self.may_matter)[end]), int(np.flatnonzero(self.matters)[end])
