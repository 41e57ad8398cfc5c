"""Figures of the MOSSA study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mechclust.report.style import BLUE, GREEN, GREY, ORANGE, RED, layer_axis, subplots
from mechclust.studies.mossa.results import SeedResults
from probes import ProbeResult

_COLORS = {"base": RED, "tuned": BLUE}
_NAMES = {"base": "pre", "tuned": "tuned"}
_LINES = {"base": "--", "tuned": "-"}


def _layers(found: Sequence[SeedResults]) -> np.ndarray:
    return np.arange(1, found[0].n_layers + 1)


def boxes(found: Sequence[SeedResults]) -> Figure:
    """CKA over tasks and seeds by layer, pre beside tuned, seen tasks beside held-out ones (the paper's figures)."""
    parts = {"seen tasks": [m.seen for m in found], "held-out tasks": [~m.seen for m in found]}
    parts = {name: masks for name, masks in parts.items() if masks[0].any()}
    figure, axes = subplots(len(parts), size=(6.0, 4.2), grid="y", sharey=True)
    layers = _layers(found)
    for axis, (title, masks) in zip(axes, parts.items(), strict=True):
        for place, kind in ((-0.19, "base"), (0.19, "tuned")):
            values = np.concatenate([m.cka[kind][mask] for m, mask in zip(found, masks, strict=True)])
            axis.boxplot(
                [v[np.isfinite(v)] for v in values.T],
                positions=layers + place,
                widths=0.32,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": _COLORS[kind], "alpha": 0.45, "linewidth": 0.8},
                medianprops={"color": _COLORS[kind], "linewidth": 2},
                flierprops={"marker": ".", "markersize": 3, "markeredgecolor": _COLORS[kind]},
                whiskerprops={"linewidth": 0.8},
                capprops={"linewidth": 0.8},
            )
        layer_axis(axis)
        axis.set_title(f"{title} ({int(masks[0].sum())} tasks)")
    handles: list[Patch | Line2D] = [Patch(facecolor=_COLORS[k], alpha=0.45, label=_NAMES[k]) for k in _COLORS]
    ceilings = [np.median(m.ceiling, axis=0) for m in found if m.ceiling is not None]
    if ceilings and "seen tasks" in parts:
        handles += axes[0].plot(layers, np.mean(ceilings, axis=0), ls=":", color="#555555", lw=1.4, label="ceiling")
    axes[0].set_ylabel("debiased CKA with the controls")
    axes[0].legend(handles=handles, frameon=False, loc="lower left")
    return figure


def _both(axis: Axes, found: Sequence[SeedResults], measure: str) -> None:
    """A measure of both models by layer, one line per seed."""
    for i, (m, kind) in enumerate(product(found, _COLORS)):
        values = m.spread(kind) if measure == "spread" else getattr(m, measure)[kind]
        label = _NAMES[kind] if i < len(_COLORS) else None
        axis.plot(_layers(found), values, _LINES[kind], marker=".", color=_COLORS[kind], alpha=0.85, label=label)


def groups(found: Sequence[SeedResults]) -> Figure:
    """What the layer groups are read from: median difference, spread and dimensions, one line per seed."""
    figure, axes = subplots(3, size=(4.0, 3.6))
    gap, spread, dims = axes
    for m in found:
        gap.plot(_layers(found), m.gap, marker=".", color=BLUE, alpha=0.85)
    _both(spread, found, "spread")
    _both(dims, found, "dims")
    gap.axhline(0, color=GREY, lw=0.8)
    gap.axhline(0.02, color=GREY, lw=0.8, ls=":")
    gap.set(title="median CKA, tuned - pre", ylabel="difference")
    spread.set(title="interquartile range over seen tasks", ylabel="CKA", ylim=(0, None))
    dims.set(title="dimensions for 99% of the variance", ylabel="dimensions", ylim=(0, None))
    spread.legend(frameon=False)
    for axis in axes:
        layer_axis(axis)
    return figure


def tasks(found: Sequence[SeedResults], names: Sequence[str]) -> Figure:
    """Heat maps of CKA, one row per task, one column per layer: pre, tuned and their difference, mean over seeds."""
    seen, encoded = found[0].seen, found[0].encoded
    order = [*np.flatnonzero(seen), *np.flatnonzero(~seen)]
    base, tuned = (np.mean([m.cka[kind] for m in found], axis=0)[order] for kind in ("base", "tuned"))
    figure, axes = subplots(3, size=(11 / 3, 0.24 * len(order) + 1.2), grid=None, sharey=True)
    least = min(0.0, float(np.nanmin([base, tuned])))
    parts = {
        "pre": (base, "viridis", least),
        "tuned": (tuned, "viridis", least),
        "tuned - pre": (tuned - base, "RdBu", -1.0),
    }
    for axis, (title, (grid, colors, low)) in zip(axes, parts.items(), strict=True):
        image = axis.imshow(grid, aspect="auto", interpolation="none", cmap=colors, vmin=low, vmax=1.0)
        axis.set_xticks(np.arange(grid.shape[1]), [str(layer) for layer in _layers(found)])
        axis.set(title=title, xlabel="layer")
        if title != "pre":
            figure.colorbar(image, ax=axis)
    axes[0].set_yticks(np.arange(len(order)), [names[i] if seen[i] else f"{names[i]} *" for i in order], fontsize=8)
    for label, i in zip(axes[0].get_yticklabels(), order, strict=True):
        label.set_fontweight("bold" if encoded[i] else "normal")
    return figure


def clusters(found: Sequence[SeedResults], names: Sequence[str]) -> Figure:
    """Median over a cluster's tasks and all seeds by layer, pre dashed, tuned solid, one panel per cluster."""
    columns = 3
    figure, axes = subplots(len(names), columns, size=(3.5, 2.7), sharex=True, sharey=True)
    for number, (axis, name) in enumerate(zip(axes, names, strict=True)):
        for (which, color), kind in product((("seen", BLUE), ("held out", ORANGE)), _COLORS):
            rows = [m.cka[kind][(m.cluster == number) & (m.seen == (which == "seen"))] for m in found]
            if len(values := np.concatenate(rows)):
                label, median = f"{which}, {_NAMES[kind]}", np.median(values, axis=0)
                axis.plot(_layers(found), median, _LINES[kind], marker=".", color=color, label=label)
        encoded = bool(found[0].encoded[found[0].cluster == number].any())
        axis.set_title(f"{name}{' (encoded by pre-training)' if encoded else ''}", fontsize=10)
        layer_axis(axis)
        axis.label_outer()
    for axis in axes[::columns]:
        axis.set_ylabel("median debiased CKA", fontsize=9)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def accuracy(found: Sequence[SeedResults], names: Sequence[str]) -> Figure:
    """Accuracy by task: base, tuned, the task's own control; the commonest answer's in grey."""
    figure, (axis,) = subplots(1, size=(11, 3.6), grid="y")
    places = np.arange(len(names))
    kinds = {"base": (RED, "pre"), "tuned": (BLUE, "tuned on the seen tasks"), "control": (GREEN, "control")}
    axis.bar(places, np.mean([m.chance for m in found], axis=0), width=0.9, color="#dddddd", label="without the skill")
    for shift, (kind, (color, label)) in zip((-0.27, 0.0, 0.27), kinds.items(), strict=True):
        values = np.stack([m.accuracy[kind] for m in found])
        axis.plot(places + shift, values.mean(axis=0), "o", ms=5, color=color, label=label)
        axis.vlines(places + shift, values.min(axis=0), values.max(axis=0), color=color, lw=1)
    seen = found[0].seen
    axis.set_xticks(places, [name if s else f"{name} *" for name, s in zip(names, seen, strict=True)], rotation=60)
    axis.set(ylabel="test accuracy", ylim=(-0.03, 1.05), title="* held out: not tuned on")
    figure.legend(frameon=False, ncols=4, loc="outside lower center", fontsize=9)
    return figure


def projection(pictures: Mapping[str, ProbeResult], names: Sequence[str]) -> Figure:
    """States at ANS in two dimensions, one row per model, one column per layer, coloured by cluster."""
    sites = next(iter(pictures.values())).coords["site"]
    figure, axes = subplots(len(pictures) * len(sites), len(sites), size=(3.6, 3.2), grid=None)
    colors = matplotlib.colormaps["tab10"]
    for axis, ((kind, result), (i, site)) in zip(axes, product(pictures.items(), enumerate(sites)), strict=True):
        xy, classes = result["xy"][i].numpy(), result["label"].numpy()
        for c, name in enumerate(names):
            x, y = xy[classes == c].T
            axis.scatter(x, y, s=7, lw=0, color=colors(c), label=name)
        axis.set(xticks=[], yticks=[], xlabel=f"layer {result.layers[site]}", ylabel=_NAMES[kind])
        axis.label_outer()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, markerscale=2)
    return figure


def purity(found: Sequence[SeedResults]) -> Figure:
    """Nearest neighbours in one cluster by layer, one line per seed."""
    figure, (axis,) = subplots(1, size=(5.2, 3.6))
    _both(axis, found, "purity")
    axis.axhline(found[0].purity_chance, color=GREY, ls=":", label="chance")
    layer_axis(axis)
    axis.set(ylabel="neighbour purity", ylim=(0, 1.02))
    axis.legend(frameon=False)
    return figure
