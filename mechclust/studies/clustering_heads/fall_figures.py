"""Figures of one full-batch run: the falls of its loss, the clusters that form, and its gradient norms."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.report.style import BLUE, COLORS, GREY, ORANGE
from mechclust.report.subplots import subplots
from mechclust.studies.clustering_heads.config import PLATEAUS, ClusteringHeadsConfig
from mechclust.studies.clustering_heads.cut import sequence_embeddings
from mechclust.studies.clustering_heads.drawing import GUIDE, title_left
from mechclust.studies.clustering_heads.dynamics import measured_rows, task_of
from mechclust.studies.clustering_heads.results import HeadsResults, NetworkTraining
from mechclust.studies.clustering_heads.shown import snapshots_of

# Epochs and losses in the caption of the published run.
_PUBLISHED = ((0, 0.69), (244, 0.69), (260, 0.47), (340, 0.36), (365, 0.1), (510, 0.0))
_VIEW = 1.4  # over the step at which the last fall ends
_MARKERS = ".sv^DPX*"  # one for every eight sums, which have different colours
_MAX_SUMS_IN_LINE = 16  # of the legend


def clean_run(results: HeadsResults, p: int) -> tuple[int, NetworkTraining]:
    """Return seed and training of a full-batch run whose snapshots are kept.

    Runs that solve the task come first, then those with two falls of the loss or more, and then the run whose gradient
    norm peaks highest in the falls, relative to its peak on the plateaus.
    """
    ranks = {}
    for seed, run in results.curved.items():
        falls, plateaus = run.falls_and_plateaus(p)
        contrast = float(run.gradient[falls].max() / run.gradient[plateaus].max()) if plateaus.any() else 0.0
        ranks[seed] = (run.solved, min(2, len(run.drops(p))), contrast)
    seed = max(ranks, key=ranks.__getitem__)
    return seed, results.curved[seed]


def marks_of(run: NetworkTraining, p: int) -> list[int]:
    """Return the snapshots before and after the first and the last fall of the loss, or the first and last of all."""
    drops = run.drops(p)
    if not drops:
        return [0, len(run.curve("train_loss")) - 1]
    return sorted({drops[0].start, drops[0].end, drops[-1].start, drops[-1].end})


def two_falls_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw the published loss as described, ours with marks, and sequence embeddings around the first fall."""
    p = config.task.p
    seed, run = clean_run(results, p)
    marks = marks_of(run, p)
    figure, (published, loss, *planes) = subplots(4, size=(3.5, 3.3), grid=None)
    published.plot(*np.transpose(_PUBLISHED), color=GREY, marker="o", ms=4)
    published.set(xlabel="epoch", ylabel="training loss (nats)")
    title_left(published, "published run, from its caption")
    _loss(loss, run, p)
    bottom, top = published.get_ylim()
    losses = run.curve("train_loss")
    loss.set(xlabel="step", ylim=(bottom, top if losses.min() < top else _above(losses)))
    steps = steps_of(run)
    for letter, mark in zip("ABCD", marks, strict=False):
        point = (steps[mark], losses[mark])
        loss.plot(*point, "o", color=ORANGE, ms=6)
        loss.annotate(f"{letter}: accuracy {run.curve('test_accuracy')[mark]:.2f}", point, xytext=(7, 0),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    title_left(loss, f"ours, seed {seed}")
    for axis, letter, mark in zip(planes, "AB", marks, strict=False):
        _embeddings(axis, config, results, seed, mark)
        title_left(axis, f"{letter}: sequence embeddings, step {steps[mark]:,}")
    handles, labels = planes[0].get_legend_handles_labels()
    figure.legend(handles, labels, title="sum of the support", loc="outside lower right",
                  ncols=min(len(labels), _MAX_SUMS_IN_LINE), markerscale=5, frameon=False)  # fmt: skip
    return figure


def _loss(axis: Axes, run: NetworkTraining, p: int) -> None:
    """Draw the training loss to a little after its last fall, with the falls shaded."""
    steps = steps_of(run)
    drops = run.drops(p)
    end = min(steps[-1], _VIEW * steps[drops[-1].end]) if drops else steps[-1]
    axis.plot(steps, run.curve("train_loss"), color=BLUE, lw=1)
    _shade_falls(axis, run, p)
    axis.axhline(np.log(p), **GUIDE)
    axis.set(xlim=(0, end))


def _above(values: Float[np.ndarray, "*_"]) -> float:
    """Return a limit a little above the largest value, of a run that diverged the largest finite one."""
    finite = values[np.isfinite(values)]
    return 1.05 * float(finite.max()) if finite.size else 1.0


def _shade_falls(axis: Axes, run: NetworkTraining, p: int) -> None:
    steps = steps_of(run)
    for drop in run.drops(p):
        axis.axvspan(steps[drop.start], steps[drop.end], color="#000000", alpha=0.08, lw=0)


def _embeddings(axis: Axes, config: ClusteringHeadsConfig, results: HeadsResults, seed: int, place: int) -> None:
    """Draw the embeddings of the measured sequences, with a colour and marker for each sum of their support."""
    snapshots, member = snapshots_of(config, PLATEAUS, seed, results.folder)
    batch = measured_rows(task_of(snapshots, member)).batch
    model = snapshots.model(member, snapshots.steps[place])
    with torch.no_grad():
        xi = sequence_embeddings(model, batch.tokens).numpy()
    sums = batch.label("sum").numpy()
    for i, total in enumerate(np.unique(sums)):
        of_sum = sums == total
        color = COLORS[i % len(COLORS)]
        marker = _MARKERS[i // len(COLORS) % len(_MARKERS)]
        axis.plot(xi[of_sum, 0], xi[of_sum, 1], marker, color=color, ms=2, label=str(total))
    axis.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")


def gradients_figure(config: ClusteringHeadsConfig, results: HeadsResults) -> Figure:
    """Draw loss and gradient norm of a full-batch run on linear scales, with the falls of the loss shaded."""
    p = config.task.p
    seed, run = clean_run(results, p)
    figure, (loss, gradient) = subplots(2, 1, size=(7, 2.3), grid=None, sharex=True)
    _loss(loss, run, p)
    loss.set(ylabel="training loss (nats)", ylim=(0, None))
    title_left(loss, f"seed {seed}")
    steps = steps_of(run)
    shown = np.array(steps) <= loss.get_xlim()[1]
    norms = run.curve("gradient_norm")
    for group, values, color in zip(run.dynamics.coords["group"][:-1], norms.T, COLORS, strict=False):
        gradient.plot(steps, values, color=color, lw=1, label=group)
    _shade_falls(gradient, run, p)
    gradient.set(xlabel="step", ylabel="gradient norm", ylim=(0, _above(norms[shown, :-1])))
    figure.legend(*gradient.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def steps_of(run: NetworkTraining) -> list[int]:
    """Return the steps of a full-batch run, with one per epoch."""
    return [int(epoch) for epoch in run.dynamics.coords["epoch"]]
