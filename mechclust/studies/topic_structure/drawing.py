"""What the figures of the topic-structure study share: tables over words, and points of several seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

DARK = "#555555"  # of lines and words beside the data


def word_table(
    axis: Axes, table: Float[np.ndarray, "n n"], top: float, ticks: Float[np.ndarray, "topic"], *, signed: bool = True
) -> AxesImage:
    """Draw a table over words, ordered by topic.

    Args:
        axis: where to draw.
        table: one row and one column per word.
        top: where the colour scale ends.
        ticks: place of the number of each topic.
        signed: whether the scale has negative numbers too, in other colours.
    """
    colors: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -top} if signed else {"cmap": "viridis", "vmin": 0.0}
    image = axis.imshow(table, vmax=top, interpolation="nearest", **colors)
    topics = [str(topic) for topic in range(len(ticks))]
    axis.set_xticks(ticks, topics)
    axis.set_yticks(ticks, topics)
    axis.tick_params(length=0)
    return image


def color_limit(entries: Shaped[np.ndarray, "*shape"], percentile: float) -> float:
    """Return a percentile of the sizes of entries, where a colour scale ends; 1 if it is 0."""
    return float(np.nanpercentile(np.abs(entries), percentile)) or 1.0


def topic_middles(n_words: int, words_per_topic: int) -> Float[np.ndarray, "topic"]:
    """Return the middle of each topic's words in a table over words."""
    return np.arange(n_words // words_per_topic) * words_per_topic + words_per_topic / 2 - 0.5


def seed_points(
    axis: Axes, values: Float[np.ndarray, "seed"], y: float, color: str, marker: str, label: str | None = None
) -> None:
    """Draw one point for each seed at a height, and the mean as a line."""
    height = np.full(len(values), y)
    axis.plot(values, height, ls="", marker=marker, ms=4.5, color=color, alpha=0.6, mew=0, label=label)
    axis.plot([values.mean()] * 2, [y - 0.1, y + 0.1], color=color, lw=1.6)
