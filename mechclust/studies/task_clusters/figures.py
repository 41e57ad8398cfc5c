"""Figures of the task-cluster study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import einops
import numpy as np
from matplotlib.figure import Figure

from mechclust.report.axes import bare_axis, direct_labels, plain_ticks, step_axis
from mechclust.report.seed_plots import plot_chance_of_seeds, plot_seeds
from mechclust.report.style import BLUE, GREEN, ORANGE, PURPLE, RED, category_style, layer_shades
from mechclust.report.subplots import subplots
from mechclust.studies.study import Job
from mechclust.studies.task_clusters.results import RunResults
from probes import ProbeResult
from tasks.instructions import TRAIN_SUBSET, VALIDATION_SUBSET


def _names(n_sites: int) -> list[str]:
    """Return the names of layers 0 to n, then of the final norm."""
    return [*map(str, range(n_sites - 1)), "FN"]


def ari_over_training_figure(runs: Sequence[RunResults]) -> Figure:
    """Draw task-ARI over training steps, one line per layer: training subset and validation (the paper's Figure 1)."""
    figure, axes = subplots(2, size=(5.5, 4.2), sharey=True)
    steps = runs[0].steps
    null = np.concatenate([einops.rearrange(run.null, "checkpoint site end -> site checkpoint end") for run in runs])
    titles = {TRAIN_SUBSET: "training subset", VALIDATION_SUBSET: "validation"}
    for axis, (split, title) in zip(axes, titles.items(), strict=True):
        labels: list[tuple[float, str, Any]] = [plot_chance_of_seeds(axis, steps, null)]
        curves = einops.rearrange([run.ari[split] for run in runs], "seed checkpoint site -> site seed checkpoint")
        for name, color, values in zip(_names(len(curves)), layer_shades(len(curves)), curves, strict=True):
            plot_seeds(axis, steps, values, color=color, marker=".", ls="--" if name == "FN" else "-")
            labels.append((float(values[:, -1].mean()), "final norm" if name == "FN" else f"layer {name}", color))
        step_axis(axis)
        axis.set(title=title, ylim=(-0.05, 1.02), xlim=(0, steps[-1] * 1.05))
        direct_labels(axis, labels)
    axes[0].set_ylabel("adjusted Rand index, clusters against task")
    return figure


def ari_by_layer_figure(arms: Mapping[str, Sequence[RunResults]]) -> Figure:
    """Draw ARI by layer at the end of training, against task and against output, one panel per arm."""
    titles = {
        "private": "private outputs",
        "instruction": "private, unseen instructions",
        "shared": "outputs shared by all tasks",
        "five": "five private outputs",
        "expressions": "three expressions per task",
    }
    figure, axes = subplots(len(arms), min(len(arms), 3), size=(3.9, 3.9), sharey=True)
    for axis, (arm, runs) in zip(axes, arms.items(), strict=True):
        names = _names(runs[0].output_ari.shape[1])
        x = np.arange(len(names))
        labels = [plot_chance_of_seeds(axis, x, np.stack([run.null[-1] for run in runs]))]
        for label, color, values in (
            ("task", BLUE, np.stack([run.ari[VALIDATION_SUBSET][-1] for run in runs])),
            ("output", RED, np.stack([run.output_ari[-1] for run in runs])),
        ):
            axis.plot(x, values.T, color=color, lw=0.8, alpha=0.45)
            axis.plot(x, values.mean(axis=0), color=color, lw=2.2, marker="o", ms=4)
            labels.append((float(values[:, -1].mean()), label, color))
        tsne = [run.tsne for run in runs if run.tsne is not None]
        if tsne:
            axis.plot(x, np.mean(tsne, axis=0), "x", color=BLUE, ms=7, mew=1.6, label="task, after t-SNE")
            axis.legend(loc="upper left")
        axis.set(title=titles[arm], xlabel="layer", ylim=(-0.05, 1.02))
        axis.set_xticks(x, names)
        direct_labels(axis, labels)
    for axis in axes[::3]:
        axis.set_ylabel("ARI against task and output, validation")
    return figure


def projections_figure(results: Mapping[int, ProbeResult]) -> Figure:
    """Draw hidden states in two dimensions, one row per step, one column per layer, coloured by task."""
    sites = next(iter(results.values())).coords["site"]
    figure, axes = subplots(len(results) * len(sites), len(sites), size=(1.75, 1.85), grid=None)
    for axis, ((step, result), (i, site)) in zip(axes, product(results.items(), enumerate(sites)), strict=True):
        x, y = result["xy"][i].numpy().T
        classes = result["label"].numpy()
        for code in np.unique(classes).tolist():
            color, marker = category_style(code)
            axis.scatter(x[classes == code], y[classes == code], s=5, lw=0, color=color, marker=marker)
        bare_axis(axis)
        axis.set(xlabel=f"layer {result.layers[site]}", ylabel=f"step {step}")
        axis.label_outer()
    return figure


def accuracy_and_loss_figure(runs: Mapping[Job, RunResults]) -> Figure:
    """Draw validation accuracy and training loss over steps, one line per run, one colour per arm."""
    figure, (left, right) = subplots(2, size=(5.0, 3.6))
    colors = {"private": BLUE, "instruction": GREEN, "shared": RED, "five": PURPLE, "expressions": ORANGE}
    labelled: set[str] = set()
    for job, run in runs.items():
        style: dict[str, Any] = {"color": colors[job.arm], "lw": 1.3, "alpha": 0.8}
        left.plot(run.steps, run.accuracy, marker=".", label=None if job.arm in labelled else job.arm, **style)
        right.plot(np.arange(len(run.loss)), run.loss, **style)
        labelled.add(job.arm)
    step_axis(left)
    left.set(ylabel="validation accuracy", ylim=(-0.02, 1.02), xlim=(0, None))
    right.set(xlabel="training step", ylabel="training loss (nats per token)", yscale="log")
    plain_ticks(right)
    left.legend(title="arm", frameon=False)
    return figure
