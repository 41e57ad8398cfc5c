"""Figures of the task-cluster study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from probes import ProbeResult

if TYPE_CHECKING:
    from mechclust.studies.task_clusters.claims import Curves
    from mechclust.studies.task_clusters.study import Job

_SPLITS = {"train_subset": "training subset", "validation_subset": "validation"}
_TASK, _OUTPUT, _NULL = "#1b6ca8", "#c8553d", "#bbbbbb"


def _layer_colors(n: int) -> np.ndarray:
    return matplotlib.colormaps["viridis"](np.linspace(0.0, 0.92, n))


def _names(n_sites: int) -> list[str]:
    """Layers 0 to n, then the final norm."""
    return [str(layer) for layer in range(n_sites - 1)] + ["FN"]


def ari_over_training(runs: Sequence[Curves]) -> Figure:
    """Task-ARI over training steps, a line a layer, training subset beside validation (the paper's Figure 1)."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    steps = runs[0].steps
    for axis, (split, title) in zip(axes, _SPLITS.items(), strict=True):
        values = np.stack([run.ari[split] for run in runs])  # [seed step site]
        null = np.stack([run.null for run in runs])
        low, high = null[..., 0].min(axis=(0, 2)), null[..., 1].max(axis=(0, 2))
        axis.fill_between(steps, low, high, color=_NULL, alpha=0.6, lw=0, label="chance (95%)")
        colors = _layer_colors(values.shape[2])
        for site, (name, color) in enumerate(zip(_names(values.shape[2]), colors, strict=True)):
            style: dict[str, Any] = {"color": color, "ls": "--" if name == "FN" else "-"}
            axis.plot(steps, values[:, :, site].mean(axis=0), marker=".", label=name, **style)
            if len(runs) > 1:
                axis.fill_between(
                    steps, values[:, :, site].min(axis=0), values[:, :, site].max(axis=0), color=color, alpha=0.12, lw=0
                )
        axis.set_xscale("symlog", linthresh=1)
        axis.set(xlabel="training step", title=title, ylim=(-0.05, 1.02), xlim=(0, steps[-1] * 1.05))
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("adjusted Rand index, clusters against task")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, title="layer", loc="outside right center", frameon=False)
    return figure


def ari_by_layer(arms: Mapping[str, Sequence[Curves]]) -> Figure:
    """ARI by layer at the end of training, against task and against output, an arm a panel."""
    figure = Figure(figsize=(3.9 * len(arms), 3.9), layout="constrained")
    titles = {
        "private": "private outputs",
        "instruction": "private, unseen instructions",
        "shared": "outputs shared by all tasks",
    }
    axes = np.atleast_1d(figure.subplots(1, len(arms), sharey=True))
    for axis, (arm, runs) in zip(axes, arms.items(), strict=True):
        names = _names(runs[0].output_ari.shape[1])
        x = np.arange(len(names))
        null = np.stack([run.null[-1] for run in runs])
        axis.fill_between(
            x, null[..., 0].min(axis=0), null[..., 1].max(axis=0), color=_NULL, alpha=0.6, lw=0, label="chance (95%)"
        )
        for label, color, values in (
            ("task", _TASK, np.stack([run.ari["validation_subset"][-1] for run in runs])),
            ("output", _OUTPUT, np.stack([run.output_ari[-1] for run in runs])),
        ):
            axis.plot(x, values.T, color=color, lw=0.8, alpha=0.45)
            axis.plot(x, values.mean(axis=0), color=color, lw=2.2, marker="o", ms=4, label=f"against {label}")
        tsne = [run.tsne for run in runs if run.tsne is not None]
        if tsne:
            axis.plot(x, np.mean(tsne, axis=0), "x", color=_TASK, ms=7, mew=1.6, label="task, after t-SNE")
        axis.set(title=titles[arm], xlabel="layer", ylim=(-0.05, 1.02))
        axis.set_xticks(x, names)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("ARI at the end, validation")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def projections(results: Mapping[int, ProbeResult]) -> Figure:
    """Hidden states in two dimensions, a row a step, a column a layer, coloured by task."""
    sites = next(iter(results.values())).coords["site"]
    figure = Figure(figsize=(1.75 * len(sites), 1.85 * len(results)), layout="constrained")
    grid = figure.subplots(len(results), len(sites), squeeze=False)
    for number, (row, (step, result)) in enumerate(zip(grid, results.items(), strict=True)):
        classes = result["label"].numpy()
        for axis, site, xy in zip(row, sites, result["xy"].numpy(), strict=True):
            color = {"c": classes, "cmap": "tab20", "vmin": 0, "vmax": max(19, classes.max())}
            axis.scatter(xy[:, 0], xy[:, 1], s=3, lw=0, **color)
            axis.set_xticks([])
            axis.set_yticks([])
            if number == 0:
                axis.set_title(f"layer {result.layers[site]}", fontsize=9)
        row[0].set_ylabel(f"step {step}", fontsize=9)
    return figure


def accuracy_and_loss(curves: Mapping[Job, Curves]) -> Figure:
    """Validation accuracy and training loss over steps, a line a run, a colour an arm."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    colors = {"private": _TASK, "instruction": "#3a9a6b", "shared": _OUTPUT}
    labelled: set[str] = set()
    for job, run in curves.items():
        style: dict[str, Any] = {"color": colors[job.arm], "lw": 1.3, "alpha": 0.8}
        left.plot(run.steps, run.accuracy, marker=".", label=None if job.arm in labelled else job.arm, **style)
        right.plot(np.arange(len(run.loss)), run.loss, **style)
        labelled.add(job.arm)
    left.set_xscale("symlog", linthresh=1)
    left.set(xlabel="training step", ylabel="validation accuracy", ylim=(-0.02, 1.02), xlim=(0, None))
    right.set(xlabel="training step", ylabel="training loss (nats a token)", yscale="log")
    left.legend(title="arm", frameon=False)
    for axis in (left, right):
        axis.grid(alpha=0.25)
    return figure
