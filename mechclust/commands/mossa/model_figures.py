"""Figures of the models: answers, dimensions, pictures of hidden states, neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechclust.commands.mossa.drawing import (
    LOOKS,
    Label,
    draw_band,
    draw_curve,
    finish_layers,
    panel_width,
)
from mechclust.commands.mossa.learnt import ROLES
from mechclust.commands.mossa.measurements import Measurements
from mechclust.mossa.nan_statistics import nan_quantile_over_tasks
from mechclust.report.axes import bare_axis, direct_labels
from mechclust.report.figure_text import figure_text
from mechclust.report.style import GREY, SOFT, category_style
from mechclust.report.subplots import subplots

_NOT_LEARNT = "#b3382c"
_STRIPE = "#f3f5f7"
_ANSWER_AXES = {
    "exact": "share of answers that are exact",
    "loss": "loss of the answer (nats per token)",
    "margin": "margin of a pair's right answers over\nthe same two exchanged (nats)",
}


# ---- answers ----


def answers_figure(result: Measurements) -> Figure:
    """Draw accuracy, loss and margin of the answers by task: pre, the control, the tuned model."""
    tasks = [task for task in result.tasks if result.scores[task]]
    figure, axes = subplots(3, size=(4.2, 0.42 * len(tasks) + 1.5), grid="x", sharey=True)
    for axis, (value, xlabel) in zip(axes, _ANSWER_AXES.items(), strict=True):
        _draw_scores(axis, result, tasks, value)
        axis.set_xlabel(xlabel)
    axes[0].set_xlim(-0.03, 1.03)
    axes[1].set_xlim(left=0)
    axes[2].axvline(0, color=SOFT, lw=1, zorder=-1)
    _name_tasks(axes, result, tasks)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def _draw_scores(axis: Axes, result: Measurements, tasks: Sequence[str], value: str) -> None:
    """Draw one score of every model with its interval, one row per task."""
    roles = [role for role in ROLES if any(role in result.scores[task] for task in tasks)]
    step = 0.76 / len(roles)
    for place, role in enumerate(roles):
        rows = [row for row, task in enumerate(tasks) if role in result.scores[task]]
        scores = [getattr(result.scores[tasks[row]][role], value) for row in rows]
        numbers = np.array([score.value for score in scores])
        ends = np.array([score.ends for score in scores]).T
        y = np.array(rows) + (place - (len(roles) - 1) / 2) * step
        look = LOOKS[role]
        axis.hlines(y, *ends, color=look.color, lw=1.6, alpha=0.7)
        axis.plot(numbers, y, look.marker, color=look.color, ms=5, label=look.name)
    for row in range(0, len(tasks), 2):
        axis.axhspan(row - 0.5, row + 0.5, color=_STRIPE, zorder=-2, lw=0)


def _name_tasks(axes: Sequence[Axes], result: Measurements, tasks: Sequence[str]) -> None:
    """Name the rows, with a star for held-out tasks, and in red for tasks that were not learnt."""
    states = result.states()
    held_out = result.curves().unseen.tasks
    names = [f"{figure_text(task, 30)}{' *' if task in held_out else ''}" for task in tasks]
    axes[0].set_yticks(range(len(tasks)), names, fontsize=9)
    axes[0].set_ylim(len(tasks) - 0.4, -0.6)
    for tick, task in zip(axes[0].get_yticklabels(), tasks, strict=True):
        tick.set_color(_NOT_LEARNT if states[task] == "not learnt" else "black")
    beside = axes[-1].get_yaxis_transform()
    for row, task in enumerate(tasks):
        if states[task] in ("not learnt", "form only"):
            axes[-1].text(1.01, row, states[task], transform=beside, va="center", fontsize=8.5, color=SOFT)


# ---- hidden states ----


def dims_figure(result: Measurements) -> Figure:
    """Draw dimensions for 99% of the variance by layer (the paper's figure 5): all seen tasks together, and by task."""
    figure, (together, by_task) = subplots(2, size=(5.6, 3.6), grid="y")
    counts = [int(probes["dims"].sel("n", label="all")) for probes in result.of_model.values() if "dims" in probes]
    prompts = max(counts, default=0)
    labels = [draw_curve(together, values, role) for role, values in result.dims.items()]
    together.set_title(f"all seen tasks together ({prompts:,} prompts)", fontsize=10)
    together.set_ylabel("dimensions for 99% of the variance")
    _finish_dims(together, result, labels, prompts)
    labels = []
    for role, values in result.task_dims.items():
        seen = values[~result.is_held_out]
        draw_band(by_task, nan_quantile_over_tasks(seen, 0.25), nan_quantile_over_tasks(seen, 0.75), role)
        labels.append(draw_curve(by_task, nan_quantile_over_tasks(seen, 0.5), role))
    by_task.set_title(f"each seen task separately (median and quartiles, n ≥ {result.n:,})", fontsize=10)
    _finish_dims(by_task, result, labels, max(map(result.n_prompts, result.curves().seen.tasks)))
    return figure


def _finish_dims(axis: Axes, result: Measurements, labels: list[Label], prompts: int) -> None:
    """Draw the most dimensions that so many prompts can have, if they are near, and finish the axes.

    Args:
        axis: where to draw.
        result: the measurements.
        labels: of the curves.
        prompts: number of prompts, of tasks the most.
    """
    _, top = axis.get_ylim()
    most = min(prompts - 1, result.d)
    if 0 < most < 1.6 * top:
        axis.axhline(most, color=GREY, ls=":", lw=1.2)
        labels = [*labels, (most, f"maximum possible ({most:,})", SOFT)]
        top = max(top, 1.05 * most)
    axis.set_ylim(0, top)
    finish_layers(axis, result.n_layers)
    direct_labels(axis, labels)


def picture_figure(result: Measurements) -> Figure:
    """Draw hidden states in two dimensions, coloured by cluster (the paper's figure 4): pre above, tuned below."""
    pictures = {role: probes["projection"] for role, probes in result.of_model.items() if "projection" in probes}
    sites = next(iter(pictures.values())).coords["site"]
    figure, axes = subplots(len(pictures) * len(sites), len(sites), size=(2.6, 2.6), grid=None)
    for axis, (role, (place, site)) in zip(axes, product(pictures, enumerate(sites)), strict=True):
        projection = pictures[role]
        xy = projection["xy"][place].numpy()
        codes = projection["label"].numpy()
        for code in np.unique(codes).tolist():
            color, marker = category_style(code)
            x, y = xy[codes == code].T
            axis.scatter(x, y, s=13, lw=0, marker=marker, color=color, alpha=0.8, label=_cluster_name(result, code))
        bare_axis(axis)
        if role == next(iter(pictures)):
            axis.set_title(f"layer {projection.layers[site]}", fontsize=11)
        if place == 0:
            axis.set_ylabel(LOOKS[role].name, fontsize=12, color=LOOKS[role].color)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(6, len(names)), frameon=False, markerscale=1.8)
    return figure


def _cluster_name(result: Measurements, code: int) -> str:
    names = result.cluster_names
    return figure_text(names[code], 28) if code < len(names) else "no cluster"


def purity_figure(result: Measurements) -> Figure:
    """Draw the share of nearest neighbours in the prompt's cluster by layer, with chance."""
    figure, (axis,) = subplots(1, size=(panel_width(result.n_layers, 6, 9), 3.6), grid="y")
    labels = []
    for role, probes in result.of_model.items():
        values = {}
        for end in ("", "_low", "_high"):
            values[end] = np.asarray(probes["purity"][f"neighbour_purity{end}"], dtype=float)[: result.n_layers]
        draw_band(axis, values["_low"], values["_high"], role)
        labels.append(draw_curve(axis, values[""], role))
        chance = float(probes["purity"]["chance"])
    axis.axhline(chance, color=GREY, ls="--", lw=1.3)
    axis.set(ylim=(0, 1.03), ylabel="neighbours of the same cluster")
    finish_layers(axis, result.n_layers)
    direct_labels(axis, [*labels, (chance, "chance", SOFT)])
    return figure
