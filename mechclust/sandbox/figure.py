"""The sandbox as a still figure and as a film, drawn by matplotlib."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechclust.report.text import plain
from mechclust.sandbox.draw import draw_legend, draw_panel, wipe
from mechclust.sandbox.panels import Grid, SandboxPanel, panel_grid
from mechclust.sandbox.run import SandboxRun
from tasks import InputError
from tasks.errors import check_at_least

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# As every player knows it: an even number of pixels each way, and colours at half resolution.
_H264: dict[str, Any] = {
    "codec": "h264",
    "extra_args": ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"],
}
_WIDTH, _HEIGHT = 3.1, 2.35  # inches a panel


def sandbox_figure(run: SandboxRun, epoch: int, panels: Iterable[str] | Grid | None = None) -> Figure:
    """Draw any panels of the sandbox at one epoch of a run.

    Args:
        run: what ``record_sandbox`` or ``sandbox_run`` recorded.
        epoch: one of ``run.epochs``.
        panels: names of panels, rows of names, or ``None`` for all.

    Raises:
        InputError: for an epoch that was not kept, or an unknown panel; the message names the nearest.

    Example:
        >>> sandbox_figure(run, 244, ["xi", "class_map", "loss"]).savefig("epoch-244.png")  # doctest: +SKIP
    """
    frame = run.frame(epoch)
    figure, axes = _layout(run, panel_grid(panels, run.panels))
    _draw(figure, axes, run, frame)
    return figure


def sandbox_strip(
    run: SandboxRun, epochs: Sequence[int], panels: Sequence[str], *, titles: Sequence[str] = ()
) -> Figure:
    """Draw some panels of the sandbox at several epochs: one row per panel, one column per epoch.

    Args:
        run: what ``record_sandbox`` or ``sandbox_run`` recorded.
        epochs: some of ``run.epochs``.
        panels: names of panels.
        titles: of the columns; by default the epochs.

    Raises:
        InputError: for no epochs, one that was not kept, an unknown panel, or another number of titles than epochs.

    Example:
        >>> sandbox_strip(run, [0, 244, 360, 999], ["xi", "class_map"]).savefig("phases.png")  # doctest: +SKIP
    """
    from matplotlib.figure import Figure

    chosen = [panel for row in panel_grid([[name] for name in panels], run.panels) for panel in row]
    frames = [run.frame(epoch) for epoch in epochs]
    if not frames:
        raise InputError("epochs is empty; expected some of the epochs of the run")
    if titles and len(titles) != len(epochs):
        raise InputError(f"there are {len(titles)} titles for {len(epochs)} epochs; expected one for each")
    figure = Figure(figsize=(_WIDTH * len(frames), _HEIGHT * len(chosen) + 0.75), layout="constrained")
    axes = figure.subplots(len(chosen), len(frames), squeeze=False)
    draw_legend(figure, run, chosen)
    for row, panel in zip(axes, chosen, strict=True):
        for axis, frame in zip(row, frames, strict=True):
            draw_panel(axis, panel, run, frame)
    names = titles or [f"{run.unit} {epoch:,}" for epoch in epochs]
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(f"{plain(name, 60)}\n{plain(chosen[0].title, 60)}", fontsize=9, fontweight="bold", loc="left")
    figure.suptitle(plain(run.title, 120), fontsize=11)
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

    With all panels, a frame takes about a second; with fewer, less.

    Args:
        run: what ``record_sandbox`` or ``sandbox_run`` recorded.
        path: ends in ``.gif``, or in ``.mp4``, for which ffmpeg is needed.
        panels: names of panels, rows of names, or ``None`` for all.
        fps: frames per second.
        epochs: which of ``run.epochs``; ``None``: all.
        dpi: dots per inch; a panel is about 3.1 by 2.35 inches.

    Returns:
        The path. The file holds the whole film or, after an error, its previous content.

    Raises:
        InputError: for an unknown file ending, a missing ffmpeg, fewer than two epochs, or one that was not kept.

    Example:
        >>> sandbox_film(run, "run.gif", panels=["xi", "class_map", "loss"])  # doctest: +SKIP
        PosixPath('run.gif')
    """
    from matplotlib.animation import FFMpegWriter, PillowWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    if path.suffix not in (".gif", ".mp4"):
        raise InputError(f"a film cannot be written to {str(path)!r}; give a name that ends in .gif or .mp4")
    check_at_least(fps=(fps, 1))
    rows = panel_grid(panels, run.panels)
    frames = [run.frame(epoch) for epoch in (run.epochs if epochs is None else epochs)]
    if len(frames) < 2:
        raise InputError(f"epochs has {len(frames)}; a film needs at least 2, or sandbox_figure shows one")
    writer: Any = PillowWriter(fps=fps) if path.suffix == ".gif" else FFMpegWriter(fps=fps, **_H264)
    options: dict[Any, Any] = {} if path.suffix == ".gif" else {"animation.ffmpeg_path": _ffmpeg()}
    figure, axes = _layout(run, rows)
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")  # its ending tells the writer the format
    import matplotlib

    try:
        with matplotlib.rc_context(options), writer.saving(figure, temporary, dpi):
            for i, frame in enumerate(frames):
                _draw(figure, axes, run, frame)
                if i == 0:
                    # The place of the axes is found once: anew each frame, it would take longer and tremble.
                    figure.savefig(io.BytesIO(), dpi=dpi)
                    figure.set_layout_engine(None)  # "none" keeps a placeholder that draws every frame twice
                writer.grab_frame()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _layout(run: SandboxRun, rows: Sequence[Sequence[SandboxPanel]]) -> tuple[Figure, list[tuple[SandboxPanel, Axes]]]:
    from matplotlib.figure import Figure

    across = max(map(len, rows))
    figure = Figure(figsize=(_WIDTH * across, _HEIGHT * len(rows) + 0.55), layout="constrained")
    grid = figure.add_gridspec(len(rows), across)
    axes = [(panel, figure.add_subplot(grid[i, j])) for i, row in enumerate(rows) for j, panel in enumerate(row)]
    draw_legend(figure, run, [panel for panel, _ in axes])
    return figure, axes


def _draw(figure: Figure, axes: Sequence[tuple[SandboxPanel, Axes]], run: SandboxRun, frame: int) -> None:
    for panel, axis in axes:
        wipe(axis)
        draw_panel(axis, panel, run, frame)
    figure.suptitle(
        f"{plain(run.title, 120)}: {run.unit} {run.epochs[frame]:,} of {run.epochs[-1]:,}", fontsize=11, ha="center"
    )


def _ffmpeg() -> str:
    """The ffmpeg on the path, or the one that imageio-ffmpeg brings."""
    if found := shutil.which("ffmpeg"):
        return found
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return str(get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        raise InputError(
            "an .mp4 needs ffmpeg, and there is none: pip install 'mechclust[film]', or give a name that ends in .gif"
        ) from None
