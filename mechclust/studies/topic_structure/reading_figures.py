"""The figure of the readings: how far each is from the published attention table."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, GREEN, GREY, RED, subplots
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.drawing import DARK, seed_points
from mechclust.studies.topic_structure.reading_findings import NEAR, verdicts_of
from mechclust.studies.topic_structure.readings import BEST, END, HALF, STOPS, Readings, uniform_distance

_LOOKS = {BEST: (BLUE, "o"), HALF: (GREEN, "s"), END: (RED, "D")}
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0)
_DIVERGED = "training diverged"
# Words for the verdicts on a reading's stops. The first that one of them has is written.
_WORDS = {"holds": "compatible", "undecided": "undecided", "does not hold": "not compatible", _DIVERGED: _DIVERGED}


def readings_figure(config: TopicStructureConfig, readings: Readings) -> Figure:
    """Draw each reading's distance from the published 15 numbers at three stops, with the best verdict."""
    order = list(dict.fromkeys(name for name, _ in readings.names))
    figure, (axis,) = subplots(1, size=(8.2, 1.6 + 0.36 * len(order)), grid="x")
    for place, (reading, stop) in enumerate(readings.names):
        y = order.index(reading) + 0.24 * (STOPS.index(stop) - 1)
        seed_points(axis, readings.distance[:, place], y, *_LOOKS[stop])
    for y, words in enumerate(_best_verdicts(readings, order)):
        axis.text(1.01, y, words, va="center", fontsize=8.5, transform=axis.get_yaxis_transform())
    for x, text in ((NEAR.value, "compatible\nup to here"), (uniform_distance(config), "uniform\nattention")):
        axis.axvline(x, color=GREY, ls=":", lw=1.2)
        axis.text(x, -0.75, text, ha="center", va="bottom", fontsize=8, color=DARK)
    for stop, (color, marker) in _LOOKS.items():
        axis.plot([], [], ls="", marker=marker, ms=4.5, color=color, label=f"stopped: {stop}")
    axis.set_ylim(len(order) - 0.5, -0.6)
    axis.set_yticks(range(len(order)), [name.replace(" ", ", ") for name in order])
    _distance_axis(axis, readings)
    figure.legend(loc="outside lower center", ncols=len(STOPS), frameon=False)
    return figure


def _best_verdicts(readings: Readings, order: list[str]) -> list[str]:
    """Return the best verdict on the stops of each reading, in words."""
    verdicts: dict[str, set[str]] = {reading: set() for reading in order}
    for (reading, _), whole, verdict in zip(readings.names, readings.whole, verdicts_of(readings), strict=True):
        verdicts[reading].add(verdict if whole else _DIVERGED)
    return [next(words for verdict, words in _WORDS.items() if verdict in verdicts[reading]) for reading in order]


def _distance_axis(axis: Axes, readings: Readings) -> None:
    finite = readings.distance[np.isfinite(readings.distance)]
    low = float(np.min(finite, initial=0.1))
    high = float(np.max(finite, initial=0.1))
    axis.set_xscale("log")
    axis.set_xticks(_TICKS, [f"{x:g}" for x in _TICKS])
    axis.set_xlim(0.8 * low, max(1.2, 1.2 * high))  # after the ticks, which would widen it
    axis.minorticks_off()
    axis.set_xlabel("distance from the published table (root mean square of log(ours / published))")
