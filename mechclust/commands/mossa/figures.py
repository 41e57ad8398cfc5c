"""The figures of ``mechclust mossa``, in the report's order, each with what it shows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mechclust.commands.mossa.draw import BOXES, is_published_design
from mechclust.commands.mossa.measure_figures import (
    correlations_figure,
    dims_figure,
    final_norm_figure,
    forms_figure,
    opinions_figure,
    picture_figure,
    purity_figure,
)
from mechclust.commands.mossa.result import MossaResult
from mechclust.commands.mossa.task_figures import boxes_figure, clusters_figure, groups_figure, held_out_figure
from mechclust.commands.mossa.training_figures import answers_figure, losses_figure
from mechclust.mossa.task_curves import LEAST_TASKS
from mechclust.report.analysis import Panel
from mechclust.report.style import styled

_BANDS = (
    "Green, dotted: ceiling, two controls of one task that differ only in their seed. Hatched: null, the tuned model "
    "with controls of other tasks (quartiles; with few tasks, minimum and maximum)"
)
_PUBLISHED = (
    " Dashed: the paper's medians, dotted its quartiles (Llama-2-7B; read off the figure; biased CKA, and the last "
    "layer is after the final norm)."
)


@styled()
def mossa_panels(result: MossaResult) -> list[Panel]:
    """Figures in the report's order; those without measurements are left out."""
    held_out = np.array(result.held_out, dtype=bool)
    published = is_published_design(result)
    readable = any(np.isfinite(values[~held_out]).sum() > 2 for values in result.covariates.values())
    wanted: list[tuple[bool, str, Callable[[MossaResult], object], str]] = [
        (any(result.scores.values()), "answers", answers_figure, _answers_caption(result)),
        (any(t.losses for t in result.trained.values()), "training_losses", losses_figure, _LOSSES),
        (True, "cka_by_layer", boxes_figure, _boxes_caption(result) + _PUBLISHED * published),
        (True, "layer_groups", groups_figure, _GROUPS),
        (True, "clusters", clusters_figure, _clusters_caption(published)),
        (_has(result, "projection"), "hidden_states", picture_figure, _PICTURES),
        (_has(result, "purity"), "neighbours", purity_figure, _NEIGHBOURS),
        (bool(result.dims), "dimensions", dims_figure, _dims_caption(published)),
        (readable, "correlations", correlations_figure, _correlations_caption(published)),
        (
            int(held_out.sum()) > 1,  # of one, the next figure shows the same
            "held_out",
            lambda r: boxes_figure(r, held_out=True),
            _held_out_caption(result) + _PUBLISHED * published,
        ),
        (bool(held_out.any()), "held_out_tasks", held_out_figure, _HELD_OUT_TASKS),
        (True, "final_norm", final_norm_figure, _FINAL_NORM),
        (True, "biased_and_debiased", forms_figure, _FORMS),
        (len(result.measures) > 2, "second_opinions", opinions_figure, _opinions_caption(result)),
    ]
    return [Panel(name, draw(result), caption) for there, name, draw, caption in wanted if there]  # type: ignore[arg-type]


def _has(result: MossaResult, probe: str) -> bool:
    return bool(result.of_model) and all(probe in found for found in result.of_model.values())


def _shape(n: int) -> str:
    """How this many tasks are drawn."""
    parts = ["box plots over tasks, whiskers to the minimum and maximum" if n >= BOXES else "one point per task"]
    if n >= LEAST_TASKS:
        parts.append("bars: 95% intervals of the medians, by bootstrap over tasks")
    return "; ".join(["thin line: the median", *parts])


def _boxes_caption(result: MossaResult) -> str:
    n = len(result.curves().seen.tasks)
    return (
        f"The paper's figure 2: debiased CKA with each task's control by layer, over the {n} tasks that the model was "
        f"tuned on ({_shape(n)}). {_BANDS}. Each layer is the output of a block, the last one before the final norm."
    )


def _held_out_caption(result: MossaResult) -> str:
    n = len(result.curves().unseen.tasks)
    also = " Purple: the model that was tuned on them too." if np.isfinite(result.values("all-tasks")).any() else ""
    return (
        f"The paper's figure 7: the same for the {n} held-out task{'s' * (n != 1)}. Here, tuned is the model that "
        f"never saw {'them' if n != 1 else 'it'} ({_shape(n)}).{also} {_BANDS}."
    )


def _answers_caption(result: MossaResult) -> str:
    star = " *: held out; tuned never saw it." if any(result.held_out) else ""
    return (
        "What was learnt: answers to test prompts (teacher forcing), by task, with 95% intervals over "
        "prompts. Left: share of answers of which every token was the most probable one. Middle: mean loss. Right: by "
        "how much the right answers of two prompts are more probable than the same two exchanged, mean over pairs. "
        "Red, not learnt: the task's control is better than pre in none of the three, by the interval of the "
        "difference on the same prompts; CKA with such a control means little. Form only: answers became more probable "
        "or more often exact, but right answers are told apart from other prompts' no better than at random or than by "
        f"pre.{star}"
    )


_LOSSES = (
    "Training losses of every adapter (mean since the previous point, on the answers' tokens). Dotted: a control "
    "trained again with another seed."
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
_HELD_OUT_TASKS = (
    "The paper's figure 7, separately for each held-out task: tuned without it (red), tuned on it (purple), and the "
    "base model (blue). "
    f"{_BANDS}."
)
_FINAL_NORM = (
    "What the final norm changes: debiased CKA with the control after it, against that of the last block before it. "
    "The paper's last layer is after the norm; all other figures here show blocks, before it."
)
_FORMS = (
    "Debiased and biased CKA (medians over seen tasks, bands: 95% by bootstrap over tasks). Hatched: what prompts "
    "paired at random give, towards which the biased form is pulled if there are few prompts for the width."
)


def _clusters_caption(published: bool) -> str:
    diamonds = " Diamonds: the paper's medians (biased CKA)." if published else ""
    return (
        "The paper's figure 3: debiased CKA with the controls by cluster of tasks. Bold: median over the cluster's "
        f"seen tasks; thin: each task; bands: 95% of the median by bootstrap over at least {LEAST_TASKS} tasks. "
        f"{_BANDS}.{diamonds}"
    )


def _dims_caption(published: bool) -> str:
    diamonds = " Diamonds, dashed: the paper's." if published else ""
    return (
        "The paper's figure 5: dimensions that hold 99% of the variance of the hidden states, by layer. Dotted: the "
        f"most that this many prompts can have.{diamonds}"
    )


def _correlations_caption(published: bool) -> str:
    shown = " Dotted areas: what the paper's figure shows." if published else ""
    return (
        "The paper's figure 6: correlation over seen tasks of debiased CKA (with the control) with how hard "
        "prompts are to read and with the number of training examples, by layer; bands: 95% by bootstrap over tasks. "
        f"Hatched: the 95% range of correlations between unrelated numbers for this many tasks.{shown}"
    )


def _opinions_caption(result: MossaResult) -> str:
    return (
        "Second opinions: similarity with the controls by "
        f"{len(result.measures)} measures (medians over seen tasks, bands: 95% by bootstrap over tasks). {_BANDS}; "
        "controls of other tasks were compared by CKA only. SVCCA is above 0 by chance."
    ).replace(" SVCCA is above 0 by chance.", " SVCCA is above 0 by chance." if "SVCCA" in result.measures else "")
