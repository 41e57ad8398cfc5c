"""Axes of panels, and labels beside their curves."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes

from probes.engine.plots import plot_band as plot_band
from probes.engine.plots import plot_chance_band as plot_chance_band


def outer_labels(axes: Sequence[Axes], columns: int) -> None:
    """Show names and numbers of the axes only at the left, and below the lowest panel of each column.

    Unlike matplotlib's ``label_outer``, it keeps the labels of a panel if the last row has none below it.

    Args:
        axes: of ``subplots``, row by row, with their names.
        columns: in a row.
    """
    for i, axis in enumerate(axes):
        name = axis.get_xlabel()
        axis.label_outer()
        if i + columns >= len(axes):
            axis.set_xlabel(name)
            axis.tick_params(labelbottom=True)


def step_axis(axis: Axes) -> None:
    """Draw training steps along x, on a logarithmic scale that includes 0."""
    axis.set_xscale("symlog", linthresh=1)
    axis.set_xlabel("training step")


def layer_axis(axis: Axes) -> None:
    """Draw layers along x, in whole numbers."""
    axis.locator_params(axis="x", integer=True, min_n_ticks=1)
    axis.set_xlabel("layer")


def bare_axis(axis: Axes) -> None:
    """Draw a thin frame without numbers, for points whose axes have no meaning."""
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(visible=True, color="#c5ccd3", linewidth=0.8)


def plain_ticks(axis: Axes, which: Literal["x", "y"] = "y") -> None:
    """Write numbers such as 0.5 and 20 along a logarithmic axis whose limits are final, unless it spans 5 decades."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axis.get_ylim() if which == "y" else axis.get_xlim()
    along = axis.yaxis if which == "y" else axis.xaxis
    if high / low > 1e5:
        return
    if high / low < 100:
        along.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > 3 else (1, 1.2, 1.5, 2, 3, 5, 8)))
    along.set_major_formatter(StrMethodFormatter("{x:g}"))
    along.set_minor_formatter(NullFormatter())


def direct_labels(axis: Axes, labels: Sequence[tuple[float, str, Any]], size: float = 8.5) -> None:
    """Write names of curves at the right of a panel, at their last values.

    Names that would overlap are moved apart, and lines lead to them. Call it when the panel's limits are final.

    Args:
        axis: the panel.
        labels: ``(value, name, color)``. Labels with a NaN are left out.
        size: of the letters, in points.
    """
    known = sorted((label for label in labels if np.isfinite(label[0])), key=itemgetter(0))
    if not known:
        return
    figure: Any = axis.get_figure()
    height = axis.get_position().height * figure.get_size_inches()[1] * 72 * 0.9
    gap = 1.15 * size / height
    wanted = [float(axis.transAxes.inverted().transform(axis.transData.transform((0, y)))[1]) for y, _, _ in known]
    wanted = [min(max(y, 0.0), 1.0) for y in wanted]
    places = _apart(wanted, gap)
    moved = np.abs(np.subtract(places, wanted)) > gap / 4
    for place, at, led, (_, name, color) in zip(places, wanted, moved, known, strict=True):
        if led:
            look = {"arrowstyle": "-", "color": color, "lw": 0.6, "shrinkA": 0, "shrinkB": 0}
            ends: dict[str, Any] = {"xy": (1.005, at), "xytext": (1.035, place)}
            axis.annotate("", **ends, xycoords="axes fraction", arrowprops=look, annotation_clip=False)
        x = 1.045 if moved.any() else 1.01
        axis.text(x, place, name, color=color, fontsize=size, va="center", transform=axis.transAxes)


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Return ascending places at least ``gap`` apart, near the given ones, and within 0 and 1 if there is room.

    Example:
        >>> [round(place, 3) for place in _apart([0.2, 0.5, 0.5, 0.9], gap=0.1)]
        [0.2, 0.45, 0.55, 0.9]
    """
    groups: list[tuple[float, int]] = []  # centre and number of places that touch
    for place in places:
        groups.append((place, 1))
        while True:
            groups[-1] = (_inside(*groups[-1], gap), groups[-1][1])
            if len(groups) < 2 or groups[-1][0] - groups[-2][0] >= gap * (groups[-1][1] + groups[-2][1]) / 2:
                break
            (a, n), (b, m) = groups[-2:]
            groups[-2:] = [((a * n + b * m) / (n + m), n + m)]
    moved: list[float] = []
    for centre, n in groups:
        moved += [centre + gap * (i - (n - 1) / 2) for i in range(n)]
    return moved


def _inside(centre: float, n: int, gap: float) -> float:
    half = gap * (n - 1) / 2
    return min(max(centre, half), max(1 - half, half))
