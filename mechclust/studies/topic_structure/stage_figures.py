"""The figures of two stages: weights over training, and every cell of the factorial."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mechclust.report.style import BLUE, GREEN, GREY, MATHTEXT, RED, subplots
from mechclust.studies.topic_structure.arms import INITS, OBJECTIVES, Cell, cells
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns, shares_of

_COLORS = {"W_V": RED, "W_K": BLUE, "W_Q": GREEN}
_STARTS = {"near-zero": (BLUE, "o", -1), "default": (RED, "s", 1)}
_LOW, _HIGH = -0.15, 1.15
_LEFT_OUT = -0.08  # position of cells without a share
_UNMOVED, _DIVERGED = "x", "+"
_WITHOUT = {_UNMOVED: "attention hardly moved", _DIVERGED: "training diverged"}


def stages(config: TopicStructureConfig, runs: ArmRuns) -> Figure:
    """Share of ``W_V``'s total change by learning rate, one panel per optimiser and loss, one colour per start."""
    known, share = shares_of(config, runs)
    where = {cell: i for i, cell in enumerate(known)}
    panels = [(optimiser, loss) for optimiser in ("SGD", "Adam") for loss in OBJECTIVES]
    figure, axes = subplots(len(panels), 2, size=(4.4, 3.0), sharey=True, grid="y")
    without: set[str] = set()
    for axis, (optimiser, loss) in zip(axes, panels, strict=True):
        rates = sorted({cell.rate for cell in known if cell.optimiser == optimiser})
        axis.axhline(0.5, color=GREY, ls=":", lw=1.2)
        for init, (color, marker, side) in _STARTS.items():
            for x, rate in enumerate(rates):
                cell = Cell(init, optimiser, loss, rate)
                values = share[:, where[cell]]
                missing = _UNMOVED if _finite(runs, cell.arm) else _DIVERGED
                if np.isnan(values).any():
                    without.add(missing)
                _cell(axis, x + 0.09 * side, values, color, marker, missing)
        axis.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        highest = max(_HIGH, 1.05 * float(np.nanmax(share, initial=1.0)))
        axis.set(xlim=(-0.5, len(rates) - 0.5), ylim=(_LOW, highest), title=f"{optimiser}, {loss}")
        axis.set_xlabel("learning rate")
    for axis in axes[::2]:
        axis.set_ylabel("share of $W_V$'s change", gid=MATHTEXT)
    handles = [
        Line2D([], [], ls="", marker=marker, color=color, label=f"{init} start")
        for init, (color, marker, _) in _STARTS.items()
    ]
    handles += [
        Line2D([], [], ls="", marker=marker, color="#555555", label=f"{_WITHOUT[marker]} in some seed")
        for marker in sorted(without)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _cell(axis: Axes, x: float, values: np.ndarray, color: str, marker: str, missing: str) -> None:
    """One point per seed, the mean as a line; without the value of a seed, the marker ``missing``."""
    there = values[np.isfinite(values)]
    axis.plot(np.full(len(there), x), there, ls="", marker=marker, ms=4.5, color=color, alpha=0.6, mew=0)
    if len(there) < len(values):
        axis.plot([x], [_LEFT_OUT], ls="", marker=missing, ms=6, color=color)
    else:
        axis.plot([x - 0.07, x + 0.07], [there.mean()] * 2, color=color, lw=1.6)


def changes(config: TopicStructureConfig, runs: ArmRuns) -> Figure:
    """How far weights are from where they began, with the end of stage 1, at the fastest rate of each start, optimiser
    and loss."""
    fastest = {cell[:3]: cell for cell in sorted(cells(config), key=lambda cell: cell.rate) if _finite(runs, cell.arm)}
    order = [(i, o, loss) for loss in OBJECTIVES for o in ("SGD", "Adam") for i in INITS]
    shown = [fastest[key] for key in order if key in fastest]
    figure, axes = subplots(len(shown), 4, size=(3.1, 2.7))
    for axis, cell in zip(axes, shown, strict=True):
        run = runs[cell.arm][0]
        for weight, color in _COLORS.items():
            axis.plot(run.changes[weight], color=color, label=f"${weight}$", ls="--" if weight == "W_Q" else "-")
        said = "attention hardly moves"
        if run.moves and run.stages.boundary is not None:
            axis.axvline(run.stages.boundary, color="#555555", ls=":", lw=1.2)
            said = f"{100 * run.stages.early:.0f}% of $W_V$'s change"
        title = f"{cell.init} start, {cell.optimiser}, {cell.objective}, rate {cell.rate:g}"
        axis.set_title(f"{title}\n{said}", fontsize=8, gid=MATHTEXT)
        axis.set(xlabel="training step", ylim=(0, None))
    for axis in axes[::4]:
        axis.set_ylabel("distance from the start")
    for text in axes[0].legend(frameon=False).get_texts():
        text.set_gid(MATHTEXT)
    return figure


def _finite(runs: ArmRuns, arm: str) -> bool:
    return all(np.isfinite(values).all() for run in runs[arm] for values in run.changes.values())
