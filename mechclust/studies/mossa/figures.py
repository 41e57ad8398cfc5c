"""Figures of the MOSSA study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mechclust.evidence.intervals import mean_interval
from mechclust.mossa.layer_groups import MARGIN
from mechclust.report.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SOFT,
    category,
    direct_labels,
    layer_axis,
    outer_labels,
    picture,
    subplots,
)
from mechclust.studies.mossa.results import SeedResults, boundaries_by_seed
from probes import ProbeResult

_COLORS = {"base": BLUE, "tuned": RED}  # the paper's
_NAMES = {"base": "pre", "tuned": "tuned"}
_LINES = {"base": "--", "tuned": "-"}


def _layers(found: Sequence[SeedResults]) -> np.ndarray:
    return np.arange(1, found[0].n_layers + 1)


def boxes(found: Sequence[SeedResults]) -> Figure:
    """CKA of every task and seed by layer, for pre and tuned, seen and held-out tasks (the paper's figures).

    Points in the boxes: filled, of tasks that pre-training did not encode; rings, of the others.
    """
    parts = {"seen tasks": [m.seen for m in found], "held-out tasks": [~m.seen for m in found]}
    parts = {name: masks for name, masks in parts.items() if masks[0].any()}
    figure, axes = subplots(len(parts), size=(6.0, 4.2), grid="y", sharey=True)
    layers, rng = _layers(found), np.random.default_rng(0)
    for axis, (title, masks) in zip(axes, parts.items(), strict=True):
        for place, kind in ((-0.19, "base"), (0.19, "tuned")):
            values = np.concatenate([m.cka[kind][mask] for m, mask in zip(found, masks, strict=True)])
            encoded = np.concatenate([m.encoded[mask] for m, mask in zip(found, masks, strict=True)])
            x = layers + place + rng.uniform(-0.13, 0.13, values.shape)
            axis.plot(x[~encoded], values[~encoded], ".", ms=2, mew=0, color=_COLORS[kind], alpha=0.5)
            axis.plot(x[encoded], values[encoded], "o", ms=2, mew=0.4, mfc="none", color=_COLORS[kind], alpha=0.7)
            axis.boxplot(
                [v[np.isfinite(v)] for v in values.T],
                positions=layers + place,
                widths=0.32,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": _COLORS[kind], "alpha": 0.3, "linewidth": 0.8},
                medianprops={"color": "black", "linewidth": 1.4},
                showfliers=False,
                whiskerprops={"linewidth": 0.8},
                capprops={"linewidth": 0.8},
            )
        layer_axis(axis)
        axis.axhline(0, color=GREY, lw=0.8)
        axis.set_title(f"{title} ({int(masks[0].sum())} in each of {len(found)} seeds)")
    handles: list[Patch | Line2D] = [Patch(facecolor=_COLORS[k], alpha=0.45, label=_NAMES[k]) for k in _COLORS]
    points = {"not encoded by pre-training": ("", GREY), "encoded": ("none", GREY)}
    for label, (fill, color) in points.items():
        style: dict[str, Any] = {"ls": "", "marker": "o", "ms": 4, "color": color}
        handles.append(Line2D([], [], label=label, **(style | ({"mfc": fill} if fill else {}))))
    ceilings = [np.median(m.ceiling, axis=0) for m in found if m.ceiling is not None]
    if ceilings and "seen tasks" in parts:
        handles += axes[0].plot(layers, np.mean(ceilings, axis=0), ls=":", color="#555555", lw=1.4, label="ceiling")
    axes[0].set_ylabel("debiased CKA with the controls")
    figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=len(handles))
    return figure


def _both(axis: Axes, found: Sequence[SeedResults], measure: str) -> None:
    """A measure of both models by layer."""
    for kind in _COLORS:
        values = [m.spread(kind) if measure == "spread" else getattr(m, measure)[kind] for m in found]
        _lines(axis, found, values, _LINES[kind], _COLORS[kind], _NAMES[kind])


def _lines(
    axis: Axes, found: Sequence[SeedResults], values: Sequence[np.ndarray], line: str, color: str, label: str
) -> None:
    """A thin line per seed, and their mean."""
    for one in values if len(values) > 1 else []:
        axis.plot(_layers(found), one, line, color=color, alpha=0.3, lw=0.8)
    axis.plot(_layers(found), np.mean(values, axis=0), line, marker=".", color=color, lw=1.8, label=label)


def groups(found: Sequence[SeedResults]) -> Figure:
    """What the layer groups are read from: median difference with the two boundaries, spread and dimensions."""
    figure, axes = subplots(3, size=(4.0, 3.6))
    gap, spread, dims = axes
    _lines(gap, found, [m.gap for m in found], "-", "black", "tuned - pre")
    ends, has = boundaries_by_seed([m.curves.seen for m in found])
    gap.set_title(f"a transition in {int(has.sum())} of {len(found)} seeds", fontsize=9, loc="left")
    for at, color, name in zip(ends[has].T, (SOFT, GREEN), ("shared", "transition"), strict=True):
        if len(at):
            low, high = mean_interval(at.tolist()) or (at.mean(), at.mean())
            gap.axvspan(low, high, color=color, alpha=0.18, lw=0)
            gap.axvline(at.mean(), color=color, lw=1)
            left = at.mean() > found[0].n_layers / 2  # of the line there is more room
            gap.text(at.mean() + (-0.08 if left else 0.08), 0.02 + 0.08 * (name == "transition"),
                     f"last {name} layer {at.mean():.1f}", color=color, fontsize=8.5, ha="right" if left else "left",
                     transform=gap.get_xaxis_transform())  # fmt: skip
    _both(spread, found, "spread")
    _both(dims, found, "dims")
    gap.axhline(0, color=GREY, lw=0.8)
    gap.axhline(MARGIN, color=GREY, lw=0.8, ls=":")
    gap.set(ylabel="median CKA, tuned - pre")
    spread.set(title="interquartile range over seen tasks", ylabel="CKA", ylim=(0, None))
    dims.set(title="dimensions for 99% of the variance", ylabel="dimensions", ylim=(0, None))
    spread.legend(frameon=False)
    for axis in axes:
        layer_axis(axis)
    gap.set_xlim(0.7, found[0].n_layers + 0.5)
    direct_labels(gap, [(MARGIN, f"{MARGIN:g}", SOFT)])
    return figure


def _kinds(found: Sequence[SeedResults], names: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Operations, seen and then held out, to the indices of a seed's tasks; held-out ones are marked with a star."""
    kinds = {}
    for mark in ("", " *"):
        for number, name in enumerate(names):
            masks = [(m.cluster == number) & (m.seen == (mark == "")) for m in found]
            if any(mask.any() for mask in masks):
                kinds[f"{name}{mark}"] = masks
    return kinds


def operations(found: Sequence[SeedResults], names: Sequence[str]) -> Figure:
    """Heat maps of CKA, one row per operation, one column per layer: pre, tuned and their difference."""
    kinds = _kinds(found, names)
    encoded = {names[i] for i in {int(c) for m in found for c in m.cluster[m.encoded]}}

    def rows(model: str) -> np.ndarray:
        of = [[m.cka[model][mask] for m, mask in zip(found, masks, strict=True)] for masks in kinds.values()]
        return np.array([np.nanmean(np.concatenate(each), axis=0) for each in of])

    base, tuned = rows("base"), rows("tuned")
    figure, axes = subplots(3, size=(11 / 3, 0.26 * len(kinds) + 1.2), grid=None, sharey=True)
    least = min(0.0, float(np.nanmin([base, tuned])))
    most = max(0.1, float(np.nanmax(np.abs(tuned - base))))
    parts = {
        "pre": (base, "viridis", least, 1.0),
        "tuned": (tuned, "viridis", least, 1.0),
        "tuned - pre": (tuned - base, "RdBu", -most, most),
    }
    for axis, (title, (grid, colors, low, high)) in zip(axes, parts.items(), strict=True):
        image = axis.imshow(grid, aspect="auto", interpolation="none", cmap=colors, vmin=low, vmax=high)
        axis.set_xticks(np.arange(grid.shape[1]), [str(layer) for layer in _layers(found)])
        axis.set(title=title, xlabel="layer")
        if title != "pre":
            figure.colorbar(image, ax=axis)
    axes[0].set_yticks(np.arange(len(kinds)), list(kinds), fontsize=8)
    for label, name in zip(axes[0].get_yticklabels(), kinds, strict=True):
        label.set_fontweight("bold" if name.removesuffix(" *") in encoded else "normal")
    return figure


def clusters(found: Sequence[SeedResults], names: Sequence[str]) -> Figure:
    """Median over a cluster's tasks and all seeds by layer, pre dashed, tuned solid, one panel per cluster."""
    columns = 3
    figure, axes = subplots(len(names), columns, size=(3.5, 2.7), sharex=True, sharey=True)
    for number, (axis, name) in enumerate(zip(axes, names, strict=True)):
        for (which, color), kind in product((("seen", PURPLE), ("held out", ORANGE)), _COLORS):
            rows = [m.cka[kind][(m.cluster == number) & (m.seen == (which == "seen"))] for m in found]
            if len(values := np.concatenate(rows)):
                label, median = f"{which}, {_NAMES[kind]}", np.median(values, axis=0)
                axis.plot(_layers(found), median, _LINES[kind], marker=".", color=color, label=label)
        encoded = bool(found[0].encoded[found[0].cluster == number].any())
        axis.set_title(f"{name}{' (encoded by pre-training)' if encoded else ''}", fontsize=10)
        layer_axis(axis)
    outer_labels(axes, columns)
    for axis in axes[::columns]:
        axis.set_ylabel("median debiased CKA", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def accuracy_figure(found: Sequence[SeedResults], names: Sequence[str]) -> Figure:
    """Accuracy by operation, seen and held out: base, tuned, the tasks' own controls; grey: without the skill."""
    kinds = _kinds(found, names)
    figure, (axis,) = subplots(1, size=(11, 3.6), grid="y")
    places = np.arange(len(kinds))

    def means(values: Sequence[np.ndarray]) -> np.ndarray:
        """``[kind seed]``, NaN if a seed has no such task."""
        return np.array(
            [
                [v[mask].mean() if mask.any() else np.nan for v, mask in zip(values, masks, strict=True)]
                for masks in kinds.values()
            ]
        )

    chance = np.nanmean(means([m.chance for m in found]), axis=1)
    axis.bar(places, chance, width=0.9, color="#dddddd", label="without the skill")
    models = {
        "base": (_COLORS["base"], "pre"),
        "tuned": (_COLORS["tuned"], "tuned on the seen tasks"),
        "control": (GREEN, "control"),
    }
    for shift, (kind, (color, label)) in zip((-0.27, 0.0, 0.27), models.items(), strict=True):
        values = means([m.accuracy[kind] for m in found])
        axis.plot(places + shift, np.nanmean(values, axis=1), "o", ms=5, color=color, label=label)
        axis.vlines(places + shift, np.nanmin(values, axis=1), np.nanmax(values, axis=1), color=color, lw=1)
    axis.set_xticks(places, list(kinds), rotation=45)
    axis.set(ylabel="test accuracy", ylim=(-0.03, 1.05), title="* held out: not tuned on")
    figure.legend(frameon=False, ncols=4, loc="outside lower center", fontsize=9)
    return figure


def projection(pictures: Mapping[str, ProbeResult], names: Sequence[str]) -> Figure:
    """States at ANS in two dimensions, one row per model, one column per layer, coloured by cluster."""
    sites = next(iter(pictures.values())).coords["site"]
    figure, axes = subplots(len(pictures) * len(sites), len(sites), size=(3.6, 3.2), grid=None)
    for axis, ((kind, result), (i, site)) in zip(axes, product(pictures.items(), enumerate(sites)), strict=True):
        xy, classes = result["xy"][i].numpy(), result["label"].numpy()
        for c, name in enumerate(names):
            color, marker = category(c)
            x, y = xy[classes == c].T
            axis.scatter(x, y, s=12, lw=0, color=color, marker=marker, label=name)
        picture(axis)
        axis.set(xlabel=f"layer {result.layers[site]}", ylabel=_NAMES[kind])
        axis.label_outer()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, markerscale=2)
    return figure


def purity(found: Sequence[SeedResults]) -> Figure:
    """Nearest neighbours in one cluster by layer, one line per seed."""
    figure, (axis,) = subplots(1, size=(5.2, 3.6))
    _both(axis, found, "purity")
    axis.axhline(found[0].purity_chance, color=GREY, ls=":")
    layer_axis(axis)
    axis.set(ylabel="neighbour purity", ylim=(0, 1.02))
    ends = [(float(np.mean([m.purity[k][-1] for m in found])), _NAMES[k], _COLORS[k]) for k in _COLORS]
    direct_labels(axis, [*ends, (found[0].purity_chance, "chance", SOFT)])
    return figure
