"""The figure of the readings: how far each is from the published attention table."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, GREEN, GREY, RED, subplots
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.reading_findings import NEAR, verdicts_of
from mechclust.studies.topic_structure.readings import STOPS, TABLE, Readings, distance_of

_STYLE = dict(zip(STOPS, ((BLUE, "o"), (GREEN, "s"), (RED, "D")), strict=True))
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0)
_SAID = {  # of the stops of one reading, the first of these
    "holds": "compatible",
    "undecided": "undecided",
    "does not hold": "not compatible",
    "diverged": "training diverged",
}


def readings(config: TopicStructureConfig, found: Readings) -> Figure:
    """Each reading's distance from the published 15 numbers at three stops, one point per seed; the best verdict."""
    order = list(dict.fromkeys(name for name, _ in found.names))
    figure, (axis,) = subplots(1, size=(8.2, 1.6 + 0.36 * len(order)), grid="x")
    best: dict[str, str] = {}
    for i, ((reading, stop), verdict) in enumerate(zip(found.names, verdicts_of(found), strict=True)):
        color, marker = _STYLE[stop]
        y = order.index(reading) + 0.24 * (STOPS.index(stop) - 1)
        values = found.distance[:, i]
        axis.plot(values, np.full(len(values), y), ls="", marker=marker, ms=4.5, color=color, alpha=0.6, mew=0)
        axis.plot([values.mean()] * 2, [y - 0.1, y + 0.1], color=color, lw=1.6)
        said = verdict if np.isfinite(values).all() else "diverged"
        if reading not in best or [*_SAID].index(said) < [*_SAID].index(best[reading]):
            best[reading] = said
    for y, reading in enumerate(order):
        axis.text(1.01, y, _SAID[best[reading]], va="center", fontsize=8.5, transform=axis.get_yaxis_transform())
    uniform = float(distance_of(np.full_like(TABLE, -np.log(config.text[1]))))
    for x, text in ((NEAR.value, "compatible\nup to here"), (uniform, "uniform\nattention")):
        axis.axvline(x, color=GREY, ls=":", lw=1.2)
        axis.text(x, -0.75, text, ha="center", va="bottom", fontsize=8, color="#555555")
    for stop, (color, marker) in _STYLE.items():
        axis.plot([], [], ls="", marker=marker, ms=4.5, color=color, label=f"stopped: {stop}")
    axis.set(xscale="log", ylim=(len(order) - 0.5, -0.6))
    axis.set_yticks(range(len(order)), [name.replace(" ", ", ") for name in order])
    axis.set_xticks(_TICKS, [f"{x:g}" for x in _TICKS])
    axis.minorticks_off()
    finite = found.distance[np.isfinite(found.distance)]
    low, high = (float(end(finite, initial=0.1)) for end in (np.min, np.max))
    axis.set_xlim(0.8 * low, max(1.2, 1.2 * high))
    axis.set_xlabel("distance from the published table (root mean square of log(ours / published))")
    figure.legend(loc="outside lower center", ncols=len(STOPS), frameon=False)
    return figure
