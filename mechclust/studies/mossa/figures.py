"""Figures of the MOSSA study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mechclust.evidence.intervals import mean_interval
from mechclust.mossa.layer_groups import MARGIN
from mechclust.mossa.task_curves import Which
from mechclust.report.axes import bare_axis, direct_labels, layer_axis, outer_labels
from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SOFT, category_style
from mechclust.report.subplots import subplots
from mechclust.report.text import counted
from mechclust.studies.mossa.results import SeedResults, boundaries_by_seed, ceiling_medians
from probes import ProbeResult

_CEILING: Mapping[str, Any] = {"ls": ":", "color": "#555555", "lw": 1.4, "label": "ceiling"}
_ENCODED = "encoded"
_NOT_ENCODED = "not encoded by pre-training"
_IMAGE: Mapping[str, Any] = {"aspect": "auto", "interpolation": "none"}
_POINT: Mapping[str, Any] = {"ls": "", "marker": "o", "ms": 4, "color": GREY}


class _Look(NamedTuple):
    """Name, colour and line of a model, and the shift of its boxes, in layers."""

    name: str
    color: str
    line: str
    shift: float


# The colours are the paper's.
_LOOKS: Mapping[Which, _Look] = {"base": _Look("pre", BLUE, "--", -0.19), "tuned": _Look("tuned", RED, "-", 0.19)}

Runs = Sequence[SeedResults]
_Masks = list[Bool[np.ndarray, "task"]]  # one for each seed
_ByLayer = Shaped[np.ndarray, "layer"]


def _layers(runs: Runs) -> Int[np.ndarray, "layer"]:
    return np.arange(1, runs[0].n_layers + 1)


# ---- CKA of every task ----


def boxes_figure(runs: Runs) -> Figure:
    """Draw CKA of every task and seed by layer, for pre and tuned, seen and held-out tasks, as the paper does.

    Points in the boxes are filled for tasks that pre-training did not encode, and rings for the others.
    """
    parts = {"seen tasks": [run.seen for run in runs]}
    if not runs[0].seen.all():
        parts["held-out tasks"] = [~run.seen for run in runs]
    figure, axes = subplots(len(parts), size=(6.0, 4.2), grid="y", sharey=True)
    rng = np.random.default_rng(0)
    for axis, (title, masks) in zip(axes, parts.items(), strict=True):
        for model, look in _LOOKS.items():
            values = np.concatenate([run.cka[model][mask] for run, mask in zip(runs, masks, strict=True)])
            encoded = np.concatenate([run.encoded[mask] for run, mask in zip(runs, masks, strict=True)])
            places = _layers(runs) + look.shift
            x = places + rng.uniform(-0.13, 0.13, values.shape)
            axis.plot(x[~encoded], values[~encoded], ".", ms=2, mew=0, color=look.color, alpha=0.5)
            axis.plot(x[encoded], values[encoded], "o", ms=2, mew=0.4, mfc="none", color=look.color, alpha=0.7)
            _draw_boxes(axis, places, values, look.color)
        layer_axis(axis)
        axis.axhline(0, color=GREY, lw=0.8)
        axis.set_title(f"{title} ({int(masks[0].sum())} per seed)")
    handles: list[Patch | Line2D] = [
        Patch(facecolor=look.color, alpha=0.45, label=look.name) for look in _LOOKS.values()
    ]
    handles += [Line2D([], [], label=_NOT_ENCODED, **_POINT), Line2D([], [], label=_ENCODED, mfc="none", **_POINT)]
    ceilings = ceiling_medians(runs)
    if ceilings:
        handles += axes[0].plot(_layers(runs), np.mean(ceilings, axis=0), **_CEILING)
    axes[0].set_ylabel("debiased CKA with the controls")
    figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=len(handles))
    return figure


def _draw_boxes(
    axis: Axes, places: Float[np.ndarray, "layer"], values: Float[np.ndarray, "point layer"], color: str
) -> None:
    axis.boxplot(
        [of_layer[np.isfinite(of_layer)] for of_layer in values.T],
        positions=places,
        widths=0.32,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": color, "alpha": 0.3, "linewidth": 0.8},
        medianprops={"color": "black", "linewidth": 1.4},
        showfliers=False,
        whiskerprops={"linewidth": 0.8},
        capprops={"linewidth": 0.8},
    )


# ---- curves and layer groups ----


def layer_groups_figure(runs: Runs) -> Figure:
    """Draw the curves behind the layer groups: median difference with both boundaries, spread and dimensions."""
    figure, axes = subplots(3, size=(4.0, 3.6))
    gap, spread, dims = axes
    _draw_seeds(gap, [run.curves.seen.gap for run in runs], color="black", label="tuned - pre")
    _draw_boundaries(gap, runs)
    _draw_models(spread, {model: [run.curves.seen.spread(model) for run in runs] for model in _LOOKS})
    _draw_models(dims, {model: [run.dims[model] for run in runs] for model in _LOOKS})
    gap.axhline(0, color=GREY, lw=0.8)
    gap.axhline(MARGIN, color=GREY, lw=0.8, ls=":")
    gap.set(ylabel="median CKA, tuned - pre")
    spread.set(title="interquartile range over seen tasks", ylabel="CKA", ylim=(0, None))
    dims.set(title="dimensions for 99% of the variance", ylabel="dimensions", ylim=(0, None))
    spread.legend(frameon=False)
    for axis in axes:
        layer_axis(axis)
    gap.set_xlim(0.7, runs[0].n_layers + 0.5)
    direct_labels(gap, [(MARGIN, f"{MARGIN:g}", SOFT)])
    return figure


def _draw_models(axis: Axes, values: Mapping[Which, Sequence[_ByLayer]]) -> None:
    """Draw a measure of both models by layer."""
    for model, by_seed in values.items():
        look = _LOOKS[model]
        _draw_seeds(axis, by_seed, line=look.line, color=look.color, label=look.name)


def _draw_seeds(axis: Axes, by_seed: Sequence[_ByLayer], *, line: str = "-", color: str, label: str) -> None:
    """Draw a thin line per seed, and their mean."""
    layers = np.arange(1, len(by_seed[0]) + 1)
    if len(by_seed) > 1:
        for values in by_seed:
            axis.plot(layers, values, line, color=color, alpha=0.3, lw=0.8)
    axis.plot(layers, np.mean(by_seed, axis=0), line, marker=".", color=color, lw=1.8, label=label)


def _draw_boundaries(axis: Axes, runs: Runs) -> None:
    """Draw the mean last layer of the shared layers and of the transition, with intervals."""
    ends, has_transition = boundaries_by_seed([run.curves.seen for run in runs])
    count = int(has_transition.sum())
    axis.set_title(f"a transition in {count} of {counted(len(runs), 'seed')}", fontsize=9, loc="left")
    if not count:
        return
    looks = (("shared", SOFT, 0.02), ("transition", GREEN, 0.1))
    for layers, (name, color, height) in zip(ends[has_transition].T, looks, strict=True):
        mean = layers.mean()
        low, high = mean_interval(layers.tolist()) or (mean, mean)
        axis.axvspan(low, high, color=color, alpha=0.18, lw=0)
        axis.axvline(mean, color=color, lw=1)
        has_room_left = mean > runs[0].n_layers / 2
        axis.text(
            mean - 0.08 if has_room_left else mean + 0.08,
            height,
            f"last {name} layer {mean:.1f}",
            color=color,
            fontsize=8.5,
            ha="right" if has_room_left else "left",
            transform=axis.get_xaxis_transform(),
        )


def purity_figure(runs: Runs) -> Figure:
    """Draw the share of nearest neighbours in one cluster by layer, one line per seed."""
    figure, (axis,) = subplots(1, size=(5.2, 3.6))
    _draw_models(axis, {model: [run.purity[model] for run in runs] for model in _LOOKS})
    axis.axhline(runs[0].purity_chance, color=GREY, ls=":")
    layer_axis(axis)
    axis.set(ylabel="neighbour purity", ylim=(0, 1.02))
    labels = []
    for model, look in _LOOKS.items():
        last = float(np.mean([run.purity[model][-1] for run in runs]))
        labels.append((last, look.name, look.color))
    direct_labels(axis, [*labels, (runs[0].purity_chance, "chance", SOFT)])
    return figure


# ---- operations ----


def _tasks_by_kind(runs: Runs, names: Sequence[str]) -> dict[str, _Masks]:
    """Return the tasks of each operation, seen and then held out. Held-out ones are marked with a star."""
    kinds = {}
    for seen, mark in ((True, ""), (False, " *")):
        for number, name in enumerate(names):
            masks = [(run.cluster == number) & (run.seen == seen) for run in runs]
            if any(mask.any() for mask in masks):
                kinds[f"{name}{mark}"] = masks
    return kinds


def _encoded_operations(runs: Runs, names: Sequence[str]) -> set[str]:
    numbers = np.concatenate([run.cluster[run.encoded] for run in runs])
    return {names[number] for number in numbers}


def operations_figure(runs: Runs, names: Sequence[str]) -> Figure:
    """Draw heat maps of CKA, one row per operation, one column per layer: pre, tuned and their difference."""
    kinds = _tasks_by_kind(runs, names)
    base = _means_by_kind(runs, kinds, "base")
    tuned = _means_by_kind(runs, kinds, "tuned")
    figure, axes = subplots(3, size=(11 / 3, 0.26 * len(kinds) + 1.2), grid=None, sharey=True)
    lowest = min(0.0, float(np.nanmin([base, tuned])))
    largest = max(0.1, float(np.nanmax(np.abs(tuned - base))))
    difference = axes[2].imshow(tuned - base, cmap="RdBu", vmin=-largest, vmax=largest, **_IMAGE)
    axes[0].imshow(base, cmap="viridis", vmin=lowest, vmax=1.0, **_IMAGE)
    similarity = axes[1].imshow(tuned, cmap="viridis", vmin=lowest, vmax=1.0, **_IMAGE)
    for axis, title in zip(axes, ("pre", "tuned", "tuned - pre"), strict=True):
        axis.set_xticks(np.arange(base.shape[1]), [str(layer) for layer in _layers(runs)])
        axis.set(title=title, xlabel="layer")
    figure.colorbar(similarity, ax=axes[1])
    figure.colorbar(difference, ax=axes[2])
    axes[0].set_yticks(np.arange(len(kinds)), list(kinds), fontsize=8)
    encoded = _encoded_operations(runs, names)
    for label, name in zip(axes[0].get_yticklabels(), kinds, strict=True):
        label.set_fontweight("bold" if name.removesuffix(" *") in encoded else "normal")
    return figure


def _means_by_kind(runs: Runs, kinds: Mapping[str, _Masks], model: str) -> Float[np.ndarray, "kind layer"]:
    """Return CKA by layer, mean over the tasks of a kind and over seeds."""
    rows = []
    for masks in kinds.values():
        tasks = [run.cka[model][mask] for run, mask in zip(runs, masks, strict=True)]
        rows.append(np.nanmean(np.concatenate(tasks), axis=0))
    return np.array(rows)


def clusters_figure(runs: Runs, names: Sequence[str]) -> Figure:
    """Draw the median over a cluster's tasks and all seeds by layer, pre dashed, tuned solid, a panel per cluster."""
    columns = 3
    figure, axes = subplots(len(names), columns, size=(3.5, 2.7), sharex=True, sharey=True)
    encoded = _encoded_operations(runs[:1], names)
    for number, (axis, name) in enumerate(zip(axes, names, strict=True)):
        for (group, seen, color), (model, look) in product(
            (("seen", True, PURPLE), ("held out", False, ORANGE)), _LOOKS.items()
        ):
            tasks = [run.cka[model][(run.cluster == number) & (run.seen == seen)] for run in runs]
            values = np.concatenate(tasks)
            if len(values):
                median = np.median(values, axis=0)
                label = f"{group}, {look.name}"
                axis.plot(_layers(runs), median, look.line, marker=".", color=color, label=label)
        axis.set_title(f"{name} (encoded by pre-training)" if name in encoded else name, fontsize=10)
        layer_axis(axis)
    outer_labels(axes, columns)
    for axis in axes[::columns]:
        axis.set_ylabel("median debiased CKA", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def accuracy_figure(runs: Runs, names: Sequence[str]) -> Figure:
    """Draw accuracy by operation, seen and held out: base, tuned and the tasks' controls, grey without the skill."""
    kinds = _tasks_by_kind(runs, names)
    figure, (axis,) = subplots(1, size=(11, 3.6), grid="y")
    places = np.arange(len(kinds))
    chance = np.nanmean(_accuracies_by_kind([run.chance for run in runs], kinds), axis=1)
    axis.bar(places, chance, width=0.9, color="#dddddd", label="without the skill")
    for model, shift, color, label in (
        ("base", -0.27, BLUE, "pre"),
        ("tuned", 0.0, RED, "tuned on the seen tasks"),
        ("control", 0.27, GREEN, "control"),
    ):
        values = _accuracies_by_kind([run.accuracy[model] for run in runs], kinds)
        axis.plot(places + shift, np.nanmean(values, axis=1), "o", ms=5, color=color, label=label)
        axis.vlines(places + shift, np.nanmin(values, axis=1), np.nanmax(values, axis=1), color=color, lw=1)
    axis.set_xticks(places, list(kinds), rotation=45)
    axis.set(ylabel="test accuracy", ylim=(-0.03, 1.05), title="* held out: not tuned on")
    figure.legend(frameon=False, ncols=4, loc="outside lower center", fontsize=9)
    return figure


def _accuracies_by_kind(
    by_seed: Sequence[Float[np.ndarray, "task"]], kinds: Mapping[str, _Masks]
) -> Float[np.ndarray, "kind seed"]:
    """Return means over the tasks of a kind, NaN if a seed has no such task."""
    means = np.full((len(kinds), len(by_seed)), np.nan)
    for row, masks in enumerate(kinds.values()):
        for seed, mask in enumerate(masks):
            if mask.any():
                means[row, seed] = by_seed[seed][mask].mean()
    return means


def projection_figure(pictures: Mapping[Which, ProbeResult], names: Sequence[str]) -> Figure:
    """Draw states at ANS in two dimensions, one row per model, one column per layer, coloured by cluster."""
    sites = next(iter(pictures.values())).coords["site"]
    figure, axes = subplots(len(pictures) * len(sites), len(sites), size=(3.6, 3.2), grid=None)
    for axis, ((model, result), (i, site)) in zip(axes, product(pictures.items(), enumerate(sites)), strict=True):
        points = result["xy"][i].numpy()
        classes = result["label"].numpy()
        for number, name in enumerate(names):
            color, marker = category_style(number)
            x, y = points[classes == number].T
            axis.scatter(x, y, s=12, lw=0, color=color, marker=marker, label=name)
        bare_axis(axis)
        axis.set(xlabel=f"layer {result.layers[site]}", ylabel=_LOOKS[model].name)
        axis.label_outer()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, markerscale=2)
    return figure
