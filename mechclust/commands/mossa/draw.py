"""What the figures of ``mechclust mossa`` share: colours and names of roles, boxes, bands, published curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from mechclust.commands.mossa.result import MossaResult
from mechclust.mossa.published import N_LAYERS, N_SEEN, Quartiles
from mechclust.mossa.task_curves import TaskCurves, Which, bootstrap
from mechclust.report.style import BLUE, PURPLE, RED, chance_band, layer_axis
from tasks.text.instructions import MISC, flan2021_cluster

INK, CEILING, NULL = "#1d2733", "#007a5a", "#707070"
_MOST = 0.8  # share of the paper's tasks
BOXES = 5  # tasks that make a box plot or a band of quartiles
CKA_LABEL = "debiased CKA with the task's control"


class Look(NamedTuple):
    """How a role is drawn."""

    name: str
    color: str
    marker: str


# The colours of pre and tuned are those of the paper.
LOOKS: Mapping[str, Look] = {
    "base": Look("pre", BLUE, "s"),
    "tuned": Look("tuned", RED, "o"),
    "all-tasks": Look("tuned on it too", PURPLE, "D"),
    "control": Look("control", CEILING, "^"),
    "ceiling": Look("ceiling", CEILING, "^"),
    "null": Look("null", NULL, "x"),
}


def is_published_design(result: MossaResult) -> bool:
    """Whether the run is of the paper's size, so that its curves can stand behind: 32 layers and nearly all of its 60
    FLAN tasks."""
    known = sum(flan2021_cluster(task) not in (None, MISC) for task in result.tasks)
    return result.n_layers == N_LAYERS and known >= _MOST * N_SEEN


def places(curves: TaskCurves) -> np.ndarray:
    """``[layer]`` from 1."""
    return np.arange(1, curves.n_layers + 1)


def width(n_layers: int, least: float = 8.0, most: float = 18.0) -> float:
    """Inches for so many layers."""
    return float(np.clip(2.5 + 0.34 * n_layers, least, most))


def interval(curves: TaskCurves, which: Which, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """``[layer]`` 95% of the median by bootstrap over tasks; None for too few tasks."""
    if curves.few:
        return None
    _, ends = bootstrap(curves, lambda c: c.median(which), seed=seed)
    return ends


def boxes(axis: Axes, values: np.ndarray, look: Look, shift: float, wide: float) -> None:
    """``[task layer]`` as box plots (whiskers: least and greatest), or as points where tasks are few."""
    at = np.arange(1, values.shape[1] + 1) + shift
    if len(values) < BOXES:
        for row in values:
            axis.plot(at, row, look.marker, color=look.color, ms=4, mew=0, alpha=0.75)
        return
    shown = [column[np.isfinite(column)] for column in values.T]
    line = {"color": look.color, "linewidth": 0.9}
    axis.boxplot(
        shown,
        positions=at,
        widths=wide,
        whis=(0, 100),
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": f"{look.color}55", "edgecolor": look.color, "linewidth": 0.9},
        medianprops={"color": look.color, "linewidth": 2.0},
        whiskerprops=line,
        capprops={"linewidth": 0},
    )


def references(axis: Axes, curves: TaskCurves) -> list[tuple[float, str, str]]:
    """The ceiling and the null as bands; their labels."""
    labels, x = [], places(curves)
    if curves.null is not None and np.isfinite(curves.null).any():
        low, high = _ends(curves, "null")
        chance_band(axis, x, low, high, NULL)
        axis.plot(x, median := curves.median("null"), color=NULL, lw=1.2, ls="-.")
        labels.append((float(median[-1]), LOOKS["null"].name, NULL))
    if curves.ceiling is not None and np.isfinite(curves.ceiling).any():
        low, high = _ends(curves, "ceiling")
        axis.fill_between(x, low, high, color=CEILING, alpha=0.16, lw=0, zorder=0.6)
        axis.plot(x, median := curves.median("ceiling"), color=CEILING, lw=1.4, ls=":")
        labels.append((float(median[-1]), LOOKS["ceiling"].name, CEILING))
    return labels


def _ends(curves: TaskCurves, which: Which) -> Sequence[np.ndarray]:
    """Quartiles, or least and greatest of few tasks."""
    values = curves.values(which)
    known = values[np.isfinite(values).any(axis=1)]
    if len(known) >= BOXES:
        return curves.quartiles(which)
    return np.fmin.reduce(known), np.fmax.reduce(known)


def median_lines(
    axis: Axes, curves: TaskCurves, seed: int, *, each: bool = False, marker: bool = True
) -> list[tuple[float, str, str]]:
    """Medians of pre and tuned, their bootstrap intervals as bands; their labels.

    Args:
        axis: where.
        curves: of the tasks.
        seed: for the bootstrap.
        each: also a thin line for each task.
        marker: at every layer.
    """
    labels, x = [], places(curves)
    roles: tuple[Which, ...] = ("base", "tuned")
    for which in roles:
        look, median = LOOKS[which], curves.median(which)
        if each and len(curves.tasks) > 1:
            axis.plot(x, curves.values(which).T, color=look.color, lw=0.7, alpha=0.35)
        if (ends := interval(curves, which, seed)) is not None:
            axis.fill_between(x, *ends, color=look.color, alpha=0.2, lw=0)
        own = look.marker if marker and curves.n_layers <= 40 else ""
        axis.plot(x, median, color=look.color, marker=own, ms=3.5, lw=1.7)
        labels.append((float(median[-1]), look.name, look.color))
    return labels


def published_quartiles(axis: Axes, published: Mapping[str, Quartiles]) -> None:
    """The paper's medians, dashed, and quartiles, dotted."""
    x = np.arange(1, N_LAYERS + 1)
    for which, found in published.items():
        color = LOOKS[which].color
        axis.plot(x, found.median, color=color, lw=1.4, ls=(0, (5, 2)), alpha=0.75, zorder=0.8)
        for ends in (found.low, found.high):
            axis.plot(x, ends, color=color, lw=0.9, ls=":", alpha=0.75, zorder=0.8)


def finish(axis: Axes, curves: TaskCurves, least: float, label: str = CKA_LABEL) -> None:
    """Limits and names of both axes: layers along x, a similarity along y."""
    axis.set_xlim(0.4, curves.n_layers + 0.6)
    axis.set_ylim(min(0.0, least) - 0.03, 1.03)
    layer_axis(axis)
    axis.set_ylabel(label, fontsize=9)


def least(*values: np.ndarray | None) -> float:
    """The least number that is defined; 0 for none."""
    known = [v[np.isfinite(v)] for v in values if v is not None]
    return float(min((v.min() for v in known if v.size), default=0.0))
