"""What the figures of the topic-structure study share: tables over words, and points of several seeds."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

DARK = "#555555"  # of lines and words beside the data


def word_table(
    axis: Axes, table: Float[np.ndarray, "n n"], percentile: float, ticks: Float[np.ndarray, "topic"]
) -> AxesImage:
    """Draw a table over words, ordered by topic.

    Args:
        axis: where to draw.
        table: one row and one column per word.
        percentile: of the sizes of entries, where the colour scale ends.
        ticks: place of the number of each topic.
    """
    top = float(np.percentile(np.abs(table), percentile)) or 1.0
    image = axis.imshow(table, vmin=-top, vmax=top, cmap="RdBu_r", interpolation="nearest")
    topics = [str(topic) for topic in range(len(ticks))]
    axis.set_xticks(ticks, topics)
    axis.set_yticks(ticks, topics)
    axis.tick_params(length=0)
    return image


def seed_points(
    axis: Axes, values: Float[np.ndarray, "seed"], y: float, color: str, marker: str, label: str | None = None
) -> None:
    """Draw one point for each seed at a height, and the mean as a line."""
    height = np.full(len(values), y)
    axis.plot(values, height, ls="", marker=marker, ms=4.5, color=color, alpha=0.6, mew=0, label=label)
    axis.plot([values.mean()] * 2, [y - 0.1, y + 0.1], color=color, lw=1.6)
