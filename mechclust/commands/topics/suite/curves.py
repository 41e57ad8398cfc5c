"""Attention ratios of an encoder by threshold, with what varies about them: what tables and claims are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from probes import ProbeResult

Measure = Literal["ratio", "matched"]


@dataclass(frozen=True, eq=False)
class Curve:
    """A measure by threshold, for each topic model.

    Attributes:
        values: ``[seed threshold]``.
        drawn: ``[seed threshold resample]``, of resampled documents.
    """

    values: np.ndarray
    drawn: np.ndarray

    def statistic(self, of: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """``[seed]`` and ``[seed resample]`` of a function that takes thresholds along axis 1 to one number."""
        return of(self.values), of(self.drawn)

    def noisy(self, around: np.ndarray, seeds: np.ndarray, resample: int) -> Curve:
        """Another curve with the variation of this one.

        Args:
            around: ``[threshold]`` its expected values.
            seeds: ``[seed]`` numbers of the topic models whose deviations it has, drawn with replacement.
            resample: number of the resampled documents whose deviations it has.
        """
        n = len(self.values)
        own = (self.values - self.values.mean(axis=0))[seeds] * np.sqrt(n / max(1, n - 1))
        off = self.drawn - self.drawn.mean(axis=2, keepdims=True)
        values = around + own + off[:, :, resample]
        return Curve(values, values[:, :, None] + off)


def curve_of(attention: ProbeResult, measure: Measure, overlap: bool) -> Curve:
    """Of a suite's measurement, thresholds rising."""
    variants = attention.metadata["variants"]
    chosen = sorted((float(t), i) for i, (t, with_overlap) in enumerate(variants) if bool(with_overlap) == overlap)
    places = [i for _, i in chosen]
    values = attention[f"overall_{measure}"].numpy()[:, places]
    return Curve(values, attention[f"overall_{measure}_resampled"].numpy()[:, places])


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean of several, such as of an encoder's random twins."""
    return Curve(np.mean([c.values for c in curves], axis=0), np.mean([c.drawn for c in curves], axis=0))


def thresholds_of(attention: ProbeResult) -> list[float]:
    """Rising."""
    return sorted({float(t) for t, _ in attention.metadata["variants"]})
