"""Figures of similarity with the controls by layer: over tasks, by cluster, of held-out tasks, groups, measures."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import methodcaller

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.commands.mossa.drawing import (
    BOXES,
    CKA_LABEL,
    LOOKS,
    Label,
    draw_band,
    draw_boxes,
    draw_curve,
    draw_medians,
    draw_references,
    finish_layers,
    label_axes,
    layer_numbers,
    least,
    median_interval,
    panel_width,
)
from mechclust.commands.mossa.measurements import Measurements
from mechclust.commands.mossa.tables import NO_CLUSTER, parts_of
from mechclust.mossa.correlations import correlation_interval, covariate_correlation, n_known
from mechclust.mossa.layer_groups import MAX_NARROW_SPREAD, LayerGroupsInterval
from mechclust.mossa.published import COLEMAN_LIAU, DATA_SIZE, FLESCH_KINCAID
from mechclust.mossa.task_bootstrap import task_bootstrap_interval
from mechclust.mossa.task_curves import MODELS, TaskCurves, Which
from mechclust.report.axes import direct_labels, outer_labels, plot_chance_band
from mechclust.report.figure_text import figure_text
from mechclust.report.style import CHANCE, GREY, ORANGE, SOFT
from mechclust.report.subplots import subplots
from mechclust.report.text import counted

_SHADES = {"shared": "#eef1f4", "transition": "#fdf0dc", "refinement": "#e3eef6"}
_MAX_LAYERS_WITH_MARKERS = 24  # in small panels
_TUNED_WITHOUT = "tuned without it"


# ---- over tasks ----


def boxes_figure(result: Measurements, *, held_out: bool = False) -> Figure:
    """Draw box plots over tasks by layer, for pre and tuned (the paper's figures 2 and 7)."""
    curves = result.curves().unseen if held_out else result.curves().seen
    shown = {"base": curves, "tuned": curves}
    all_tasks = result.values("all-tasks")[result.is_held_out]
    if held_out and np.isfinite(all_tasks).any():
        shown["all-tasks"] = replace(curves, tuned=all_tasks)
    figure, (axis,) = subplots(1, size=(panel_width(curves.n_layers), 3.4), grid="y")
    labels = draw_references(axis, curves)
    step = 0.8 / len(shown)
    for place, (role, part) in enumerate(shown.items()):
        shift = (place - (len(shown) - 1) / 2) * step
        value, name, color = _draw_role(axis, part, role, shift, step, result.config.seed)
        labels.append((value, _TUNED_WITHOUT if held_out and role == "tuned" else name, color))
    label_axes(axis, curves, least(*(part.values(_which(role)) for role, part in shown.items()), curves.null))
    direct_labels(axis, labels, size=9.5)
    return figure


def _which(role: str) -> Which:
    """Return the curve of a role."""
    return "base" if role == "base" else "tuned"


def _draw_role(axis: Axes, curves: TaskCurves, role: str, shift: float, step: float, seed: int) -> Label:
    """Draw boxes or points of one role, its median and the intervals of the median, and return its label."""
    look = LOOKS[role]
    which = _which(role)
    draw_boxes(axis, curves.values(which), look, shift, 0.84 * step)
    x = layer_numbers(curves.n_layers) + shift
    median = curves.median(which)
    axis.plot(x, median, color=look.color, lw=1.1, alpha=0.9)
    ends = median_interval(curves, which, seed)
    if ends is not None:
        axis.vlines(x, *ends, color=look.color, lw=_interval_width(curves, step), alpha=0.95, zorder=3)
    return float(median[-1]), look.name, look.color


def _interval_width(curves: TaskCurves, step: float) -> float:
    """Return the width of the bars of intervals, thin if they would hide points or each other."""
    if len(curves.tasks) < BOXES:
        return 1.3
    return 3.2 if curves.n_layers * 0.8 / step <= 70 else 1.8


def _draw_panel(
    axis: Axes, curves: TaskCurves, result: Measurements, lowest: float, title: str, *, each: bool = False
) -> list[Label]:
    """Draw references, medians and axes of one small panel, and return the labels."""
    labels = draw_references(axis, curves)
    marker = curves.n_layers <= _MAX_LAYERS_WITH_MARKERS
    labels += draw_medians(axis, curves, result.config.seed, each=each, marker=marker)
    label_axes(axis, curves, lowest)
    axis.set_title(title, fontsize=10)
    return labels


def clusters_figure(result: Measurements) -> Figure:
    """Draw one panel per cluster (the paper's figure 3)."""
    parts = parts_of(result)
    columns = min(4 if len(parts) > 4 else 2, len(parts))
    wide = 3.4 if columns > 2 else 5.0
    figure, axes = subplots(len(parts), columns, size=(wide, 2.9), grid="y", sharex=True, sharey=True)
    lowest = min(least(part.base, part.tuned, part.null) for part in parts.values())
    for axis, (name, part) in zip(axes, parts.items(), strict=True):
        title = "no cluster" if name == NO_CLUSTER else figure_text(name, 28)
        labels = _draw_panel(axis, part, result, lowest, f"{title} ({counted(len(part.tasks), 'task')})", each=True)
        direct_labels(axis, labels, size=8)
    outer_labels(axes, columns)
    return figure


# ---- layer groups ----


def groups_figure(result: Measurements) -> Figure:
    """Draw the layer groups and the curves behind them: medians, spread, dimensions."""
    curves = result.curves().seen
    seed = result.config.seed
    dims = {role: values for role, values in curves.dims.items() if np.isfinite(values).any()}
    figure, axes = subplots(3 if dims else 2, 1, size=(panel_width(curves.n_layers), 2.5), grid="y", sharex=True)
    medians = [*draw_references(axes[0], curves), *draw_medians(axes[0], curves, seed)]
    labels = [medians, _draw_spreads(axes[1], curves, seed)]
    label_axes(axes[0], curves, least(*curves.quartiles("base"), *curves.quartiles("tuned")))
    axes[0].set_ylabel(CKA_LABEL, fontsize=8)
    if dims:
        labels.append([draw_curve(axes[2], values, role, lw=1.6) for role, values in dims.items()])
        axes[2].set_ylabel("dimensions (99%)", fontsize=9)
        axes[2].set_ylim(bottom=0)
    if result.named_groups:
        _shade_groups(axes, result.groups)
    for axis, axis_labels in zip(axes, labels, strict=True):
        finish_layers(axis, curves.n_layers)
        axis.label_outer()
        direct_labels(axis, axis_labels, size=9)
    return figure


def _draw_spreads(axis: Axes, curves: TaskCurves, seed: int) -> list[Label]:
    """Draw interquartile ranges over tasks in bands of their bootstrap intervals, and return the labels."""
    labels = []
    for role in MODELS:
        spread, ends = task_bootstrap_interval(curves, methodcaller("spread", role), seed=seed)
        if not curves.few:
            draw_band(axis, *ends, role)
        labels.append(draw_curve(axis, spread, role, lw=1.6))
    axis.axhline(MAX_NARROW_SPREAD, color=GREY, lw=0.9, ls=":")
    axis.set_ylabel("interquartile range", fontsize=9)
    axis.set_ylim(bottom=0)
    return labels


def _shade_groups(axes: list[Axes], interval: LayerGroupsInterval) -> None:
    """Shade and name the groups in all panels, and draw their ends above the first."""
    above = axes[0].get_xaxis_transform()
    for name, color in _SHADES.items():
        group = getattr(interval.groups, name)
        if group:
            for axis in axes:
                axis.axvspan(group[0] - 0.5, group[-1] + 0.5, color=color, zorder=-1, lw=0)
            middle = (group[0] + group[-1]) / 2
            axes[0].text(middle, 1.11, name, ha="center", va="bottom", fontsize=9.5, color=SOFT, transform=above)
    for ends, color, height in ((interval.shared_end, SOFT, 1.04), (interval.transition_end, ORANGE, 1.075)):
        if ends is not None:
            at = [layer + 0.5 for layer in ends]
            heights = [height, height]
            axes[0].plot(at, heights, color=color, lw=4, solid_capstyle="butt", transform=above, clip_on=False)
            axes[0].plot(at, heights, "|", color=color, ms=9, mew=1.6, transform=above, clip_on=False)


# ---- correlations with tasks' properties ----


def correlations_figure(result: Measurements) -> Figure:
    """Draw correlations over seen tasks of CKA with readability and data size by layer (the paper's figure 6)."""
    curves = result.curves().seen
    names = [name for name in (FLESCH_KINCAID, COLEMAN_LIAU, DATA_SIZE) if name in curves.covariates]
    figure, axes = subplots(len(names), size=(4.3, 3.3), grid="y", sharey=True)
    for axis, name in zip(axes, names, strict=True):
        n = n_known(curves, name)
        labels = _draw_correlations(axis, curves, name, n)
        chance = _chance_correlation(n)
        axis.axhline(0, color=GREY, lw=0.9)
        if not labels:
            why = "known for too few tasks" if n < 3 else "it is the same for all tasks"
            axis.text(0.5, 0.7, f"no correlation: {why}", ha="center", color=SOFT, transform=axis.transAxes)
        if np.isfinite(chance):
            plot_chance_band(axis, [0.4, curves.n_layers + 0.6], np.full(2, -chance), np.full(2, chance))
            labels.append((-chance, CHANCE, SOFT))
        axis.set(title=name, ylim=(-1.05, 1.05))
        finish_layers(axis, curves.n_layers)
        direct_labels(axis, labels)
    axes[0].set_ylabel("correlation over seen tasks")
    return figure


def _chance_correlation(n: int) -> float:
    """Return the end of the 95% range of correlations between unrelated numbers, or NaN for too few."""
    from scipy.stats import t

    if n <= 3:
        return math.nan
    quantile = float(t.ppf(0.975, n - 2))
    return quantile / math.sqrt(n - 2 + quantile**2)


def _draw_correlations(axis: Axes, curves: TaskCurves, covariate: str, n: int) -> list[Label]:
    labels = []
    for role in MODELS:
        value = covariate_correlation(curves, role, covariate)
        if np.isfinite(value).any():
            draw_band(axis, *correlation_interval(value, n), role)
            labels.append(draw_curve(axis, value, role, lw=1.6))
    return labels


# ---- measures of similarity ----


def opinions_figure(result: Measurements) -> Figure:
    """Draw every measure of similarity with the controls, one panel each."""
    names = result.measures
    columns = 2 if len(names) in (2, 4) else min(len(names), 3)
    size = (5.2 if columns == 2 else 4.3, 3.0)
    figure, axes = subplots(len(names), columns, size=size, grid="y", sharey=True)
    curves = {name: result.curves(name).seen for name in names}
    lowest = min(least(part.quartiles("base")[0], part.quartiles("tuned")[0]) for part in curves.values())
    for axis, (name, part) in zip(axes, curves.items(), strict=True):
        labels = _draw_panel(axis, part, result, lowest, name)
        axis.set_ylabel("median over seen tasks", fontsize=9)
        direct_labels(axis, labels)
    outer_labels(axes, columns)
    return figure
