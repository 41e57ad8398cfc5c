"""Figures of similarity with the controls by layer: over tasks, by cluster, of held-out tasks, and the layer groups."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from mechclust.commands.mossa.draw import (
    BOXES,
    CKA_LABEL,
    LOOKS,
    boxes,
    finish,
    interval,
    is_published_design,
    least,
    median_lines,
    places,
    published_quartiles,
    references,
    width,
)
from mechclust.commands.mossa.result import MossaResult
from mechclust.commands.mossa.tables import NO_CLUSTER, parts_of
from mechclust.mossa.published import CLUSTERS, HELD_OUT, SEEN
from mechclust.mossa.task_curves import TaskCurves, Which, bootstrap
from mechclust.report.style import GREY, ORANGE, SOFT, direct_labels, layer_axis, subplots
from mechclust.report.text import figure_text

SHADES = {"shared": "#eef1f4", "transition": "#fdf0dc", "refinement": "#e3eef6"}
_MOST = 12  # panels, of held-out tasks
_UNSEEN = "tuned without it"


def boxes_figure(result: MossaResult, *, held_out: bool = False) -> Figure:
    """Box plots over tasks by layer, for pre and tuned (the paper's figures 2 and 7)."""
    whole = result.curves()
    curves = whole.unseen if held_out else whole.seen
    shown = {"base": curves.base, "tuned": curves.tuned}
    if held_out and np.isfinite(other := result.values("all-tasks")[whole.held_out]).any():
        shown["all-tasks"] = other
    figure, (axis,) = subplots(1, size=(width(curves.n_layers), 4.8), grid="y")
    labels = references(axis, curves)
    if is_published_design(result):
        published_quartiles(axis, HELD_OUT if held_out else SEEN)
    step = 0.8 / len(shown)
    for k, (role, values) in enumerate(shown.items()):
        shift, look = (k - (len(shown) - 1) / 2) * step, LOOKS[role]
        boxes(axis, values, look, shift, 0.84 * step)
        part = curves if role != "all-tasks" else _as_tuned(curves, values)
        which: Which = "base" if role == "base" else "tuned"
        median, x = part.median(which), places(curves) + shift
        axis.plot(x, median, color=look.color, lw=1.1, alpha=0.9)
        if (ends := interval(part, which, result.config.seed)) is not None:
            few = len(values) < BOXES  # whose points a thick bar would hide
            thick = 1.3 if few else 3.2 if curves.n_layers * len(shown) <= 70 else 1.8
            axis.vlines(x, *ends, color=look.color, lw=thick, alpha=0.95, zorder=3)
        labels.append((float(median[-1]), _UNSEEN if held_out and role == "tuned" else look.name, look.color))
    finish(axis, curves, least(*shown.values(), curves.null))
    direct_labels(axis, labels, size=9.5)
    return figure


def _as_tuned(curves: TaskCurves, values: np.ndarray) -> TaskCurves:
    from dataclasses import replace

    return replace(curves, tuned=values)


def clusters_figure(result: MossaResult) -> Figure:
    """One panel per cluster (the paper's figure 3)."""
    parts = parts_of(result)
    columns, published = min(4 if len(parts) > 4 else 2, len(parts)), is_published_design(result)
    wide = 3.4 if columns > 2 else 5.0
    figure, axes = subplots(len(parts), columns, size=(wide, 2.9), grid="y", sharex=True, sharey=True)
    lowest = min(least(part.base, part.tuned, part.null) for part in parts.values())
    for k, (axis, (name, part)) in enumerate(zip(axes, parts.items(), strict=True)):
        labels = references(axis, part)
        labels += median_lines(axis, part, result.config.seed, each=True, marker=part.n_layers <= 24)
        if published and name in CLUSTERS:
            layer, *values = CLUSTERS[name]
            for role, value in zip(("base", "tuned"), values, strict=True):
                axis.plot([layer], [value], "D", mfc="none", mec=LOOKS[role].color, ms=8, mew=1.6)
        finish(axis, part, lowest, CKA_LABEL if k % columns == 0 else "")
        many = len(part.tasks)
        called = "no cluster" if name == NO_CLUSTER else figure_text(name, 28)
        axis.set_title(f"{called} ({many} task{'s' * (many != 1)})", fontsize=10)
        if k + columns < len(parts):
            axis.set_xlabel("")
        direct_labels(axis, labels, size=8)
    return figure


def held_out_figure(result: MossaResult) -> Figure:
    """One panel per held-out task."""
    curves = result.curves().unseen
    others = result.values("all-tasks")[result.curves().held_out]
    n = min(len(curves.tasks), _MOST)
    columns = min(4 if n > 4 else 2, n)
    size = (width(curves.n_layers, 6, 10), 4.0) if n == 1 else (4.6, 3.0)
    figure, axes = subplots(n, columns, size=size, grid="y", sharex=True, sharey=True)
    lowest = least(curves.base, curves.tuned, curves.null, others)
    for k, axis in enumerate(axes):
        part = curves.select([curves.tasks[k]])
        labels = references(axis, part)
        lines = median_lines(axis, part, result.config.seed, marker=part.n_layers <= 24)
        labels += [(y, _UNSEEN if name == LOOKS["tuned"].name else name, color) for y, name, color in lines]
        if np.isfinite(others[k]).any():
            look = LOOKS["all-tasks"]
            axis.plot(places(part), others[k], color=look.color, ls="--", lw=1.5)
            labels.append((float(others[k, -1]), look.name, look.color))
        finish(axis, part, lowest, CKA_LABEL if k % columns == 0 else "")
        axis.set_title(figure_text(curves.tasks[k], 40), fontsize=10)
        if k + columns < n:
            axis.set_xlabel("")
        direct_labels(axis, labels, size=8.5)
    return figure


def groups_figure(result: MossaResult) -> Figure:
    """The layer groups and what they are read from: medians, spread, dimensions."""
    curves, found = result.curves().seen, result.groups
    x, seed = places(curves), result.config.seed
    dims = {role: values for role, values in curves.dims.items() if np.isfinite(values).any()}
    n = 2 + bool(dims)
    figure, axes = subplots(n, 1, size=(width(curves.n_layers), 2.5), grid="y", sharex=True)
    labels = [references(axes[0], curves) + median_lines(axes[0], curves, seed)]
    finish(axes[0], curves, least(*curves.quartiles("base"), *curves.quartiles("tuned")))
    spreads, roles = [], ("base", "tuned")
    for role in roles:
        look = LOOKS[role]
        spread, ends = bootstrap(curves, lambda c, role=role: c.spread(role), seed=seed)  # type: ignore[misc]
        if not curves.few:
            axes[1].fill_between(x, *ends, color=look.color, alpha=0.2, lw=0)
        axes[1].plot(x, spread, color=look.color, marker=look.marker, ms=3.5, lw=1.6)
        spreads.append((float(spread[-1]), look.name, look.color))
    axes[1].axhline(0.10, color=GREY, lw=0.9, ls=":")
    axes[1].set_ylabel("interquartile range", fontsize=9)
    axes[1].set_ylim(bottom=0)
    labels.append(spreads)
    if dims:
        for role, values in dims.items():
            axes[2].plot(x, values, color=LOOKS[role].color, marker=LOOKS[role].marker, ms=3.5, lw=1.6)
        axes[2].set_ylabel("dimensions (99%)", fontsize=9)
        axes[2].set_ylim(bottom=0)
        labels.append([(float(v[-1]), LOOKS[role].name, LOOKS[role].color) for role, v in dims.items()])
    axes[0].set_ylabel(CKA_LABEL, fontsize=8)
    for name, color in SHADES.items():
        if result.named_groups and (group := getattr(found.groups, name)):
            for axis in axes:
                axis.axvspan(group[0] - 0.5, group[-1] + 0.5, color=color, zorder=-1, lw=0)
            middle = (group[0] + group[-1]) / 2
            above = blended_transform_factory(axes[0].transData, axes[0].transAxes)
            axes[0].text(middle, 1.11, name, ha="center", va="bottom", fontsize=9.5, color=SOFT, transform=above)
    above = blended_transform_factory(axes[0].transData, axes[0].transAxes)
    for end, color, height in ((found.shared_end, SOFT, 1.04), (found.transition_end, ORANGE, 1.075)):
        if result.named_groups and end is not None:
            at = [layer + 0.5 for layer in end]
            axes[0].plot(
                at, 2 * [height], "-", color=color, lw=4, solid_capstyle="butt", transform=above, clip_on=False
            )
            axes[0].plot(at, 2 * [height], "|", color=color, ms=9, mew=1.6, transform=above, clip_on=False)
    for axis, own in zip(axes, labels, strict=True):
        layer_axis(axis)
        axis.label_outer()
        direct_labels(axis, own, size=9)
    return figure
