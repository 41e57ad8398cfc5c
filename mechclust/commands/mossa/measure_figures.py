"""Figures of the measures other than CKA by task: dimensions, readability, forms of CKA, final norm, projections."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from mechclust.commands.mossa.draw import (
    LOOKS,
    finish,
    is_published_design,
    least,
    median_lines,
    places,
    published_quartiles,
    references,
    width,
)
from mechclust.commands.mossa.result import MEASURES, MossaResult
from mechclust.mossa.curve_statistics import covariate_correlation
from mechclust.mossa.published import COLEMAN_LIAU, CORRELATIONS, DATA_SIZE, DIMS, FLESCH_KINCAID, SEEN
from mechclust.mossa.task_curves import bootstrap, over_tasks
from mechclust.report.style import (
    CHANCE,
    GREY,
    SOFT,
    category,
    chance_band,
    direct_labels,
    layer_axis,
    picture,
    subplots,
)
from mechclust.report.text import figure_text

_ROLES = ("base", "tuned")


def dims_figure(result: MossaResult) -> Figure:
    """Dimensions for 99% of the variance by layer (the paper's figure 5): all seen tasks together, and by task."""
    figure, axes = subplots(2, size=(5.6, 3.6), grid="y")
    together, by_task = axes
    x, seen = np.arange(1, result.n_layers + 1), ~np.array(result.held_out, dtype=bool)
    for axis in axes:
        axis.set_xlim(0.4, result.n_layers + 0.6)
    labels: list[list[tuple[float, str, str]]] = [[], []]
    for role, values in result.dims.items():
        look = LOOKS[role]
        together.plot(x, values, color=look.color, marker=look.marker, ms=3.5, lw=1.7)
        labels[0].append((float(values[-1]), look.name, look.color))
        if is_published_design(result):
            known = DIMS[role]
            together.plot([*known], [*known.values()], "--", color=look.color, marker="D", mfc="none", ms=6, alpha=0.75)
    for role, values in result.task_dims.items():
        look, own = LOOKS[role], values[seen]
        by_task.fill_between(x, over_tasks(own, 0.25), over_tasks(own, 0.75), color=look.color, alpha=0.18, lw=0)
        by_task.plot(x, median := over_tasks(own, 0.5), color=look.color, marker=look.marker, ms=3.5, lw=1.7)
        labels[1].append((float(median[-1]), look.name, look.color))
    counts = [int(float(found["dims"].sel("n", label="all"))) for found in result.of_model.values() if "dims" in found]
    together.set_title(f"all seen tasks together ({max(counts, default=0):,} prompts)", fontsize=10)
    by_task.set_title(f"each seen task separately (median and quartiles, n ≥ {result.n:,})", fontsize=10)
    together.set_ylabel("dimensions for 99% of the variance")
    for axis, own_labels, n in ((together, labels[0], max(counts, default=0)), (by_task, labels[1], result.n)):
        _, top = axis.get_ylim()
        most = min(n - 1, result.d)
        if 0 < most < 1.6 * top:
            axis.axhline(most, color=GREY, ls=":", lw=1.2)
            own_labels.append((most, f"maximum possible ({most:,})", SOFT))
            top = max(top, 1.05 * most)
        axis.set_ylim(0, top)
        layer_axis(axis)
        direct_labels(axis, own_labels)
    return figure


def correlations_figure(result: MossaResult) -> Figure:
    """Correlation over seen tasks of CKA with readability and data size by layer (the paper's figure 6)."""
    from scipy.stats import t

    curves = result.curves().seen
    names = [name for name in (FLESCH_KINCAID, COLEMAN_LIAU, DATA_SIZE) if name in curves.covariates]
    figure, axes = subplots(len(names), size=(4.3, 3.3), grid="y", sharey=True)
    n = len(curves.tasks)
    band = math.nan
    if n > 3:
        quantile = float(t.ppf(0.975, n - 2))
        band = quantile / math.sqrt(n - 2 + quantile**2)
    x = places(curves)
    for axis, name in zip(axes, names, strict=True):
        labels = []
        axis.axhline(0, color=GREY, lw=0.9)
        if np.isfinite(band):
            chance_band(axis, [0.4, curves.n_layers + 0.6], np.full(2, -band), np.full(2, band))
        for role in _ROLES:
            look = LOOKS[role]
            value, ends = bootstrap(
                curves,
                lambda c, role=role, name=name: covariate_correlation(c, role, name),  # type: ignore[misc]
                seed=result.config.seed,
            )
            if not np.isfinite(value).any():
                continue
            axis.fill_between(x, *ends, color=look.color, alpha=0.16, lw=0)
            axis.plot(x, value, color=look.color, marker=look.marker, ms=3.5, lw=1.6)
            labels.append((float(value[-1]), look.name, look.color))
        if not labels:
            few = np.isfinite(curves.covariates[name]).sum() < 3
            why = "known for too few tasks" if few else "it is the same for all tasks"
            axis.text(0.5, 0.7, f"no correlation: {why}", ha="center", color=SOFT, transform=axis.transAxes)
        if is_published_design(result):
            for known in CORRELATIONS:
                if known.covariate == name:
                    ends_at = [known.layers[0] - 0.4, known.layers[1] + 0.4]
                    axis.fill_between(
                        ends_at, known.low, known.high, color=LOOKS[known.which].color, alpha=0.3, hatch=".."
                    )
        axis.set(title=name, xlim=(0.4, curves.n_layers + 0.6), ylim=(-1.05, 1.05))
        layer_axis(axis)
        if np.isfinite(band):
            labels.append((-band, CHANCE, SOFT))
        direct_labels(axis, labels)
    axes[0].set_ylabel(f"correlation over {n} tasks")
    return figure


def forms_figure(result: MossaResult) -> Figure:
    """Debiased and biased CKA by layer, each with what prompts paired at random give."""
    n, d = result.n, result.d
    figure, axes = subplots(2, size=(5.6, 3.6), grid="y", sharey=True)
    curves = {name: result.curves(name).seen for name in ("debiased CKA", "biased CKA")}
    seen = [task for task, out in zip(result.tasks, result.held_out, strict=True) if not out]
    lowest = 0.0
    labels = []
    for axis, (name, part) in zip(axes, curves.items(), strict=True):
        own = median_lines(axis, part, result.config.seed)
        if name == "biased CKA" and is_published_design(result):
            published_quartiles(axis, SEEN)
        value = MEASURES[name][1]
        ends = [
            over_tasks(np.array([_by_layer(result, task, f"{value}_null_{end}") for task in seen]), 0.5)
            for end in ("low", "high")
        ]
        if np.isfinite(ends).any():
            chance_band(axis, places(part), ends[0], ends[1])
            own.append((float(ends[1][-1]), "at random", SOFT))
        labels.append(own)
        lowest = min(lowest, least(part.quartiles("base")[0], part.quartiles("tuned")[0], *ends))
        axis.set_title(f"{name} (n ≥ {n:,} prompts per task, d = {d:,})", fontsize=10)
    for axis, (name, part), own in zip(axes, curves.items(), labels, strict=True):
        finish(axis, part, lowest, f"{name}, median over seen tasks")
        direct_labels(axis, own)
    return figure


def _by_layer(result: MossaResult, task: str, value: str) -> np.ndarray:
    found = result.of_task[task]["tuned.cka"]
    if value not in found.values:
        return np.full(result.n_layers, np.nan)
    return np.asarray(found.sel(value, label="all"), dtype=float)[: result.n_layers]


def opinions_figure(result: MossaResult) -> Figure:
    """Every measure of similarity with the controls, one panel each."""
    names = result.measures
    columns = 2 if len(names) in (2, 4) else min(len(names), 3)
    figure, axes = subplots(len(names), columns, size=(5.2 if columns == 2 else 4.3, 3.0), grid="y", sharey=True)
    curves = {name: result.curves(name).seen for name in names}
    lowest = min(least(c.quartiles("base")[0], c.quartiles("tuned")[0]) for c in curves.values())
    for k, (axis, (name, part)) in enumerate(zip(axes, curves.items(), strict=True)):
        labels = references(axis, part)
        labels += median_lines(axis, part, result.config.seed, marker=part.n_layers <= 24)
        finish(axis, part, lowest, "median over seen tasks" if k % columns == 0 else "")
        axis.set_title(name, fontsize=10)
        direct_labels(axis, labels)
    return figure


def final_norm_figure(result: MossaResult) -> Figure:
    """Debiased CKA after the final norm against that before it, one point per task."""
    figure, (axis,) = subplots(1, size=(5.6, 4.8))
    held_out = np.array(result.held_out, dtype=bool)
    roles = {"base": LOOKS["base"], "tuned": LOOKS["tuned"], "again": LOOKS["ceiling"]}
    drawn = []
    for role, look in roles.items():
        before, after = result.values(role)[:, -1], result.values(role, final_norm=True)
        for chosen, filled in ((~held_out, True), (held_out, False)):
            if not np.isfinite(before[chosen]).any():
                continue
            axis.plot(
                before[chosen],
                after[chosen],
                look.marker,
                ms=6,
                mew=1.4,
                mec=look.color,
                mfc=look.color if filled else "none",
                alpha=0.75,
                label=look.name + ("" if filled else ", held out"),
            )
        drawn += [before, after]
    low, high = least(*drawn), 1.03
    axis.plot([low, 1], [low, 1], color=GREY, lw=1, ls="--", zorder=0)
    axis.set(xlim=(low - 0.03, high), ylim=(low - 0.03, high))
    axis.set(xlabel="last block, before the final norm", ylabel="after the final norm")
    axis.set_aspect("equal")
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def picture_figure(result: MossaResult) -> Figure:
    """Hidden states in two dimensions, coloured by cluster (the paper's figure 4): pre above, tuned below."""
    pictures = {role: found["projection"] for role, found in result.of_model.items() if "projection" in found}
    sites = next(iter(pictures.values())).coords["site"]
    figure, axes = subplots(len(pictures) * len(sites), len(sites), size=(2.6, 2.6), grid=None)
    for axis, ((role, found), (i, site)) in zip(axes, product(pictures.items(), enumerate(sites)), strict=True):
        xy, codes = found["xy"][i].numpy(), found["label"].numpy()
        for code in np.unique(codes).tolist():
            color, marker = category(code)
            x, y = xy[codes == code].T
            axis.scatter(x, y, s=13, lw=0, marker=marker, color=color, alpha=0.8, label=_cluster(result, code))
        picture(axis)
        if role == next(iter(pictures)):
            axis.set_title(f"layer {found.layers[site]}", fontsize=11)
        if i == 0:
            axis.set_ylabel(LOOKS[role].name, fontsize=12, color=LOOKS[role].color)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(6, len(names)), frameon=False, markerscale=1.8)
    return figure


def _cluster(result: MossaResult, code: int) -> str:
    names = result.cluster_names
    return figure_text(names[code], 28) if code < len(names) else "no cluster"


def purity_figure(result: MossaResult) -> Figure:
    """Nearest neighbours of the same cluster by layer, with chance."""
    figure, (axis,) = subplots(1, size=(width(result.n_layers, 6, 9), 3.6), grid="y")
    labels = []
    for role, probes in result.of_model.items():
        found, look = probes["purity"], LOOKS[role]
        x = np.arange(1, result.n_layers + 1)
        share, low, high = (
            np.asarray(found[f"neighbour_purity{end}"], dtype=float)[: result.n_layers] for end in ("", "_low", "_high")
        )
        axis.fill_between(x, low, high, color=look.color, alpha=0.2, lw=0)
        axis.plot(x, share, color=look.color, marker=look.marker, ms=3.5, lw=1.7)
        labels.append((float(share[-1]), look.name, look.color))
    chance = float(next(iter(result.of_model.values()))["purity"]["chance"])
    axis.axhline(chance, color=GREY, ls="--", lw=1.3)
    axis.set(xlim=(0.4, result.n_layers + 0.6), ylim=(0, 1.03), ylabel="neighbours of the same cluster")
    layer_axis(axis)
    direct_labels(axis, [*labels, (chance, "chance", SOFT)])
    return figure
