"""Attention ratios of an encoder by threshold, with what varies about them: what tables and findings are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mechclust.commands.topics.suite.spread import spread
from mechclust.evidence.intervals import Interval
from probes import ProbeResult

Measure = Literal["ratio", "matched"]


@dataclass(frozen=True, eq=False)
class Curve:
    """A measure by threshold, for each topic model; or one number made of it, without the axis of thresholds.

    Attributes:
        values: ``[seed threshold]``.
        drawn: ``[seed threshold resample]``, of resampled documents.
        without: ``[seed threshold twin]``, of a mean over several models with random weights, without each of them;
            ``None`` for one model.
    """

    values: np.ndarray
    drawn: np.ndarray
    without: np.ndarray | None = None

    def statistic(self, of: Callable[[np.ndarray], np.ndarray]) -> Curve:
        """A function that takes thresholds along axis 1 to one number."""
        return Curve(of(self.values), of(self.drawn), None if self.without is None else of(self.without))

    def at(self, threshold: int) -> Curve:
        """At one of the thresholds, by its number."""
        return self.statistic(lambda x: x[:, threshold])

    def minus(self, other: Curve) -> Curve:
        """The difference from another curve, measured on the same documents; of the two, one may be a mean of twins."""
        return self._with(other, np.subtract)

    def highest(self, other: Curve) -> Curve:
        """The higher of the two, place by place."""
        return self._with(other, np.maximum)

    def _with(self, other: Curve, of: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Curve:
        a, b = (c.values[..., None] if c.without is None else c.without for c in (self, other))
        without = None if self.without is None and other.without is None else of(a, b)
        return Curve(of(self.values, other.values), of(self.drawn, other.drawn), without)

    def interval(self, freedom: float = math.inf) -> Interval | None:
        """95%, of a number; see ``spread``."""
        return spread(self.values, self.drawn, freedom, self.without)


def curve_of(attention: ProbeResult, measure: Measure, overlap: bool) -> Curve:
    """Of a suite's measurement, thresholds rising."""
    variants = attention.metadata["variants"]
    chosen = sorted((float(t), i) for i, (t, with_overlap) in enumerate(variants) if bool(with_overlap) == overlap)
    places = [i for _, i in chosen]
    values = attention[f"overall_{measure}"].numpy()[:, places]
    return Curve(values, attention[f"overall_{measure}_resampled"].numpy()[:, places])


def mean_of(twins: Sequence[Curve]) -> Curve:
    """The mean of an encoder's random twins."""
    values = np.array([c.values for c in twins])
    n, mean = len(values), values.mean(axis=0)
    without = np.stack([(n * mean - own) / (n - 1) for own in values], axis=-1) if n > 1 else None
    return Curve(mean, np.mean([c.drawn for c in twins], axis=0), without)


def thresholds_of(attention: ProbeResult) -> list[float]:
    """Rising."""
    return sorted({float(t) for t, _ in attention.metadata["variants"]})
