"""The sandbox as a still figure, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mechclust.report.figure_text import figure_text
from mechclust.sandbox.draw import draw_panel
from mechclust.sandbox.legend import draw_legend
from mechclust.sandbox.panels import Grid, SandboxPanel, sandbox_panel_grid
from mechclust.sandbox.run import SandboxRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_PANEL_WIDTH = 3.1  # inches of a panel
_PANEL_HEIGHT = 2.35


def sandbox_figure(run: SandboxRun, epoch: int, panels: Iterable[str] | Grid | None = None) -> Figure:
    """Draw any panels of the sandbox at one epoch of a run.

    Args:
        run: a run from ``record_sandbox`` or ``sandbox_run``.
        epoch: one of ``run.epochs``.
        panels: names of panels, rows of names, or ``None`` for all.

    Raises:
        InputError: for an unknown panel, or an epoch that was not kept. The message names the nearest.

    Example:
        >>> sandbox_figure(run, 244, ["xi", "class_map", "loss"]).savefig("epoch-244.png")  # doctest: +SKIP
    """
    frame = run.frame(epoch)
    figure, draw = sandbox_figure_and_draw(run, sandbox_panel_grid(panels, run.panels))
    draw(frame)
    return figure


def sandbox_figure_and_draw(
    run: SandboxRun, rows: Sequence[Sequence[SandboxPanel]]
) -> tuple[Figure, Callable[[int], None]]:
    """Return a figure of rows of panels, and the function that draws a frame of the run on it."""
    from matplotlib.figure import Figure

    across = max(map(len, rows))
    figure = Figure(figsize=(_PANEL_WIDTH * across, _PANEL_HEIGHT * len(rows) + 0.55), layout="constrained")
    grid = figure.add_gridspec(len(rows), across)
    axes: list[tuple[SandboxPanel, Axes]] = []
    for i, row in enumerate(rows):
        axes += [(panel, figure.add_subplot(grid[i, j])) for j, panel in enumerate(row)]
    draw_legend(figure, run, [panel for panel, _ in axes])
    title = figure.suptitle("", fontsize=11, ha="center")
    return figure, partial(_draw, title, axes, run)


def _draw(title: Text, axes: Sequence[tuple[SandboxPanel, Axes]], run: SandboxRun, frame: int) -> None:
    for panel, axis in axes:
        _wipe_axis(axis)
        draw_panel(axis, panel, run, frame)
    title.set_text(f"{figure_text(run.title, 120)}: {run.unit} {run.epochs[frame]:,} of {run.epochs[-1]:,}")


def _wipe_axis(axis: Axes) -> None:
    """Remove earlier drawings. The ticks stay, since ``axis.clear()`` would spend most of a film on making them."""
    for artist in [*axis.lines, *axis.collections, *axis.images, *axis.texts, *axis.patches]:
        artist.remove()
    legend = axis.get_legend()
    if legend is not None:
        legend.remove()
