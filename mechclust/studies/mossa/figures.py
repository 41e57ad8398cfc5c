"""Figures of the MOSSA study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from markupsafe import escape
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from probes import ProbeResult

if TYPE_CHECKING:
    from mechclust.studies.mossa.results import Measured

_PRE, _TUNED, _CEILING = "#c8553d", "#1b6ca8", "#555555"
_COLORS = {"base": _PRE, "tuned": _TUNED}
_NAMES = {"base": "pre", "tuned": "tuned"}
_LABEL = "debiased CKA with the controls"


def seeds(found: Sequence[Measured]) -> str:
    """``"3 seeds"``."""
    return f"{len(found)} seed{'s' if len(found) > 1 else ''}"


def _layers(found: Sequence[Measured]) -> np.ndarray:
    return np.arange(1, found[0].n_layers + 1)


def boxes(found: Sequence[Measured]) -> Figure:
    """CKA over tasks and seeds by layer, pre beside tuned, seen tasks beside held-out ones (the paper's figures)."""
    parts = {"seen tasks": [m.seen for m in found], "held-out tasks": [~m.seen for m in found]}
    parts = {name: masks for name, masks in parts.items() if masks[0].any()}
    figure = Figure(figsize=(6.0 * len(parts), 4.2), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(parts), sharey=True))
    layers = _layers(found)
    for axis, (title, masks) in zip(axes, parts.items(), strict=True):
        for place, kind in ((-0.19, "base"), (0.19, "tuned")):
            values = np.concatenate([m.cka[kind][mask] for m, mask in zip(found, masks, strict=True)])
            face = {"facecolor": _COLORS[kind], "alpha": 0.45, "linewidth": 0.8}
            axis.boxplot(
                [v[np.isfinite(v)] for v in values.T],
                positions=layers + place,
                widths=0.32,
                patch_artist=True,
                manage_ticks=False,
                boxprops=face,
                medianprops={"color": _COLORS[kind], "linewidth": 2},
                flierprops={"marker": ".", "markersize": 3, "markeredgecolor": _COLORS[kind]},
                whiskerprops={"linewidth": 0.8},
                capprops={"linewidth": 0.8},
            )
        ceilings = [np.median(m.ceiling, axis=0) for m in found if m.ceiling is not None]
        if ceilings and title == "seen tasks":
            axis.plot(layers, np.mean(ceilings, axis=0), ls=":", color=_CEILING, lw=1.4)
        axis.set(title=f"{title} ({int(masks[0].sum())} tasks, {seeds(found)})", xlabel="layer")
        axis.set_xticks(layers)
        axis.grid(alpha=0.25, axis="y")
    axes[0].set_ylabel(_LABEL)
    handles: list[Any] = [Patch(facecolor=_COLORS[k], alpha=0.45, label=_NAMES[k]) for k in _COLORS]
    if found[0].ceiling is not None:
        handles.append(matplotlib.lines.Line2D([], [], ls=":", color=_CEILING, label="ceiling"))
    axes[0].legend(handles=handles, frameon=False, loc="lower left")
    return figure


def groups(found: Sequence[Measured]) -> Figure:
    """What the layer groups are read from: median difference, spread and dimensions, a line a seed."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    gap, spread, dims = figure.subplots(1, 3)
    layers = _layers(found)
    for i, m in enumerate(found):
        style = {"lw": 1.5, "alpha": 0.85}
        gap.plot(layers, m.median("tuned") - m.median("base"), marker=".", color=_TUNED, **style)
        for kind in _COLORS:
            line = {**style, "color": _COLORS[kind], "label": None if i else _NAMES[kind]}
            line["ls"] = "--" if kind == "base" else "-"
            spread.plot(layers, m.spread(kind), marker=".", **line)
            dims.plot(layers, m.dims[kind], marker=".", **line)
    gap.axhline(0, color="#999999", lw=0.8)
    gap.axhline(0.02, color="#999999", lw=0.8, ls=":")
    gap.set(title="median CKA, tuned - pre", ylabel="difference")
    spread.set(title="interquartile range over seen tasks", ylabel="CKA", ylim=(0, None))
    dims.set(title="dimensions for 99% of the variance", ylabel="dimensions", ylim=(0, None))
    spread.legend(frameon=False)
    dims.legend(frameon=False)
    for axis in (gap, spread, dims):
        axis.set_xlabel("layer")
        axis.set_xticks(layers)
        axis.grid(alpha=0.25)
    return figure


def tasks(found: Sequence[Measured], names: Sequence[str]) -> Figure:
    """Heat maps of CKA, a row a task, a column a layer: pre, tuned and their difference, mean over seeds."""
    seen, encoded = found[0].seen, found[0].encoded
    order = [*np.flatnonzero(seen), *np.flatnonzero(~seen)]
    pre, tuned = (np.mean([m.cka[kind] for m in found], axis=0)[order] for kind in ("base", "tuned"))
    figure = Figure(figsize=(11, 0.24 * len(order) + 1.2), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    shown = {"cmap": "viridis", "vmin": min(0.0, float(np.nanmin([pre, tuned]))), "vmax": 1.0}
    around = {"cmap": "RdBu", "vmin": -1.0, "vmax": 1.0}
    for axis, title, grid, options in zip(
        axes, ("pre", "tuned", "tuned - pre"), (pre, tuned, tuned - pre), (shown, shown, around), strict=True
    ):
        image = axis.imshow(grid, aspect="auto", interpolation="none", **options)
        axis.set_xticks(np.arange(grid.shape[1]), [str(layer) for layer in _layers(found)])
        axis.set(title=title, xlabel="layer")
        if title != "pre":
            figure.colorbar(image, ax=axis)
    axes[0].set_yticks(np.arange(len(order)), [names[i] if seen[i] else f"{names[i]} *" for i in order], fontsize=8)
    for label, i in zip(axes[0].get_yticklabels(), order, strict=True):
        label.set_fontweight("bold" if encoded[i] else "normal")
    return figure


def clusters(found: Sequence[Measured], names: Sequence[str]) -> Figure:
    """Median over a cluster's tasks and all seeds by layer, pre dashed, tuned solid, a cluster a panel."""
    columns = 3
    figure = Figure(figsize=(10.5, 2.7 * -(-len(names) // columns)), layout="constrained")
    axes = figure.subplots(-(-len(names) // columns), columns, squeeze=False, sharex=True, sharey=True).ravel()
    layers = _layers(found)
    for number, (axis, name) in enumerate(zip(axes, names, strict=False)):
        for which, color in (("seen", _TUNED), ("held out", "#d98a29")):
            for kind, line in (("base", "--"), ("tuned", "-")):
                rows = [m.cka[kind][(m.cluster == number) & (m.seen == (which == "seen"))] for m in found]
                values = np.concatenate(rows)
                if len(values):
                    label = f"{which}, {_NAMES[kind]}"
                    axis.plot(layers, np.median(values, axis=0), ls=line, color=color, marker=".", label=label)
        encoded = bool(found[0].encoded[found[0].cluster == number].any())
        axis.set_title(f"{name}{' (encoded by pre-training)' if encoded else ''}", fontsize=10)
        axis.set_xticks(layers)
        axis.grid(alpha=0.25)
    for axis in axes[::columns]:
        axis.set_ylabel("median debiased CKA", fontsize=9)
    for axis in axes[-columns:]:
        axis.set_xlabel("layer")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def accuracy(found: Sequence[Measured], names: Sequence[str]) -> Figure:
    """Accuracy by task: base, tuned, the task's own control; the commonest answer's in grey."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(names))
    kinds = {"base": (_PRE, "pre"), "tuned": (_TUNED, "tuned on the seen tasks"), "control": ("#3a9a6b", "control")}
    axis.bar(places, np.mean([m.chance for m in found], axis=0), width=0.9, color="#dddddd", label="without the skill")
    for shift, (kind, (color, label)) in zip((-0.27, 0.0, 0.27), kinds.items(), strict=True):
        values = np.stack([m.accuracy[kind] for m in found])
        axis.plot(places + shift, values.mean(axis=0), "o", ms=5, color=color, label=label)
        axis.vlines(places + shift, values.min(axis=0), values.max(axis=0), color=color, lw=1)
    seen = found[0].seen
    axis.set_xticks(places, [name if s else f"{name} *" for name, s in zip(names, seen, strict=True)], rotation=60)
    axis.set(ylabel="test accuracy", ylim=(-0.03, 1.05), title="* held out: not tuned on")
    axis.grid(alpha=0.25, axis="y")
    figure.legend(frameon=False, ncols=4, loc="outside lower center", fontsize=9)
    return figure


def projection(pictures: Mapping[str, ProbeResult], names: Sequence[str]) -> Figure:
    """States at ANS in two dimensions, a row a model, a column a layer, coloured by cluster."""
    sites = next(iter(pictures.values())).coords["site"]
    figure = Figure(figsize=(3.4 * len(sites) + 1.2, 3.2 * len(pictures)), layout="constrained")
    grid = figure.subplots(len(pictures), len(sites), squeeze=False)
    colors = matplotlib.colormaps["tab10"]
    for number, (row, (kind, result)) in enumerate(zip(grid, pictures.items(), strict=True)):
        classes = result["label"].numpy()
        for axis, site, xy in zip(row, sites, result["xy"].numpy(), strict=True):
            for c, name in enumerate(names):
                axis.scatter(*xy[classes == c].T, s=7, lw=0, color=colors(c), label=name)
            axis.set_xticks([])
            axis.set_yticks([])
            if number == 0:
                axis.set_title(f"layer {result.layers[site]}", fontsize=10)
        row[0].set_ylabel(_NAMES[kind])
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, markerscale=2)
    return figure


def purity(found: Sequence[Measured]) -> Figure:
    """Nearest neighbours in one cluster by layer, a line a seed."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axis = figure.subplots()
    for i, m in enumerate(found):
        for kind in _COLORS:
            label = None if i else _NAMES[kind]
            axis.plot(_layers(found), m.purity[kind], marker=".", color=_COLORS[kind], alpha=0.85, label=label)
    axis.axhline(found[0].purity_chance, color="#999999", ls=":", label="chance")
    axis.set(xlabel="layer", ylabel="neighbour purity", ylim=(0, 1.02))
    axis.set_xticks(_layers(found))
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    return figure


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """HTML of records with the same keys."""
    head = "".join(f"<th>{escape(key)}</th>" for key in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(v)}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
