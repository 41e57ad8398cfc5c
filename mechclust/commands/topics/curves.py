"""Attention ratios of a model by threshold, with their variation, for tables and findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float

from mechclust.commands.topics.spread import interval_of_mean
from mechclust.evidence.intervals import Interval
from probes import ProbeResult

Measure = Literal["ratio", "matched"]
_Values = Float[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class Curve:
    """A measure by threshold, for each topic model, or one number made of it, without the axis of thresholds.

    Attributes:
        values: measured values.
        drawn: values of resampled documents.
        without: a mean over several models with random weights, without each of them. ``None`` for one model.
    """

    values: Float[np.ndarray, "seed *threshold"]
    drawn: Float[np.ndarray, "seed *threshold resample"]
    without: Float[np.ndarray, "seed *threshold twin"] | None = None

    def statistic(self, reduce: Callable[[_Values], _Values]) -> Curve:
        """Apply a function that reduces the axis of thresholds, axis 1, to fewer of them or to one number."""
        return Curve(reduce(self.values), reduce(self.drawn), None if self.without is None else reduce(self.without))

    def at(self, threshold: int) -> Curve:
        """Return one of the thresholds, by its number."""
        return self.statistic(partial(np.take, indices=threshold, axis=1))

    @property
    def defined(self) -> Curve:
        """The curve at the thresholds that have a value, if any has."""
        places = np.isfinite(self.values).any(axis=0)
        return self.statistic(partial(np.compress, places, axis=1)) if places.any() else self

    def minus(self, other: Curve) -> Curve:
        """Return the difference from a curve measured on these documents.

        Two means of several twins are of equally many.
        """
        return self._with(other, np.subtract)

    def highest(self, other: Curve) -> Curve:
        """Return the higher of the two, place by place."""
        return self._with(other, np.maximum)

    def _with(self, other: Curve, combine: Callable[[_Values, _Values], _Values]) -> Curve:
        without = None
        if self.without is not None or other.without is not None:
            without = combine(self._without_each(), other._without_each())
        return Curve(combine(self.values, other.values), combine(self.drawn, other.drawn), without)

    def _without_each(self) -> _Values:
        return self.values[..., None] if self.without is None else self.without

    def interval(self, freedom: float = math.inf) -> Interval | None:
        """Return the 95% interval of a number, see ``interval_of_mean``."""
        return interval_of_mean(self.values, self.drawn, freedom, self.without)


def curve_of(attention: ProbeResult, measure: Measure, overlap: bool) -> Curve:
    """Return the curve of a model's measurement, thresholds rising."""
    places = [place_of(attention, threshold, overlap) for threshold in thresholds_of(attention)]
    values = attention[f"overall_{measure}"].numpy()
    drawn = attention[f"overall_{measure}_resampled"].numpy()
    return Curve(values[:, places], drawn[:, places])


def mean_of(twins: Sequence[Curve]) -> Curve:
    """Return the mean of a model's copies with random weights."""
    values = np.array([curve.values for curve in twins])
    drawn = np.mean([curve.drawn for curve in twins], axis=0)
    n = len(values)
    mean = values.mean(axis=0)
    if n == 1:
        return Curve(mean, drawn)
    without = [(n * mean - of_twin) / (n - 1) for of_twin in values]
    return Curve(mean, drawn, np.stack(without, axis=-1))


def mean_against_one(twins: Sequence[Curve]) -> Curve:
    """Return the mean of several copies, with the variation of its difference from one more copy.

    Of ``n`` copies with variance ``v``, that of the mean is ``v / n``, and that of the difference ``n + 1`` times it.
    """
    mean = mean_of(twins)
    if mean.without is None:
        return mean
    centre = mean.values[..., None]
    return replace(mean, without=centre + math.sqrt(len(twins) + 1) * (mean.without - centre))


def thresholds_of(attention: ProbeResult) -> list[float]:
    """Return the thresholds of a model's measurement, rising."""
    return sorted({float(threshold) for threshold, _ in attention.metadata["variants"]})


def place_of(measurement: ProbeResult, threshold: float, overlap: bool) -> int:
    """Return the place of a variant in a model's measurement."""
    variants = [(float(each), bool(other)) for each, other in measurement.metadata["variants"]]
    return variants.index((threshold, overlap))
