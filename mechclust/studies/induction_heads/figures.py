"""Figures of the induction-head study."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from mechclust.report.axes import direct_labels
from mechclust.report.seed_plots import plot_seeds
from mechclust.report.style import BLUE, GREEN, GREY, RED
from mechclust.report.subplots import subplots
from mechclust.studies.induction_heads.results import RunResults


def over_training_figure(two: Sequence[RunResults], one: Sequence[RunResults], formed_at: float | None) -> Figure:
    """Draw the loss on repeated tokens over training, and the highest scores of heads.

    Args:
        two: runs with two layers.
        one: runs with one layer.
        formed_at: step to mark, or ``None`` for no mark.
    """
    figure, (left, right) = subplots(2, size=(5.2, 3.6))
    steps = two[0].steps
    curves = (
        (left, "one layer", GREY, [run.loss for run in one]),
        (left, "two layers", BLUE, [run.loss for run in two]),
        (right, "induction, one layer", GREY, [run.top_induction for run in one]),
        (right, "induction", BLUE, [run.top_induction for run in two]),
        (right, "previous token", GREEN, [run.top_previous for run in two]),
    )
    labels: dict[int, list[tuple[float, str, str]]] = {0: [], 1: []}
    for axis, name, color, of_runs in curves:
        values = np.stack(of_runs)
        plot_seeds(axis, steps, values, color=color)
        labels[int(axis is right)].append((float(values[:, -1].mean()), name, color))
    for axis in (left, right):
        if formed_at is not None:
            axis.axvline(formed_at, color=RED, lw=1, ls="--")
        axis.set(xlabel="training step", xlim=(0, steps[-1]))
    left.set(ylabel="loss on repeated tokens (nats)", ylim=(0, None), title="loss")
    right.set(ylabel="attention less chance", title="highest score of a head", ylim=(-0.05, 1))
    right.axhline(0, color=GREY, lw=0.8)
    direct_labels(left, labels[0])
    direct_labels(right, labels[1])
    return figure


def ablations_figure(two: Sequence[RunResults]) -> Figure:
    """Draw by how much the loss rises without each head of each network, ordered by score within its layer."""
    figure, axes = subplots(2, size=(3.9, 3.4), sharey=True)
    panels = (("first layer", "previous-token", GREEN), ("last layer", "induction", BLUE))
    for layer, (axis, (title, role, color)) in enumerate(zip(axes, panels, strict=True)):
        alone = np.stack([_by_score(run, layer) for run in two])
        together = np.array([run.together[layer] for run in two])
        n_heads = alone.shape[1]
        for x, values in enumerate([*alone.T, together]):
            axis.plot(np.full(len(values), x), values, "o", ms=4, alpha=0.6, color=color if x < n_heads else RED)
        axis.set_xticks(range(n_heads + 1), [*(f"{place + 1}." for place in range(n_heads)), "all"])
        axis.set(title=title, xlabel=f"head ablated, by {role} score")
        axis.set_yscale("symlog", linthresh=0.1)
        axis.yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel("rise of the loss (nats)")
    return figure


def _by_score(run: RunResults, layer: int) -> Float[np.ndarray, "head"]:
    """Return the rises of the loss without each head of a layer, by falling score."""
    scores = (run.previous if layer == 0 else run.induction)[-1, layer]
    return run.alone[layer][np.argsort(-scores)]
