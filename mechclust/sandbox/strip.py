"""The sandbox as a strip of still panels: one row per panel, one column per epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mechclust.report.figure_text import figure_text
from mechclust.sandbox.draw import draw_panel
from mechclust.sandbox.figure import PANEL_HEIGHT, PANEL_WIDTH
from mechclust.sandbox.legend import draw_legend
from mechclust.sandbox.panels import sandbox_panel_grid
from mechclust.sandbox.run import SandboxRun
from tasks import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    chosen = [panel for (panel,) in sandbox_panel_grid([[name] for name in panels], run.panels)]
    frames = [run.frame(epoch) for epoch in epochs]
    if not frames:
        raise InputError("epochs is empty; expected some of the epochs of the run")
    if titles and len(titles) != len(epochs):
        raise InputError(f"there are {len(titles)} titles for {len(epochs)} epochs; expected one for each")
    layout = ConstrainedLayoutEngine(h_pad=0.065)  # a row's titles stay clear of the numbers above
    figure = Figure(figsize=(PANEL_WIDTH * len(frames), PANEL_HEIGHT * len(chosen) + 0.75), layout=layout)
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
