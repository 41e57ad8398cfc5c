"""The figures of two stages: weights over training, and every cell of the factorial."""

from __future__ import annotations

from itertools import chain

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mechclust.report.style import BLUE, GREEN, GREY, MATHTEXT, RED, SOFT
from mechclust.report.subplots import subplots
from mechclust.studies.topic_structure.arms import Cell, released_arm
from mechclust.studies.topic_structure.config import TopicStructureConfig
from mechclust.studies.topic_structure.results import ArmRuns, shares_of

_LOOKS = {"W_V": (RED, "-"), "W_K": (BLUE, "-"), "W_Q": (GREEN, "--")}
_STARTS = {"near-zero": (BLUE, "o", -1), "default": (RED, "s", 1)}  # colour, marker, side
_LOW = -0.15
_HIGH = 1.15
_UNDEFINED_Y = -0.08  # height of cells without a share
_UNMOVED = "x"
_DIVERGED = "+"
_WITHOUT_SHARE = {_UNMOVED: "attention hardly moved", _DIVERGED: "training diverged"}


def stages_figure(config: TopicStructureConfig, runs: ArmRuns) -> Figure:
    """Draw the share of ``W_V``'s total change by learning rate, one panel per optimiser and loss."""
    factorial, shares = shares_of(config, runs)
    by_cell = dict(zip(factorial, shares.T, strict=True))
    panels = list(dict.fromkeys((cell.optimiser, cell.objective) for cell in factorial))
    figure, axes = subplots(len(panels), 3, size=(3.3, 3.0), sharey=True, grid="y")
    highest = max(_HIGH, 1.05 * float(np.nanmax(shares, initial=1.0)))
    for axis, (optimiser, loss) in zip(axes, panels, strict=True):
        cells = [cell for cell in factorial if (cell.optimiser, cell.objective) == (optimiser, loss)]
        rates = sorted({cell.rate for cell in cells})
        axis.axhline(0.5, color=GREY, ls=":", lw=1.2)
        for cell in cells:
            _draw_cell(axis, rates.index(cell.rate), cell, by_cell[cell], _marker(runs, cell))
        axis.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axis.set(xlim=(-0.5, len(rates) - 0.5), ylim=(_LOW, highest), title=f"{optimiser}, {loss}")
        axis.set_xlabel("learning rate")
    axes[0].set_ylabel("share of $W_V$'s change", gid=MATHTEXT)
    without = {_marker(runs, cell) for cell, of_seeds in by_cell.items() if np.isnan(of_seeds).any()}
    _stage_legend(figure, sorted(without))
    return figure


def _marker(runs: ArmRuns, cell: Cell) -> str:
    """Return the marker of a cell without a share in some seed."""
    return _UNMOVED if all(run.finite for run in runs[cell.arm]) else _DIVERGED


def _draw_cell(axis: Axes, rate: int, cell: Cell, shares: Float[np.ndarray, "seed"], undefined: str) -> None:
    """Draw one point per seed, the mean as a line; if the share of a seed is undefined, another marker."""
    color, marker, side = _STARTS[cell.init]
    x = rate + 0.09 * side
    finite = shares[np.isfinite(shares)]
    axis.plot(np.full(len(finite), x), finite, ls="", marker=marker, ms=4.5, color=color, alpha=0.6, mew=0)
    if len(finite) < len(shares):
        axis.plot([x], [_UNDEFINED_Y], ls="", marker=undefined, ms=6, color=color)
    else:
        axis.plot([x - 0.07, x + 0.07], [finite.mean()] * 2, color=color, lw=1.6)


def _stage_legend(figure: Figure, without: list[str]) -> None:
    looks = [(marker, color, f"{init} start") for init, (color, marker, _) in _STARTS.items()]
    looks += [(marker, SOFT, f"{_WITHOUT_SHARE[marker]} in some seed") for marker in without]
    handles = [Line2D([], [], ls="", marker=marker, color=color, label=label) for marker, color, label in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


def norms_figure(config: TopicStructureConfig, runs: ArmRuns) -> Figure:
    """Draw the norms of the weights of the network as released, a line for each seed, one panel per rate.

    As on the authors' slide, with the end of stage 1. Norms of a run that diverged end where they leave the panel.
    """
    figure, axes = subplots(len(config.released_rates), 3, size=(3.1, 2.7), sharey=True)
    highest = 1.0
    for run in chain.from_iterable(runs[released_arm(rate)] for rate in config.released_rates):
        if run.finite:
            highest = max(highest, *(float(norms.max()) for norms in run.norms.values()))
    for axis, rate in zip(axes, config.released_rates, strict=True):
        arm = runs[released_arm(rate)]
        for weight, (color, style) in _LOOKS.items():
            for place, run in enumerate(arm):
                label = f"${weight}$" if place == 0 else None
                axis.plot(run.norms[weight], color=color, ls=style, lw=0.8, alpha=0.7, label=label)
        for run in arm:
            if run.moves and run.stages.boundary is not None:
                axis.axvline(run.stages.boundary, color=SOFT, ls=":", lw=0.8)
        lost = sum(not run.finite for run in arm)
        title = f"rate {rate:g}, {lost} of {len(arm)} diverged" if lost else f"rate {rate:g}"
        axis.set(title=title, xlabel="training step", ylim=(0, 1.1 * highest))
    axes[0].set_ylabel("Frobenius norm")
    for text in axes[0].legend(frameon=False).get_texts():
        text.set_gid(MATHTEXT)
    return figure
