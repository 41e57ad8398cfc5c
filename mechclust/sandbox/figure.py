"""The sandbox as a still figure and as a film, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.report.text import figure_text
from mechclust.sandbox.draw import draw_legend, draw_panel, wipe_axis
from mechclust.sandbox.film import check_film, write_film
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
    figure, axes, title = _layout(run, panel_grid(panels, run.panels))
    _draw(title, axes, run, frame)
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


def sandbox_film(
    run: SandboxRun,
    path: str | Path,
    *,
    panels: Iterable[str] | Grid | None = None,
    fps: int = 12,
    epochs: Sequence[int] | None = None,
    dpi: int = 80,
) -> Path:
    """Write a film of any panels of the sandbox, one frame per epoch.

    With all panels, a frame takes about a second. With fewer, less.

    Args:
        run: a run from ``record_sandbox`` or ``sandbox_run``.
        path: ends in ``.gif``, or in ``.mp4``, for which ffmpeg is needed.
        panels: names of panels, rows of names, or ``None`` for all.
        fps: frames per second.
        epochs: some of ``run.epochs``. ``None``: all.
        dpi: dots per inch. A panel is about 3.1 by 2.35 inches.

    Returns:
        The path. The file holds the whole film or, after an error, its previous content.

    Raises:
        InputError: for an unknown file ending, a missing ffmpeg, fewer than two epochs, or one that was not kept.

    Example:
        >>> sandbox_film(run, "run.gif", panels=["xi", "class_map", "loss"])  # doctest: +SKIP
        PosixPath('run.gif')
    """
    path = Path(path)
    check_film(path, fps)
    rows = panel_grid(panels, run.panels)
    frames = [run.frame(epoch) for epoch in (run.epochs if epochs is None else epochs)]
    if len(frames) < 2:
        raise InputError(f"epochs has {len(frames)}; a film needs at least 2, or sandbox_figure shows one")
    figure, axes, title = _layout(run, rows)
    return write_film(figure, path, partial(_draw, title, axes, run), frames, fps=fps, dpi=dpi)


def _layout(
    run: SandboxRun, rows: Sequence[Sequence[SandboxPanel]]
) -> tuple[Figure, list[tuple[SandboxPanel, Axes]], Text]:
    """Return an empty figure, its axes by panel, and its title, which ``_draw`` writes."""
    from matplotlib.figure import Figure

    across = max(map(len, rows))
    figure = Figure(figsize=(_WIDTH * across, _HEIGHT * len(rows) + 0.55), layout="constrained")
    grid = figure.add_gridspec(len(rows), across)
    axes: list[tuple[SandboxPanel, Axes]] = []
    for i, row in enumerate(rows):
        axes += [(panel, figure.add_subplot(grid[i, j])) for j, panel in enumerate(row)]
    draw_legend(figure, run, [panel for panel, _ in axes])
    return figure, axes, figure.suptitle("", fontsize=11, ha="center")


def _draw(title: Text, axes: Sequence[tuple[SandboxPanel, Axes]], run: SandboxRun, frame: int) -> None:
    for panel, axis in axes:
        wipe_axis(axis)
        draw_panel(axis, panel, run, frame)
    title.set_text(f"{figure_text(run.title, 120)}: {run.unit} {run.epochs[frame]:,} of {run.epochs[-1]:,}")
