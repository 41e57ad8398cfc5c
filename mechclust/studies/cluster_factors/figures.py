"""Figures of the study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from mechclust.evidence.intervals import mean_interval
from mechclust.report.style import (
    COLORS,
    direct_labels,
    layer_axis,
    log_steps,
    outer_labels,
    seed_curve,
    shades,
    subplots,
    widest_chance,
)
from mechclust.studies.cluster_factors.config import OVERLAPS, ClusterFactorsConfig, measured_steps, overlap_arm
from mechclust.studies.cluster_factors.phases import BOTH, NEITHER, OUTPUT, PHASES, TASK, UNDECIDED, clear_by, phases
from mechclust.studies.cluster_factors.results import Found, RunResults
from mechclust.studies.cluster_factors.swap import KINDS, POSITIONS

BLUE, VERMILION, GREEN, PURPLE = COLORS[:4]
_PHASE = {NEITHER: "#d9d9d9", TASK: BLUE, OUTPUT: VERMILION, BOTH: PURPLE, UNDECIDED: "#ffffff"}
_SAID = {NEITHER: "neither task nor output", BOTH: "task and output"}
_WHERE = {"x": "at x", "instruction": "end of instruction", "mean": "mean of prompt"}
_SHOWN = 7  # checkpoints of the phase diagram


def phase_diagram(config: ClusterFactorsConfig, found: Found) -> Figure:
    """What states cluster by: overlap of the outputs along x, layer along y, one panel per checkpoint."""
    overlaps = [o for o in OVERLAPS if overlap_arm(o) in found]
    steps = measured_steps(config)
    shown = sorted({steps[i] for i in np.linspace(0, len(steps) - 1, min(_SHOWN, len(steps))).round().astype(int)})
    figure, axes = subplots(
        len(_WHERE) * len(shown), len(shown), size=(2.05, 2.15), grid=None, sharex=True, sharey=True
    )
    for r, (position, where) in enumerate(_WHERE.items()):
        grid = [phases(found[overlap_arm(o)], config.clear, position) for o in overlaps]
        for c, step in enumerate(shown):
            axis = axes[r * len(shown) + c]
            at = measured_steps(config).index(step)
            for i, of in enumerate(grid):
                for layer, phase in enumerate(of[at]):
                    _cell(axis, i, layer, phase)
                by_input = clear_by(found[overlap_arm(overlaps[i])], config.clear, f"{position} input")
                (layers,) = np.nonzero(by_input[at])
                axis.plot(np.full(len(layers), i), layers, ls="", marker="o", ms=5, color=GREEN, mec="white", mew=0.5)
            axis.set(xlim=(-0.5, len(overlaps) - 0.5), ylim=(-0.5, config.n_layers + 0.5))
            axis.set_xticks(range(len(overlaps)), [f"{o:g}" for o in overlaps])
            axis.set_yticks(range(config.n_layers + 1))
            if r == 0:
                axis.set_title(f"step {step}")
            if r == len(_WHERE) - 1:
                axis.set_xlabel("overlap of outputs")
            if c == 0:
                axis.set_ylabel(f"layer\n{where}")
    handles: list[Artist] = [
        Patch(facecolor=_PHASE[p], edgecolor="#888888", hatch="////" if p == UNDECIDED else None, label=_SAID.get(p, p))
        for p in PHASES
    ]
    handles.append(Line2D([], [], ls="", marker="o", ms=5, color=GREEN, mec="white", label="x (on any colour)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, title="clusters by")
    return figure


def _cell(axis: Axes, x: int, y: int, phase: str) -> None:
    hatch = "////" if phase == UNDECIDED else None
    edge = "#aaaaaa" if hatch else "#ffffff"
    axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=_PHASE[phase], edgecolor=edge, hatch=hatch, lw=0.8))


_Labels = list[tuple[float, str, str]]


def by_layer(found: Found) -> Figure:
    """ARI at x by layer at the end, against task, output and x, one panel per arm."""

    def draw(axis: Axes, layers: np.ndarray, runs: Sequence[RunResults]) -> _Labels:
        labels = [_chance(axis, layers, runs, ["x task"])]
        for name, color in (("task", BLUE), ("output", VERMILION), ("input", GREEN)):
            labels.append(_curve(axis, layers, runs, f"x {name}", "x" if name == "input" else name, color))
        linear = np.stack([run.linear[-1] for run in runs]).mean(0)
        axis.plot(layers, linear, color=BLUE, ls=":", lw=1.2)
        return [*labels, (float(linear[-1]), "task, linear", BLUE)]

    return _by_arm(found, "ARI at the end; accuracy", draw)


def within_the_other(found: Found) -> Figure:
    """ARI at x by layer at the end: task within outputs, and output within tasks, one panel per arm that has both."""
    curves = {"x task|output": ("task within output", BLUE), "x output|task": ("output within task", VERMILION)}

    def draw(axis: Axes, layers: np.ndarray, runs: Sequence[RunResults]) -> _Labels:
        drawn = [_curve(axis, layers, runs, curve, name, color) for curve, (name, color) in curves.items()]
        return [_chance(axis, layers, runs, [*curves]), *drawn]

    both = {arm: runs for arm, runs in found.items() if curves.keys() <= runs[0].ari.keys()}
    return _by_arm(both, "ARI at the end", draw)


def _by_arm(found: Found, ylabel: str, draw: Callable[[Axes, np.ndarray, Sequence[RunResults]], _Labels]) -> Figure:
    """One panel per arm over layers 0 to n, with what ``draw`` draws there and the labels that it returns."""
    columns = min(5, len(found))
    figure, axes = subplots(len(found), columns, size=(3.2, 2.7), sharex=True, sharey=True)
    labels = {}
    for axis, (arm, runs) in zip(axes, found.items(), strict=True):
        labels[axis] = draw(axis, np.arange(runs[0].linear.shape[1]), runs)
        axis.set(title=_title(arm), ylim=(-0.05, 1.05))
        layer_axis(axis)
    outer_labels(axes, columns)
    axes[0].set_ylabel(ylabel)
    for axis, of in labels.items():
        direct_labels(axis, of, size=7.5)
    return figure


def _title(arm: str) -> str:
    """
    Example:
        >>> _title("outputs-2-constant-rate"), _title("overlap-0.2"), _title("overlap-1-output-loss")
        ('2 private outputs, constant rate', 'overlap 0.2', 'overlap 1, output loss')
    """
    kind, value, *more = arm.split("-")
    first = f"overlap {value}" if kind == "overlap" else f"{value} private output{'s' * (value != '1')}"
    return ", ".join([first, " ".join(more)]) if more else first


def _chance(
    axis: Axes, layers: np.ndarray, runs: Sequence[RunResults], curves: Sequence[str]
) -> tuple[float, str, str]:
    """The band of chance at the end, the widest of all seeds and curves; its label."""
    return widest_chance(axis, layers, np.stack([run.null[curve][-1] for run in runs for curve in curves]))


def _curve(
    axis: Axes, layers: np.ndarray, runs: Sequence[RunResults], curve: str, name: str, color: str
) -> tuple[float, str, str]:
    """An index at the end by layer; its label."""
    values = np.stack([run.ari[curve][-1] for run in runs])
    seed_curve(axis, layers, values, color=color, marker=".")
    return float(values[:, -1].mean()), name, color


def over_training(found: Found, arms: Sequence[str]) -> Figure:
    """Task-ARI over training steps, one line per layer: above at x, below at the end of the instruction.

    Means over seeds; bars: their 95% intervals at the end.
    """
    shown = [arm for arm in arms if arm in found]
    rows = {"x task": "at x", "instruction task": "end of the instruction"}
    figure, axes = subplots(len(rows) * len(shown), len(shown), size=(3.2, 2.7), sharex=True, sharey=True)
    labels: dict[Axes, list[tuple[float, str, object]]] = {}
    for r, (curve, where) in enumerate(rows.items()):
        for c, arm in enumerate(shown):
            axis, runs = axes[r * len(shown) + c], found[arm]
            null = np.concatenate([run.null[curve].swapaxes(0, 1) for run in runs])  # [seed and layer, step, end]
            steps = runs[0].steps
            chance = widest_chance(axis, steps, null)
            values = np.stack([run.ari[curve] for run in runs])
            colors = shades(values.shape[-1])
            for layer, color in enumerate(colors):
                axis.plot(steps, values[..., layer].mean(0), color=color, marker=".", ms=3)
                if span := mean_interval(values[:, -1, layer].tolist()):
                    axis.vlines(steps[-1] * 1.12 ** (layer + 1), *span, color=color, lw=1.2)
            labels[axis] = [(float(values[:, -1, k].mean()), str(k), color) for k, color in enumerate(colors)]
            labels[axis].append(chance)
            log_steps(axis)
            axis.set(ylim=(-0.05, 1.05))
            if r == 0:
                axis.set_title(_title(arm))
            if c == 0:
                axis.set_ylabel(f"task-ARI, {where}")
            axis.label_outer()
    for axis, of in labels.items():
        direct_labels(axis, of, size=7.5)
    return figure


def swaps(found: Found) -> Figure:
    """How often the answer becomes the other task's, by the layer at which mean states are swapped."""
    figure, axes = subplots(len(POSITIONS) * len(found), len(found), size=(2.3, 2.3), sharex=True, sharey=True)
    names = dict(
        zip(KINDS, (("tasks' means", BLUE), ("random", COLORS[7]), ("halves of a task", COLORS[4])), strict=True)
    )
    labels: list[tuple[float, str, str]] = []
    for c, (arm, runs) in enumerate(found.items()):
        became = np.stack([run.swapped["became"] for run in runs])
        for p, position in enumerate(POSITIONS):
            axis = axes[p * len(found) + c]
            labels = []
            for k, kind in enumerate(KINDS):
                name, color = names[kind]
                seed_curve(axis, np.arange(became.shape[-1]), became[:, p, k], color=color, marker=".")
                labels.append((float(became[:, p, k, -1].mean()), name, color))
            axis.set(ylim=(-0.05, 1.05))
            layer_axis(axis)
            if p == 0:
                axis.set_title(_title(arm), fontsize=9)
            if c == 0:
                axis.set_ylabel(f"{_SWAPPED_AT[position]}\nshare")
            axis.label_outer()
            if c == len(found) - 1:
                direct_labels(axis, labels, size=7.5)
    return figure


_SWAPPED_AT = dict(zip(POSITIONS, ("end of the instruction", "at x", "whole prompt"), strict=True))


def accuracy_figure(found: Mapping[str, Sequence[RunResults]]) -> Figure:
    """Validation accuracy over steps, one panel per arm."""
    columns = min(5, len(found))
    figure, axes = subplots(len(found), columns, size=(2.6, 2.0), sharex=True, sharey=True)
    for axis, (arm, runs) in zip(axes, found.items(), strict=True):
        seed_curve(axis, runs[0].steps, np.stack([run.accuracy for run in runs]), color=BLUE, marker=".")
        log_steps(axis)
        axis.set(ylim=(-0.03, 1.03))
        axis.set_title(_title(arm), fontsize=9)
    outer_labels(axes, columns)
    axes[0].set_ylabel("validation accuracy")
    return figure
