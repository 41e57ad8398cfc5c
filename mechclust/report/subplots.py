"""Figures of panels with a faint grid, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.axes import outer_labels

_MAX_COLUMNS = 5  # of a single row of panels


def subplots(
    n: int,
    columns: int | None = None,
    *,
    size: tuple[float, float],
    grid: Literal["both", "x", "y"] | None = "both",
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``n`` panels, row by row.

    Args:
        n: how many.
        columns: in a row, by default all of them.
        size: width and height of one panel, in inches.
        grid: along which axis each panel has a faint grid.
        options: for ``Figure.subplots``, such as ``sharey=True``.

    Example:
        >>> figure, (left, right) = subplots(2, size=(5, 4), sharey=True)
        >>> figure.get_size_inches().tolist()
        [10.0, 4.0]
    """
    columns = columns or n
    rows = -(-n // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for surplus in axes[n:]:
        surplus.remove()
    if grid is not None:
        for axis in axes[:n]:
            axis.grid(alpha=0.25, axis=grid)
    return figure, axes[:n]


def subplot_rows(
    titles: Sequence[str],
    ylabels: Sequence[str],
    *,
    size: tuple[float, float],
    x_axis: Callable[[Axes], None],
) -> tuple[Figure, list[Axes]]:
    """Return titled panels of measures from 0 to 1, a row for each label of the y axis. A single row is broken up.

    Args:
        titles: of the panels in a row.
        ylabels: of the rows.
        size: width and height of one panel, in inches.
        x_axis: names the x axis of a panel, such as ``layer_axis`` or ``step_axis``.

    Example:
        >>> from mechclust.report.axes import layer_axis
        >>> figure, axes = subplot_rows(["a", "b"], ["ARI", "CKA"], size=(3, 2), x_axis=layer_axis)
        >>> [axis.get_ylabel() for axis in axes], [axis.get_xlabel() for axis in axes]
        (['ARI', '', 'CKA', ''], ['', '', 'layer', 'layer'])
    """
    columns = len(titles) if len(ylabels) > 1 else min(_MAX_COLUMNS, len(titles))
    figure, axes = subplots(len(titles) * len(ylabels), columns, size=size, sharex=True, sharey=True)
    for axis in axes:
        axis.set_ylim(-0.05, 1.05)
        x_axis(axis)
    for axis, title in zip(axes, titles, strict=False):
        axis.set_title(title)
    leftmost = axes[::columns]
    for axis, ylabel in zip(leftmost, ylabels if len(ylabels) > 1 else [*ylabels] * len(leftmost), strict=True):
        axis.set_ylabel(ylabel)
    outer_labels(axes, columns)
    return figure, axes
