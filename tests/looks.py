"""How a figure looks beyond what ``drawn`` says of it: places, widths, order, sizes and colours of edges and words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Annotation, Text


def looks(figure: Figure) -> Iterator[str]:
    """A line for each thing that a figure draws, in order."""
    for text in figure.texts:
        yield f"text {_text(text)}"
    for legend in figure.legends:
        yield f"legend {_legend(legend)}"
    for place, axes in enumerate(figure.axes):
        for line in _in_axes(axes):
            yield f"axes {place} {line}"


def _in_axes(axes: Axes) -> Iterator[str]:
    spines = [name for name, spine in axes.spines.items() if spine.get_visible()]
    place = axes.get_position(original=True).bounds
    shared = [len(group.get_siblings(axes)) for group in (axes.get_shared_x_axes(), axes.get_shared_y_axes())]
    yield f"at {_rounded(place)} {shared} {axes.get_aspect()} {axes.axison} {spines} {_color(axes.get_facecolor())}"
    for side in ("left", "center", "right"):
        title = {"left": axes._left_title, "center": axes.title, "right": axes._right_title}[side]
        yield f"title {_text(title)}"
    for axis in (axes.xaxis, axes.yaxis):
        yield f"{axis.axis_name} {_axis(axis)}"
    for line in axes.lines:
        colors = [_color(line.get_markerfacecolor()), _color(line.get_markeredgecolor())]
        yield f"line {_artist(line)} {colors} {line.get_markeredgewidth()} {line.get_drawstyle()}"
    for patch in axes.patches:
        yield f"patch {_artist(patch)} {_color(patch.get_edgecolor())} {patch.get_linewidth()} {patch.get_linestyle()}"
    for collection in axes.collections:
        edges = [_color(color) for color in collection.get_edgecolor()][:20]
        sizes = collection.get_sizes() if hasattr(collection, "get_sizes") else []
        widths = np.ravel(collection.get_linewidth())
        dashes = collection.get_linestyle()
        yield f"collection {_artist(collection)} {edges} {_rounded(sizes)} {_rounded(widths)} {dashes}"
    for image in axes.images:
        norm = type(image.norm).__name__
        yield f"image {_artist(image)} {image.get_extent()} {image.get_interpolation()} {image.origin} {norm}"
    for text in axes.texts:
        yield f"text {_text(text)}"
    legend = axes.get_legend()
    if legend is not None:
        yield f"legend {_legend(legend)}"


def _artist(artist: Artist) -> str:
    """What all artists have: whether they are seen, through what, and above what; and which coordinates they use."""
    axes = artist.axes
    transforms = {"data": axes.transData, "axes": axes.transAxes} if axes is not None else {}
    moves = [name for name, transform in transforms.items() if artist.get_transform() == transform]
    return f"{artist.get_visible()} {artist.get_alpha()} {artist.get_zorder()} {moves} {artist.get_clip_on()}"


def _axis(axis: Axis) -> str:
    label = axis.label
    ticks = axis.get_tick_params(which="major")
    grid = [line.get_visible() for line in axis.get_gridlines()[:1]]
    names = axis.get_majorticklabels()[:1] if len(axis.get_ticklocs()) else []
    looks_of_names = [(name.get_fontsize(), name.get_fontweight(), name.get_rotation()) for name in names]
    return f"{_text(label)} {sorted((k, str(v)) for k, v in ticks.items())} {grid} {looks_of_names}"


def _text(text: Text) -> str:
    font = (text.get_fontsize(), text.get_fontweight(), text.get_fontstyle(), text.get_rotation())
    place = (text.get_horizontalalignment(), text.get_verticalalignment())
    moved = (text.xy, text.xycoords, text.anncoords) if isinstance(text, Annotation) else ()
    arrow = text.arrow_patch is not None if isinstance(text, Annotation) else False
    return f"{_artist(text)} {_color(text.get_color())} {font} {place} {_place(moved)} {arrow}"


def _place(moved: tuple[Any, ...]) -> list[str]:
    """Where an annotation points, if its coordinates have names."""
    return [str(part) if isinstance(part, str) else _seen(part) for part in moved]


def _seen(part: Any) -> str:
    try:
        return str(_rounded(part))
    except (TypeError, ValueError):
        return type(part).__name__


def _legend(legend: Legend) -> str:
    colors = [_handle(handle) for handle in legend.legend_handles]
    fonts = [text.get_fontsize() for text in legend.get_texts()]
    shape = (legend._loc, legend._ncols, legend.markerscale)
    return f"{shape} {legend.get_frame_on()} {legend.get_title().get_text()!r} {fonts} {colors}"


def _handle(handle: Artist | None) -> str:
    for name in ("get_color", "get_facecolor"):
        if hasattr(handle, name):
            values = np.atleast_1d(np.asarray(getattr(handle, name)(), dtype=object))
            return f"{type(handle).__name__} {values.tolist()}"
    return type(handle).__name__


def _color(color: Any) -> str:
    return color if isinstance(color, str) and color in ("none", "auto") else to_hex(color, keep_alpha=True)


def _rounded(values: Any) -> list[str]:
    return [f"{x:.6g}" for x in np.ravel(np.asarray(values, dtype=float))]
