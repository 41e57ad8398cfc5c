"""Figures of what was learnt: training losses, and answers to test prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mechclust.commands.mossa.draw import LOOKS
from mechclust.commands.mossa.learnt import ROLES
from mechclust.commands.mossa.models import AGAIN, CONTROL, TUNED, UNSEEN, Model
from mechclust.commands.mossa.result import MossaResult
from mechclust.report.style import BLUE, COLORS, ORANGE, SOFT, direct_labels, subplots
from mechclust.report.text import figure_text
from mechclust.training.tuning import Tuned

_MULTI = {TUNED: (ORANGE, "on all tasks"), UNSEEN: (BLUE, "without held-out")}
_BAD = "#b3382c"
_NAMED = 8  # maximum number of named curves per panel


def losses_figure(result: MossaResult) -> Figure:
    """Training losses: the multi-task models, then the controls of each cluster."""
    panels = _panels(result)
    columns = min(3, len(panels))
    figure, axes = subplots(len(panels), columns, size=(4.4, 2.8))
    for k, (axis, (title, adapters)) in enumerate(zip(axes, panels.items(), strict=True)):
        labels, tasks = [], list(dict.fromkeys(model.task for model, _ in adapters))
        for model, tuned in adapters:
            steps, losses = np.array(tuned.losses, dtype=float).T
            color, name = _look(model, tasks)
            axis.plot(steps, losses, color=color, lw=1.3, ls=":" if model.kind == AGAIN else "-")
            if model.kind != AGAIN and len(tasks) <= _NAMED:
                labels.append((float(losses[-1]), name, color))
        axis.set_title(title, fontsize=10)
        top = max(loss for _, tuned in adapters for _, loss in tuned.losses)
        axis.set_ylim(0, 1.05 * top)
        axis.set_xlim(left=0)
        if k % columns == 0:
            axis.set_ylabel("loss (nats per token)", fontsize=9)
        if k + columns >= len(panels):
            axis.set_xlabel("optimiser step")
        direct_labels(axis, labels, size=7.5)
    return figure


def _panels(result: MossaResult) -> dict[str, list[tuple[Model, Tuned]]]:
    """Adapters with a curve, by title."""
    cluster_of = dict(zip(result.tasks, result.clusters, strict=True))
    there = [(model, tuned) for model, tuned in result.trained.items() if tuned.losses]
    found: dict[str, list[tuple[Model, Tuned]]] = {}
    if multi := [pair for pair in there if pair[0].kind in _MULTI]:
        found["multi-task models"] = multi
    controls = [pair for pair in there if pair[0].kind in (CONTROL, AGAIN)]
    for name in sorted({cluster_of.get(model.task) or "" for model, _ in controls}):
        own = [pair for pair in controls if (cluster_of.get(pair[0].task) or "") == name]
        found[f"controls: {figure_text(name, 28) if name else 'no cluster'}"] = own
    return found


def _look(model: Model, tasks: Sequence[str]) -> tuple[str, str]:
    if model.kind in _MULTI:
        return _MULTI[model.kind]
    return COLORS[tasks.index(model.task) % len(COLORS)], figure_text(model.task, 24)


def answers_figure(result: MossaResult) -> Figure:
    """Accuracy, loss and margin of the answers by task: pre, the control, the tuned model."""
    scores, states = result.scores, result.states()
    tasks = [task for task in result.tasks if scores[task]]
    figure, axes = subplots(3, size=(4.2, 0.42 * len(tasks) + 1.5), grid="x", sharey=True)
    held_out = dict(zip(result.tasks, result.held_out, strict=True))
    rows = np.arange(len(tasks))
    roles = [role for role in ROLES if any(role in scores[task] for task in tasks)]
    step = 0.76 / len(roles)
    for axis, value in zip(axes, ("exact", "loss", "margin"), strict=True):
        for k, role in enumerate(roles):
            look, shift = LOOKS[role], (k - (len(roles) - 1) / 2) * step
            at = [row for row, task in zip(rows, tasks, strict=True) if role in scores[task]]
            own = [scores[tasks[row]][role] for row in at]
            numbers = np.array([getattr(score, value) for score in own])
            ends = np.array([getattr(score, f"{value}_ends") for score in own]).T
            axis.hlines(np.array(at) + shift, *ends, color=look.color, lw=1.6, alpha=0.7)
            axis.plot(numbers, np.array(at) + shift, look.marker, color=look.color, ms=5, label=look.name)
        for row in rows[::2]:
            axis.axhspan(row - 0.5, row + 0.5, color="#f3f5f7", zorder=-2, lw=0)
    names = [f"{figure_text(task, 30)}{' *' if held_out[task] else ''}" for task in tasks]
    axes[0].set_yticks(rows, names, fontsize=9)
    axes[0].set_ylim(len(tasks) - 0.4, -0.6)
    for tick, task in zip(axes[0].get_yticklabels(), tasks, strict=True):
        tick.set_color(_BAD if states[task] == "not learnt" else "black")
    for row, task in enumerate(tasks):
        if states[task] in ("not learnt", "form only"):
            place = axes[-1].get_yaxis_transform()
            axes[-1].text(1.01, row, states[task], transform=place, va="center", fontsize=8.5, color=SOFT)
    axes[0].set(xlabel="share of answers that are exact", xlim=(-0.03, 1.03))
    axes[1].set(xlabel="loss of the answer (nats per token)")
    axes[1].set_xlim(left=0)
    axes[2].axvline(0, color=SOFT, lw=1, zorder=-1)
    axes[2].set(xlabel="margin of a pair's right answers over\nthe same two exchanged (nats)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9)
    return figure
