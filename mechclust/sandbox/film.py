"""The sandbox as a film: a figure that is redrawn for every frame."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mechclust.sandbox.figure import sandbox_figure_and_draw
from mechclust.sandbox.panels import Grid, sandbox_panel_grid
from mechclust.sandbox.run import SandboxRun
from tasks import InputError
from tasks.settings import check_at_least

# As every player knows it: an even number of pixels each way, and colours at half resolution.
_H264: dict[str, Any] = {
    "codec": "h264",
    "extra_args": ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"],
}


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
        InputError: for an unknown file ending, ``fps`` below 1, a missing ffmpeg, fewer than two epochs, or one that
            was not kept.

    Example:
        >>> sandbox_film(run, "run.gif", panels=["xi", "class_map", "loss"])  # doctest: +SKIP
        PosixPath('run.gif')
    """
    import matplotlib
    from matplotlib.animation import FFMpegWriter, PillowWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    if path.suffix not in (".gif", ".mp4"):
        raise InputError(f"a film cannot be written to {str(path)!r}; give a name that ends in .gif or .mp4")
    check_at_least(fps=(fps, 1))
    rows = sandbox_panel_grid(panels, run.panels)
    frames = [run.frame(epoch) for epoch in (run.epochs if epochs is None else epochs)]
    if len(frames) < 2:
        raise InputError(f"epochs has {len(frames)}; a film needs at least 2, or sandbox_figure shows one")
    figure, draw = sandbox_figure_and_draw(run, rows)
    writer: Any = PillowWriter(fps=fps) if path.suffix == ".gif" else FFMpegWriter(fps=fps, **_H264)
    options: dict[Any, Any] = {} if path.suffix == ".gif" else {"animation.ffmpeg_path": find_ffmpeg()}
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")  # its ending tells the writer the format
    try:
        with matplotlib.rc_context(options), writer.saving(figure, temporary, dpi):
            for i, frame in enumerate(frames):
                draw(frame)
                if i == 0:
                    # The axes are placed once: in each frame, it would take longer and they would tremble.
                    figure.savefig(io.BytesIO(), dpi=dpi)
                    figure.set_layout_engine(None)  # "none" keeps a placeholder that draws every frame twice
                writer.grab_frame()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def find_ffmpeg() -> str:
    """Return the ffmpeg on the path, or the one of imageio-ffmpeg.

    Raises:
        InputError: if there is neither.
    """
    on_path = shutil.which("ffmpeg")
    if on_path:
        return on_path
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return str(get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        raise InputError(
            "an .mp4 needs ffmpeg, and there is none: pip install 'mechclust[film]', or give a name that ends in .gif"
        ) from None
