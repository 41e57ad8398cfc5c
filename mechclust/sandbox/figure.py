"""The sandbox as a still figure, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mechclust.report.text import figure_text
from mechclust.sandbox.draw import draw_panel, wipe_axis
from mechclust.sandbox.legend import draw_legend
from mechclust.sandbox.panels import Grid, SandboxPanel, panel_grid
from mechclust.sandbox.run import SandboxRun
from tasks import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_WIDTH = 3.1  # inches of a panel
_HEIGHT = 2.35


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
    figure, draw = figure_of_panels(run, panel_grid(panels, run.panels))
    draw(frame)
    return figure


def sandbox_strip(
    run: SandboxRun, epochs: Sequence[int], panels: Sequence[str], *, titles: Sequence[str] = ()
) -> Figure:
    """Draw some panels of the sandbox at several epochs: one row per panel, one column per epoch.

    Args:
        run: a run from ``record_sandbox`` or ``sandbox_run``.
        epochs: some of ``run.epochs``.
        panels: names of panels.
        titles: of the columns, by default the epochs.

    Raises:
        InputError: for no epochs, one that was not kept, an unknown panel, or another number of titles than epochs.

    Example:
        >>> sandbox_strip(run, [0, 244, 360, 999], ["xi", "class_map"]).savefig("phases.png")  # doctest: +SKIP
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    chosen = [panel for (panel,) in panel_grid([[name] for name in panels], run.panels)]
    frames = [run.frame(epoch) for epoch in epochs]
    if not frames:
        raise InputError("epochs is empty; expected some of the epochs of the run")
    if titles and len(titles) != len(epochs):
        raise InputError(f"there are {len(titles)} titles for {len(epochs)} epochs; expected one for each")
    layout = ConstrainedLayoutEngine(h_pad=0.065)  # a row's titles stay clear of the numbers above
    figure = Figure(figsize=(_WIDTH * len(frames), _HEIGHT * len(chosen) + 0.75), layout=layout)
    axes = figure.subplots(len(chosen), len(frames), squeeze=False)
    draw_legend(figure, run, chosen)
    for row, panel in zip(axes, chosen, strict=True):
        for axis, frame in zip(row, frames, strict=True):
            draw_panel(axis, panel, run, frame)
    names = titles or [f"{run.unit} {epoch:,}" for epoch in epochs]
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(
            f"{figure_text(name, 60)}\n{figure_text(chosen[0].title, 60)}", fontsize=9, fontweight="bold", loc="left"
        )
    figure.suptitle(figure_text(run.title, 120), fontsize=11)
    return figure


def figure_of_panels(run: SandboxRun, rows: Sequence[Sequence[SandboxPanel]]) -> tuple[Figure, Callable[[int], None]]:
    """Return a figure of rows of panels, and the function that draws a frame of the run on it."""
    from matplotlib.figure import Figure

    across = max(map(len, rows))
    figure = Figure(figsize=(_WIDTH * across, _HEIGHT * len(rows) + 0.55), layout="constrained")
    grid = figure.add_gridspec(len(rows), across)
    axes: list[tuple[SandboxPanel, Axes]] = []
    for i, row in enumerate(rows):
        axes += [(panel, figure.add_subplot(grid[i, j])) for j, panel in enumerate(row)]
    draw_legend(figure, run, [panel for panel, _ in axes])
    title = figure.suptitle("", fontsize=11, ha="center")
    return figure, partial(_draw, title, axes, run)


def _draw(title: Text, axes: Sequence[tuple[SandboxPanel, Axes]], run: SandboxRun, frame: int) -> None:
    for panel, axis in axes:
        wipe_axis(axis)
        draw_panel(axis, panel, run, frame)
    title.set_text(f"{figure_text(run.title, 120)}: {run.unit} {run.epochs[frame]:,} of {run.epochs[-1]:,}")
