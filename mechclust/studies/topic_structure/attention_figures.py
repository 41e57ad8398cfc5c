"""The figure of E4: the published attention table beside ours, with right labels and with shifted ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, RED, SOFT
from mechclust.report.subplots import subplots
from mechclust.studies.topic_structure.attention_table import (
    FIRST,
    SPANS,
    TABLE,
    TABLE_COLUMNS,
    WHOLE,
)
from mechclust.studies.topic_structure.config import ROWS
from mechclust.studies.topic_structure.labelling import RIGHT, SHIFTED

_READINGS = {(RIGHT, FIRST): (BLUE, "o", 0.0), (SHIFTED, WHOLE): (RED, "s", 0.25)}  # colour, marker, place


def attention_figure(means: Mapping[str, Float[np.ndarray, "seed row span bucket"]]) -> Figure:
    """Draw each number of the published table, and ours of every seed, one panel per bucket."""
    figure, axes = subplots(len(TABLE_COLUMNS), 3, size=(3.0, 3.2), sharey=True, grid="x")
    for bucket, axis in enumerate(axes):
        heights = np.arange(len(ROWS)) - 0.25
        axis.plot(TABLE[:, bucket], heights, ls="", marker="|", ms=11, mew=2, color=SOFT, label="published")
        for (labels, span), (color, marker, place) in _READINGS.items():
            ours = means[labels][:, :, SPANS.index(span), bucket]
            for row in range(len(ROWS)):
                name = f"ours, {labels}, {span}" if row == 0 else None
                _seed_points(axis, ours[:, row], row + place, color, marker, name)
        axis.set(title=TABLE_COLUMNS[bucket], xlabel="mean attention", ylim=(len(ROWS) - 0.5, -0.6), xlim=(0, None))
        axis.locator_params(axis="x", nbins=4)
    axes[0].set_yticks(range(len(ROWS)), list(ROWS))
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def _seed_points(
    axis: Axes, values: Float[np.ndarray, "seed"], y: float, color: str, marker: str, label: str | None
) -> None:
    """Draw one point for each seed at a height, and the mean as a line."""
    height = np.full(len(values), y)
    axis.plot(values, height, ls="", marker=marker, ms=4.5, color=color, alpha=0.6, mew=0, label=label)
    axis.plot([values.mean()] * 2, [y - 0.1, y + 0.1], color=color, lw=1.6)
