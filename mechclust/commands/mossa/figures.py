"""Collect the figures of ``mechclust mossa`` in the report's order, with their captions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mechclust.commands.mossa.curve_figures import (
    boxes_figure,
    clusters_figure,
    correlations_figure,
    groups_figure,
    opinions_figure,
)
from mechclust.commands.mossa.drawing import BOXES
from mechclust.commands.mossa.measurements import Measurements
from mechclust.commands.mossa.model_figures import (
    answers_figure,
    dims_figure,
    picture_figure,
    purity_figure,
)
from mechclust.mossa.task_curves import LEAST_TASKS
from mechclust.report.panel import Panel
from mechclust.report.style import styled
from mechclust.report.text import counted

_BANDS = (
    "Green, dotted: ceiling, two controls of one task that differ only in their seed. Hatched: null, the tuned model "
    "with controls of other tasks (quartiles; with few tasks, minimum and maximum)"
)


@styled()
def mossa_panels(result: Measurements) -> list[Panel]:
    """Draw the figures in the report's order, the main one first, leaving out figures without measurements."""
    return [*_curve_panels(result), *_learning_panels(result), *_state_panels(result)]


def _curve_panels(result: Measurements) -> Iterator[Panel]:
    yield Panel("cka_by_layer", boxes_figure(result), _boxes_caption(result))
    yield Panel("layer_groups", groups_figure(result), _GROUPS)
    yield Panel("clusters", clusters_figure(result), _CLUSTERS)
    if any(result.held_out):
        yield Panel("held_out", boxes_figure(result, held_out=True), _held_out_caption(result))


def _learning_panels(result: Measurements) -> Iterator[Panel]:
    if any(result.scores.values()):
        star = " *: held out; tuned never saw it." if any(result.held_out) else ""
        yield Panel("answers", answers_figure(result), _ANSWERS + star)


def _state_panels(result: Measurements) -> Iterator[Panel]:
    if _has(result, "projection"):
        yield Panel("hidden_states", picture_figure(result), _PICTURES)
    if _has(result, "purity"):
        yield Panel("neighbours", purity_figure(result), _NEIGHBOURS)
    if result.dims:
        yield Panel("dimensions", dims_figure(result), _DIMS)
    if any(np.isfinite(values[~result.is_held_out]).sum() > 2 for values in result.covariates.values()):
        yield Panel("correlations", correlations_figure(result), _CORRELATIONS)
    yield Panel("second_opinions", opinions_figure(result), _opinions_caption(result))


def _has(result: Measurements, probe: str) -> bool:
    return bool(result.of_model) and all(probe in probes for probes in result.of_model.values())


def _shape(n: int) -> str:
    """Return the form in which this many tasks are drawn."""
    parts = ["thin line: the median"]
    parts.append("box plots over tasks, whiskers to the minimum and maximum" if n >= BOXES else "one point per task")
    if n >= LEAST_TASKS:
        parts.append("bars: 95% intervals of the medians, by bootstrap over tasks")
    return "; ".join(parts)


def _boxes_caption(result: Measurements) -> str:
    n = len(result.curves().seen.tasks)
    return (
        f"The paper's figure 2: debiased CKA with each task's control by layer, over the {n} tasks that the model was "
        f"tuned on ({_shape(n)}). {_BANDS}. Each layer is the output of a block, the last one before the final norm."
    )


def _held_out_caption(result: Measurements) -> str:
    n = len(result.curves().unseen.tasks)
    tasks = counted(n, "held-out task")
    also = " Purple: the model that was tuned on them too." if np.isfinite(result.values("all-tasks")).any() else ""
    return (
        f"The paper's figure 7: the same for {tasks}. Here, tuned is the model that never saw them "
        f"({_shape(n)}).{also} {_BANDS}."
    )


def _opinions_caption(result: Measurements) -> str:
    chance = " SVCCA is above 0 by chance." if "SVCCA" in result.measures else ""
    return (
        f"Second opinions: similarity with the controls by {len(result.measures)} measures (medians over seen tasks, "
        f"bands: 95% by bootstrap over tasks). {_BANDS}; controls of other tasks were compared by CKA only.{chance}"
    )


_ANSWERS = (
    "What was learnt: answers to test prompts (teacher forcing), by task, with 95% intervals over "
    "prompts. Left: share of answers of which every token was the most probable one. Middle: mean loss. Right: by "
    "how much the right answers of two prompts are more probable than the same two exchanged, mean over pairs. "
    "Red, not learnt: the task's control is better than pre in none of the three, by the interval of the "
    "difference on the same prompts; CKA with such a control means little. Form only: answers became more probable "
    "or more often exact, but right answers are told apart from other prompts' no better than at random or than by "
    "pre."
)
_GROUPS = (
    "Layer groups (shades) of the seen tasks, and what they are read from. Bars on top: 95% of where the shared "
    "layers (grey) and the transition (orange) end, by bootstrap over tasks. Above: medians with their 95% "
    "intervals by the same bootstrap. Middle: interquartile range over tasks; dotted: .10, below which it must fall "
    f"for there to be a transition. Below: dimensions of all seen tasks together, which end the transition; they are "
    f"the same in every draw, so that this end varies less than it would with other tasks. {_BANDS}."
)
_PICTURES = (
    "The paper's figure 4: t-SNE of the hidden states at five layers, before (above) and after tuning (below), "
    "coloured by cluster. Distances between groups, and their sizes, mean nothing in t-SNE; the next figure counts "
    "neighbours in the hidden states themselves."
)
_NEIGHBOURS = (
    "Share of a prompt's ten nearest neighbours that are in its own cluster of tasks, by layer, with 95% intervals "
    "over prompts. Dashed: by chance."
)

_CLUSTERS = (
    "The paper's figure 3: debiased CKA with the controls by cluster of tasks. Bold: median over the cluster's "
    f"seen tasks; thin: each task; bands: 95% of the median by bootstrap over at least {LEAST_TASKS} tasks. {_BANDS}."
)
_DIMS = (
    "The paper's figure 5: dimensions that hold 99% of the variance of the hidden states, by layer. Dotted: the "
    "most that this many prompts can have."
)
_CORRELATIONS = (
    "The paper's figure 6: correlation over seen tasks of debiased CKA (with the control) with how hard "
    "prompts are to read and with the number of training examples, by layer; bands: 95% by bootstrap over tasks. "
    "Hatched: the 95% range of correlations between unrelated numbers for this many tasks."
)
