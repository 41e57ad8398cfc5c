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
from mechclust.commands.mossa.tables import parts_of
from mechclust.mossa.correlations import n_known
from mechclust.mossa.published import FLESCH_KINCAID
from mechclust.mossa.task_curves import LEAST_TASKS, TaskCurves
from mechclust.report.panel import Panel
from mechclust.report.style import styled
from mechclust.report.text import counted, list_text


@styled()
def mossa_panels(result: Measurements) -> list[Panel]:
    """Draw the figures in the report's order, the main one first, leaving out figures without measurements."""
    return [*_curve_panels(result), *_model_panels(result)]


def _curve_panels(result: Measurements) -> Iterator[Panel]:
    yield Panel("cka_by_layer", boxes_figure(result), _boxes_caption(result))
    yield Panel("layer_groups", groups_figure(result), _groups_caption(result))
    yield Panel("clusters", clusters_figure(result), _clusters_caption(result))
    if any(result.held_out):
        yield Panel("held_out", boxes_figure(result, held_out=True), _held_out_caption(result))


def _model_panels(result: Measurements) -> Iterator[Panel]:
    if any(result.scores.values()):
        yield Panel("answers", answers_figure(result), _answers_caption(result))
    if _has(result, "projection"):
        yield Panel("hidden_states", picture_figure(result), _picture_caption(result))
    if _has(result, "purity"):
        yield Panel("neighbours", purity_figure(result), _NEIGHBOURS)
    if result.dims:
        yield Panel("dimensions", dims_figure(result), _DIMS)
    if any(np.isfinite(values[~result.is_held_out]).sum() > 2 for values in result.covariates.values()):
        yield Panel("correlations", correlations_figure(result), _correlations_caption(result))
    yield Panel("second_opinions", opinions_figure(result), _opinions_caption(result))


def _has(result: Measurements, probe: str) -> bool:
    return bool(result.of_model) and all(probe in probes for probes in result.of_model.values())


# ---- captions, which name only what is drawn ----


def _references(curves: TaskCurves) -> str:
    """Return what the curves of ceiling and null are, if there are any."""
    parts = []
    if curves.has("ceiling"):
        parts.append("Green, dotted: ceiling, two controls of one task that differ only in their seed.")
    if curves.has("null"):
        parts.append("Hatched: null, the tuned model with controls of other tasks.")
    if parts:
        parts.append(f"Their bands: quartiles over tasks (of fewer than {BOXES}, minimum and maximum).")
    return "".join(f" {part}" for part in parts)


def _shape(n: int) -> str:
    """Return the form in which this many tasks are drawn."""
    parts = ["thin line: the median"]
    parts.append("box plots over tasks, whiskers to the minimum and maximum" if n >= BOXES else "one point per task")
    if n >= LEAST_TASKS:
        parts.append("bars: 95% intervals of the medians, by bootstrap over tasks")
    return "; ".join(parts)


def _boxes_caption(result: Measurements) -> str:
    curves = result.curves().seen
    n = len(curves.tasks)
    return (
        f"The paper's figure 2: debiased CKA with each task's control by layer, over {n} tasks that the model was "
        f"tuned on ({_shape(n)}).{_references(curves)} Each layer is the output of a block, the last one before the "
        "final norm."
    )


def _held_out_caption(result: Measurements) -> str:
    curves = result.curves().unseen
    n = len(curves.tasks)
    also = " Purple: the model that was tuned on them too." if np.isfinite(result.values("all-tasks")).any() else ""
    return (
        f"The paper's figure 7: the same for {counted(n, 'held-out task')}. Here, tuned is the model that never saw "
        f"them ({_shape(n)}).{also}{_references(curves)}"
    )


def _groups_caption(result: Measurements) -> str:
    curves = result.curves().seen
    parts = ["What layer groups are read from, of the seen tasks. None are named."]
    if result.named_groups:
        parts = ["Layer groups (shades) of the seen tasks, and what they are read from."]
        ends = {"the shared layers (grey)": "shared_end", "the transition (orange)": "transition_end"}
        drawn = [name for name, end in ends.items() if getattr(result.groups, end) is not None]
        if drawn:
            parts.append(f"Bars on top: 95% of where {list_text(drawn)} end, by bootstrap over tasks.")
    has_dims = any(np.isfinite(values).any() for values in curves.dims.values())
    parts.append(
        f"Above: medians over tasks. {'Middle' if has_dims else 'Below'}: interquartile range over tasks; dotted: .10, "
        "below which it must fall for there to be a transition."
    )
    if not curves.few:
        parts.append("Bands: 95% by bootstrap over tasks.")
    if has_dims:
        parts.append("Below: dimensions of all seen tasks together, which end the transition.")
        if not curves.few:
            parts.append("They are the same in every draw, so that this end varies less than with other tasks.")
    return f"{' '.join(parts)}{_references(curves)}"


def _clusters_caption(result: Measurements) -> str:
    bands = f"; bands: 95% of the median, by bootstrap over at least {LEAST_TASKS} tasks"
    if all(part.few for part in parts_of(result).values()):
        bands = ""
    return (
        "The paper's figure 3: debiased CKA with the controls by cluster of tasks. Bold: median over the cluster's "
        f"seen tasks; thin: each task{bands}.{_references(result.curves().seen)}"
    )


def _answers_caption(result: Measurements) -> str:
    states = {*result.states().values()}
    parts = [_ANSWERS]
    if "not learnt" in states:
        parts.append(
            "Red, not learnt: the task's control has neither a lower loss nor more exact answers than pre, by the "
            "interval of the difference on the same prompts; CKA with a control that learnt nothing means little."
        )
    if "form only" in states:
        parts.append(
            "Form only: answers became more probable or more often exact, but right answers are told apart from other "
            "prompts' not clearly better than at random or than by pre."
        )
    if any(result.held_out):
        parts.append("*: held out; tuned never saw it.")
    return " ".join(parts)


def _picture_caption(result: Measurements) -> str:
    pictures = [probes["projection"] for probes in result.of_model.values()]
    layers = counted(len(pictures[0].coords["site"]), "layer")
    pca = " PCA where the states are a few points many times over." if any(each.notes for each in pictures) else ""
    neighbours = "; the next figure counts neighbours in the hidden states themselves" if _has(result, "purity") else ""
    return (
        f"The paper's figure 4: t-SNE of the hidden states at {layers}, before (above) and after tuning (below), "
        f"coloured by cluster.{pca} Distances between groups, and their sizes, mean nothing in t-SNE{neighbours}."
    )


def _correlations_caption(result: Measurements) -> str:
    curves = result.curves().seen
    known = [n_known(curves, name) for name in curves.covariates]
    hard = "how hard prompts are to read and with " if FLESCH_KINCAID in curves.covariates else ""
    bands = "; bands: 95% over tasks, by Fisher's transformation" if max(known) >= LEAST_TASKS else ""
    chance = " Hatched: the 95% range of correlations between unrelated numbers for this many tasks."
    return (
        f"The paper's figure 6: correlation over seen tasks of debiased CKA (with the control) with {hard}the number "
        f"of training examples, by layer{bands}.{chance if max(known) > 3 else ''}"
    )


def _opinions_caption(result: Measurements) -> str:
    curves = result.curves().seen
    bands = "" if curves.few else ", bands: 95% by bootstrap over tasks"
    null = " Controls of other tasks were compared by CKA only." if curves.has("null") else ""
    chance = " SVCCA is above 0 by chance." if "SVCCA" in result.measures else ""
    return (
        f"Second opinions: similarity with the controls by {counted(len(result.measures), 'measure')} (medians over "
        f"seen tasks{bands}).{_references(curves)}{null}{chance}"
    )


_ANSWERS = (
    "What was learnt: answers to test prompts (teacher forcing), by task, with 95% intervals over prompts. Left: share "
    "of answers of which every token was the most probable one. Middle: mean loss. Right: by how much the right "
    "answers of two prompts are more probable than the same two exchanged, with mean and interval over such pairs."
)
_NEIGHBOURS = (
    "Share of a prompt's ten nearest neighbours that are in its own cluster of tasks, by layer, with 95% intervals "
    "over prompts. Dashed: by chance."
)
_DIMS = "The paper's figure 5: dimensions that hold 99% of the variance of the hidden states, by layer."
