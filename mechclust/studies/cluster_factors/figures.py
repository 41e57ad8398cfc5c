"""Figures of the study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import einops
import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from mechclust.evidence.bounds import Bound
from mechclust.evidence.intervals import mean_interval
from mechclust.evidence.verdict import verdict_of
from mechclust.report.axes import direct_labels, layer_axis, step_axis
from mechclust.report.seed_plots import plot_chance_of_seeds, plot_seeds, plot_seeds_by_layer
from mechclust.report.style import BLUE, COLORS, GREEN, ORANGE, PURPLE, RED, layer_shades
from mechclust.report.subplots import subplot_rows
from mechclust.studies.cluster_factors.config import OVERLAPS, PRIVATE, ClusterFactorsConfig, overlap_arm
from mechclust.studies.cluster_factors.results import ArmResults, Results
from mechclust.studies.cluster_factors.swap import HALVES, KINDS, POSITIONS, PROMPT, RANDOM
from mechclust.studies.cluster_factors.swap import TASK as TASK_MEANS

_MAX_STEPS_DRAWN = 7  # checkpoints of the phase diagram
_LABEL_SIZE = 7.5  # points

_Look = tuple[str, str]  # name and colour of a curve
_Label = tuple[float, str, str]  # last value of a curve, its name, its colour


def _arm_titles(arms: Iterable[str]) -> list[str]:
    """Return the names of arms in words.

    Example:
        >>> _arm_titles(["outputs-2-constant-rate", "overlap-0.2", "overlap-1-output-loss"])
        ['2 private outputs, constant rate', 'overlap 0.2', 'overlap 1, output loss']
    """
    titles = []
    for arm in arms:
        kind, value, *change = arm.split("-")
        plural = "" if value == "1" else "s"
        title = f"overlap {value}" if kind == "overlap" else f"{value} private output{plural}"
        titles.append(f"{title}, {' '.join(change)}" if change else title)
    return titles


# ---- phases ----

NEITHER = "neither"
TASK = "task"
OUTPUT = "output"
BOTH = "both"
UNDECIDED = "undecided"
PHASE_COLORS = {NEITHER: "#d9d9d9", TASK: BLUE, OUTPUT: RED, BOTH: PURPLE, UNDECIDED: "#ffffff"}
_PHASE_NAMES = {NEITHER: "neither task nor output", BOTH: "task and output"}
_HATCHES = {UNDECIDED: "////"}
_EDGES = {UNDECIDED: "#aaaaaa"}


def layer_verdicts(index: Float[np.ndarray, "seed layer"], clear: float) -> Shaped[np.ndarray, "layer"]:
    """Return whether states cluster by a label: the whole 95% interval of its index over seeds is at least ``clear``.

    A single seed is always undecided.

    Example:
        >>> layer_verdicts(np.array([[0.9, 0.1, 0.2], [0.8, 0.2, 0.9]]), 0.1).tolist()
        ['holds', 'undecided', 'undecided']
    """
    return np.array([verdict_of(Bound(">=", clear), mean_interval(of_layer)) for of_layer in index.T.tolist()])


def phases(arm: ArmResults, checkpoint: int, clear: float, position: str = "x") -> Shaped[np.ndarray, "layer"]:
    """Return the phase of each layer at a checkpoint, ``undecided`` if an interval straddles ``clear``.

    At the end of the instruction only the task counts, since no output is known yet.
    """
    task = arm.ari[f"{position} task"]
    output = arm.ari.get(f"{position} output", np.zeros_like(task))
    by_task = layer_verdicts(task[:, checkpoint], clear)
    by_output = layer_verdicts(output[:, checkpoint], clear)
    undecided = (by_task == "undecided") | (by_output == "undecided")
    held_by_task = by_task == "holds"
    held_by_output = by_output == "holds"
    conditions = [undecided, held_by_task & held_by_output, held_by_task, held_by_output]
    return np.select(conditions, [UNDECIDED, BOTH, TASK, OUTPUT], NEITHER)


def phase_diagram_figure(config: ClusterFactorsConfig, results: Results) -> Figure:
    """Draw the phases: overlap of the outputs along x, layer along y, a column per checkpoint, a row per position."""
    overlaps = [overlap for overlap in OVERLAPS if overlap_arm(overlap) in results]
    steps = results[PRIVATE].steps
    drawn = np.linspace(0, len(steps) - 1, min(_MAX_STEPS_DRAWN, len(steps))).round().astype(int)
    where = {"x": "at x", "instruction": "end of instruction", "mean": "mean of prompt"}
    titles = [f"step {step}" for step in steps[drawn]]
    ylabels = [f"layer\n{name}" for name in where.values()]
    figure, axes = subplot_rows(titles, ylabels, size=(2.05, 2.15), x_axis=_overlap_axis)
    for axis, (position, checkpoint) in zip(axes, product(where, drawn), strict=True):
        for x, overlap in enumerate(overlaps):
            _phase_column(axis, x, results[overlap_arm(overlap)], position, checkpoint, config.clear)
        axis.grid(visible=False)
        axis.set(xlim=(-0.5, len(overlaps) - 0.5), ylim=(-0.5, config.n_layers + 0.5))
        axis.set_xticks(range(len(overlaps)), [f"{overlap:g}" for overlap in overlaps])
        axis.set_yticks(range(config.n_layers + 1))
    _phase_legend(figure)
    return figure


def _overlap_axis(axis: Axes) -> None:
    axis.set_xlabel("overlap of outputs")


def _phase_column(axis: Axes, x: int, arm: ArmResults, position: str, checkpoint: int, clear: float) -> None:
    """Draw the layers of one arm: a cell for the phase, and a dot where states cluster by x."""
    for layer, phase in enumerate(phases(arm, checkpoint, clear, position)):
        color = PHASE_COLORS[phase]
        edge = _EDGES.get(phase, "#ffffff")
        corner = (x - 0.5, layer - 0.5)
        axis.add_patch(Rectangle(corner, 1, 1, facecolor=color, edgecolor=edge, hatch=_HATCHES.get(phase), lw=0.8))
    if f"{position} input" in arm.ari:
        by_input = layer_verdicts(arm.ari[f"{position} input"][:, checkpoint], clear) == "holds"
        layers = np.flatnonzero(by_input)
        axis.plot(np.full(len(layers), x), layers, ls="", marker="o", ms=5, color=GREEN, mec="white", mew=0.5)


def _phase_legend(figure: Figure) -> None:
    handles: list[Artist] = []
    for phase, color in PHASE_COLORS.items():
        name = _PHASE_NAMES.get(phase, phase)
        handles.append(Patch(facecolor=color, edgecolor="#888888", hatch=_HATCHES.get(phase), label=name))
    handles.append(Line2D([], [], ls="", marker="o", ms=5, color=GREEN, mec="white", label="x (on any colour)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, title="clusters by")


# ---- by layer, at the end of training ----


def by_layer_figure(results: Results) -> Figure:
    """Draw ARI at x by layer at the end, against task, output and x, one panel per arm."""
    curves = {"x task": ("task", BLUE), "x output": ("output", RED), "x input": ("x", GREEN)}
    figure, axes = subplot_rows(_arm_titles(results), ["ARI at the end; accuracy"], size=(3.2, 2.7), x_axis=layer_axis)
    for axis, arm in zip(axes, results.values(), strict=True):
        labels = _curves(axis, arm, curves, ["x task"])
        linear = arm.linear[:, -1].mean(axis=0)
        axis.plot(linear, color=BLUE, ls=":", lw=1.2)
        direct_labels(axis, [*labels, (float(linear[-1]), "task, linear", BLUE)], _LABEL_SIZE)
    return figure


def within_the_other_figure(results: Results) -> Figure:
    """Draw ARI at x by layer at the end: task within outputs and output within tasks, for arms that have both."""
    curves = {"x task|output": ("task within output", BLUE), "x output|task": ("output within task", RED)}
    results = {name: arm for name, arm in results.items() if curves.keys() <= arm.ari.keys()}
    figure, axes = subplot_rows(_arm_titles(results), ["ARI at the end"], size=(3.2, 2.7), x_axis=layer_axis)
    for axis, arm in zip(axes, results.values(), strict=True):
        direct_labels(axis, _curves(axis, arm, curves, list(curves)), _LABEL_SIZE)
    return figure


def _curves(axis: Axes, arm: ArmResults, looks: Mapping[str, _Look], chance: Sequence[str]) -> list[_Label]:
    """Draw curves at the end with the wider chance band of some and of all seeds, and return the labels."""
    null = np.concatenate([arm.null[curve][:, -1] for curve in chance])
    labels = [plot_chance_of_seeds(axis, range(null.shape[1]), null)]
    return labels + [plot_seeds_by_layer(axis, arm.ari[curve][:, -1], *look) for curve, look in looks.items()]


# ---- over training ----


def over_training_figure(results: Results, arms: Sequence[str]) -> Figure:
    """Draw task-ARI over training, one line per layer: above at x, below at the end of the instruction."""
    arms = [arm for arm in arms if arm in results]
    rows = {"x task": "task-ARI, at x", "instruction task": "task-ARI, end of the instruction"}
    figure, axes = subplot_rows(_arm_titles(arms), list(rows.values()), size=(3.2, 2.7), x_axis=step_axis)
    for axis, (curve, arm) in zip(axes, product(rows, arms), strict=True):
        _layers_over_training(axis, results[arm], curve)
    return figure


def _layers_over_training(axis: Axes, arm: ArmResults, curve: str) -> None:
    """Draw a curve of each layer, with its 95% interval at the end right of it."""
    null = einops.rearrange(arm.null[curve], "seed step layer end -> (seed layer) step end")
    labels: list[tuple[float, str, object]] = [plot_chance_of_seeds(axis, arm.steps, null)]
    layers = einops.rearrange(arm.ari[curve], "seed step layer -> layer seed step")
    for k, (values, color) in enumerate(zip(layers, layer_shades(len(layers)), strict=True)):
        axis.plot(arm.steps, values.mean(axis=0), color=color, marker=".", ms=3)
        interval = mean_interval(values[:, -1].tolist())
        if interval is not None:
            axis.vlines(arm.steps[-1] * 1.12 ** (k + 1), *interval, color=color, lw=1.2)
        labels.append((float(values[:, -1].mean()), str(k), color))
    direct_labels(axis, labels, _LABEL_SIZE)


def accuracy_figure(results: Results) -> Figure:
    """Draw validation accuracy over training, one panel per arm."""
    figure, axes = subplot_rows(_arm_titles(results), ["validation accuracy"], size=(2.6, 2.0), x_axis=step_axis)
    for axis, arm in zip(axes, results.values(), strict=True):
        plot_seeds(axis, arm.steps, arm.accuracy, color=BLUE, marker=".")
    return figure


# ---- swapped means ----


def swaps_figure(results: Results) -> Figure:
    """Draw how often the answer becomes the other task's, by the layer at which mean states are swapped."""
    curves = {TASK_MEANS: ("tasks' means", BLUE), RANDOM: ("random", COLORS[7]), HALVES: ("halves of a task", ORANGE)}
    where = {"instruction_end": "end of the instruction", "input": "at x", PROMPT: "whole prompt"}
    ylabels = [f"{name}\nshare" for name in where.values()]
    figure, axes = subplot_rows(_arm_titles(results), ylabels, size=(2.3, 2.3), x_axis=layer_axis)
    for n, (axis, (position, arm)) in enumerate(zip(axes, product(where, results.values()), strict=True), 1):
        became = arm.became[:, POSITIONS.index(position)]
        labels = [plot_seeds_by_layer(axis, became[:, KINDS.index(kind)], *look) for kind, look in curves.items()]
        if n % len(results) == 0:
            direct_labels(axis, labels, _LABEL_SIZE)
    return figure
