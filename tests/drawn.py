"""What a figure draws, as text: its data, scales, limits, words and colours, without rendering it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import FixedFormatter, FixedLocator


def picture(figure: Figure) -> bytes:
    """The lines of ``drawn``, in place of a PNG."""
    return "\n".join(drawn(figure)).encode()


def drawn(figure: Figure) -> Iterator[str]:
    """A line for each thing that a figure draws, in order. Numbers have six digits."""
    yield f"size {_numbers(figure.get_size_inches())}"
    for legend in figure.legends:
        yield f"legend {_words(legend)}"
    for text in figure.texts:
        yield f"text {text.get_text()!r}"
    for place, axes in enumerate(figure.axes):
        for line in _in_axes(axes):
            yield f"axes {place} {line}"


def _in_axes(axes: Axes) -> Iterator[str]:
    yield f"titles {[axes.get_title(loc=side) for side in ('left', 'center', 'right')]}"
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        yield f"{name} {axis.get_label_text()!r} {axis.get_scale()} {_numbers(axis.get_view_interval())}"
        if isinstance(axis.get_major_locator(), FixedLocator):
            yield f"{name} ticks {_numbers(axis.get_major_locator().locs)}"
        if isinstance(axis.get_major_formatter(), FixedFormatter):
            yield f"{name} names {list(axis.get_major_formatter().seq)}"
    for line in axes.lines:
        look = (line.get_linestyle(), line.get_linewidth(), line.get_marker(), line.get_markersize(), line.get_label())
        yield f"line {_color(line.get_color())} {look} {_numbers(line.get_xydata())}"
    for patch in axes.patches:
        yield f"patch {_color(patch.get_facecolor())} {patch.get_hatch()} {_numbers(patch.get_path().vertices)}"
    for collection in axes.collections:
        colors = [_color(color) for color in collection.get_facecolor()][:20]
        shapes = [_numbers(path.vertices) for path in collection.get_paths()]
        yield f"collection {colors} {_numbers(collection.get_offsets())} {_numbers(collection.get_array())} {shapes}"
    for image in axes.images:
        yield f"image {image.get_cmap().name} {_numbers(image.get_clim())} {_numbers(image.get_array())}"
    for text in axes.texts:
        yield f"text {text.get_text()!r} {_color(text.get_color())} {_numbers(text.get_position())}"
    legend = axes.get_legend()
    if legend is not None:
        yield f"legend {_words(legend)}"


def _words(legend: Legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def _color(color: Any) -> str:
    return to_hex(color, keep_alpha=True)


def _numbers(values: Any) -> list[str]:
    if values is None:
        return []
    return [f"{x:.6g}" for x in np.ma.filled(np.ma.asarray(values, dtype=float), np.nan).ravel()]
