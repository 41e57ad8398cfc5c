"""Elements shared by the figures of ``mechclust mossa``: roles, boxes, medians, references."""

from __future__ import annotations

from collections.abc import Mapping
from operator import methodcaller
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes

from mechclust.mossa.task_bootstrap import task_bootstrap_interval
from mechclust.mossa.task_curves import MODELS, ByLayer, TaskCurves, Which
from mechclust.report.axes import layer_axis, plot_chance_band
from mechclust.report.style import BLUE, PURPLE, RED

Label: TypeAlias = tuple[float, str, str]
"""Last value, name and color of a curve, for ``direct_labels``."""
BOXES = 5  # tasks that make a box plot or a band of quartiles
CKA_LABEL = "debiased CKA with the task's control"
_CEILING = "#007a5a"
_NULL = "#707070"
_MAX_LAYERS_WITH_MARKERS = 40


class Look(NamedTuple):
    """Name, colour and marker of a role."""

    name: str
    color: str
    marker: str


# Pre and tuned have the paper's colours.
LOOKS: Mapping[str, Look] = {
    "base": Look("pre", BLUE, "s"),
    "tuned": Look("tuned", RED, "o"),
    "all-tasks": Look("tuned on it too", PURPLE, "D"),
    "control": Look("control", _CEILING, "^"),
    "ceiling": Look("ceiling", _CEILING, "^"),
    "null": Look("null", _NULL, "x"),
}


def layer_numbers(n_layers: int) -> Int[np.ndarray, "layer"]:
    """Return the layers, from 1."""
    return np.arange(1, n_layers + 1)


def panel_width(n_layers: int, least: float = 8.0, most: float = 18.0) -> float:
    """Return the width of a panel with so many layers, in inches."""
    return float(np.clip(2.5 + 0.34 * n_layers, least, most))


def median_interval(curves: TaskCurves, which: Which, seed: int) -> tuple[ByLayer, ByLayer] | None:
    """Return 95% intervals of the median by bootstrap over tasks, or None for too few tasks."""
    if curves.few:
        return None
    _, ends = task_bootstrap_interval(curves, methodcaller("median", which), seed=seed)
    return ends


def draw_curve(axis: Axes, values: ByLayer, role: str, *, marker: bool = True, **style: Any) -> Label:
    """Draw a role's curve by layer, and return its label."""
    look = LOOKS[role]
    style = {"color": look.color, "marker": look.marker if marker else "", "ms": 3.5, "lw": 1.7, **style}
    axis.plot(layer_numbers(len(values)), values, **style)
    return float(values[-1]), look.name, look.color


def draw_band(axis: Axes, low: ByLayer, high: ByLayer, role: str) -> None:
    """Draw a band in a role's color."""
    axis.fill_between(layer_numbers(len(low)), low, high, color=LOOKS[role].color, alpha=0.2, lw=0)


def draw_boxes(axis: Axes, values: Float[np.ndarray, "task layer"], look: Look, shift: float, wide: float) -> None:
    """Draw box plots over tasks (whiskers: least and greatest), or points if there are few tasks."""
    at = layer_numbers(values.shape[1]) + shift
    if len(values) < BOXES:
        for row in values:
            axis.plot(at, row, look.marker, color=look.color, ms=4, mew=0, alpha=0.75)
        return
    axis.boxplot(
        [column[np.isfinite(column)] for column in values.T],
        positions=at,
        widths=wide,
        whis=(0, 100),
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": f"{look.color}55", "edgecolor": look.color, "linewidth": 0.9},
        medianprops={"color": look.color, "linewidth": 2.0},
        whiskerprops={"color": look.color, "linewidth": 0.9},
        capprops={"linewidth": 0},
    )


def draw_references(axis: Axes, curves: TaskCurves) -> list[Label]:
    """Draw the ceiling and the null as bands, and return their labels."""
    labels = []
    if curves.has("null"):
        low, high = _ends(curves, "null")
        plot_chance_band(axis, layer_numbers(curves.n_layers), low, high, _NULL)
        labels.append(draw_curve(axis, curves.median("null"), "null", marker=False, lw=1.2, ls="-."))
    if curves.has("ceiling"):
        low, high = _ends(curves, "ceiling")
        axis.fill_between(layer_numbers(curves.n_layers), low, high, color=_CEILING, alpha=0.16, lw=0, zorder=0.6)
        labels.append(draw_curve(axis, curves.median("ceiling"), "ceiling", marker=False, lw=1.4, ls=":"))
    return labels


def _ends(curves: TaskCurves, which: Which) -> tuple[ByLayer, ByLayer]:
    """Return quartiles, or least and greatest of few tasks."""
    values = curves.values(which)
    known = values[np.isfinite(values).any(axis=1)]
    if len(known) >= BOXES:
        return curves.quartiles(which)
    return np.fmin.reduce(known), np.fmax.reduce(known)


def draw_medians(axis: Axes, curves: TaskCurves, seed: int, *, each: bool = False, marker: bool = True) -> list[Label]:
    """Draw medians of pre and tuned in bands of their bootstrap intervals, and return their labels.

    Args:
        axis: where to draw.
        curves: curves of the tasks.
        seed: for the bootstrap.
        each: also draw a thin line for each task.
        marker: draw markers, unless there are many layers.
    """
    labels = []
    for which in MODELS:
        if each and len(curves.tasks) > 1:
            values = curves.values(which)
            axis.plot(layer_numbers(curves.n_layers), values.T, color=LOOKS[which].color, lw=0.7, alpha=0.35)
        ends = median_interval(curves, which, seed)
        if ends is not None:
            draw_band(axis, *ends, which)
        few_layers = curves.n_layers <= _MAX_LAYERS_WITH_MARKERS
        labels.append(draw_curve(axis, curves.median(which), which, marker=marker and few_layers))
    return labels


def finish_layers(axis: Axes, n_layers: int) -> None:
    """Set limits and name of an x axis of layers."""
    axis.set_xlim(0.4, n_layers + 0.6)
    layer_axis(axis)


def label_axes(axis: Axes, curves: TaskCurves, lowest: float) -> None:
    """Set limits and names of both axes: layers along x, CKA along y."""
    finish_layers(axis, curves.n_layers)
    axis.set_ylim(min(0.0, lowest) - 0.03, 1.03)
    axis.set_ylabel(CKA_LABEL, fontsize=9)


def least(*values: Float[np.ndarray, "..."] | None) -> float:
    """Return the least number that is defined, or 0 if none is."""
    known = [each[np.isfinite(each)] for each in values if each is not None]
    return float(min((each.min() for each in known if each.size), default=0.0))
