"""Conclusions of a MOSSA run: one headline, a table of readings, and caveats on the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mechclust.commands.mossa.learnt import LearningState
from mechclust.commands.mossa.measurements import Measurements
from mechclust.evidence.intervals import value_with_interval
from mechclust.mossa.gaps_and_spreads import upper_half_gap
from mechclust.mossa.layer_groups import LEAST_FOR_GROUPS
from mechclust.report.reading import Reading
from mechclust.report.text import counted, first_few, layers_text, ranges_text
from tasks.text.visible import quoted, shortened

if TYPE_CHECKING:
    import pandas as pd

    Tables = Mapping[str, pd.DataFrame]

_MAX_CLUSTERS = 6
_UPPER = "upper half"  # of the layers, mean


def headline(result: Measurements) -> str:
    """Return the conclusion in at most 25 words."""
    states = result.states()
    known = [state for state in states.values() if state != "not measured"]
    learnt = f"Learnt: {known.count('learnt')} of {len(known)} tasks." if known else "Learning was not measured."
    return f"{_groups(result)} {_direction(result)}. {learnt}"


def _groups(result: Measurements) -> str:
    """Return the layer groups, unless tasks are too few or leave open whether any layer is not shared.

    Without an interval, in half of the runs of 4 or 5 tasks without any effect some layers would not be shared.
    """
    if not result.named_groups:
        return "No layer groups are named."
    shared_end = result.groups.shared_end
    if shared_end is None or shared_end[1] == result.n_layers:
        return "No layer group is clear."
    return f"Layers: {result.groups.groups}."


def _direction(result: Measurements) -> str:
    """Return whether tuned is nearer to the controls than pre."""
    value, (low, high) = result.upper_half_gap
    if not np.isfinite(value):
        return "Whether tuned is nearer to the controls than pre is undefined"
    clearly = "" if low > 0 or high < 0 else "not clearly "  # of few tasks, there is no interval
    direction = "nearer to" if value > 0 else "farther from"
    return f"Tuned is {clearly}{direction} the controls than pre (upper half {value:z.2f})"


def readings(result: Measurements, tables: Tables) -> list[Reading]:
    """Return readings of learning, layers, tasks and held-out tasks.

    Args:
        result: the measurements.
        tables: as ``MossaResult.tables``.
    """
    return [
        *_learnt(result),
        *_learnt_by_tuned(result),
        *_layer_groups(result),
        *_tuned_alone(result),
        *_gain(result),
        *_clusters(tables),
        *_tasks(result, tables["tasks"]),
        *_held_out(result),
    ]


# ---- learning ----


def _learnt(result: Measurements) -> Iterator[Reading]:
    """Yield how many tasks the controls learnt, and the ones that they did not."""
    tasks_by_state: dict[LearningState, list[str]] = {}
    for task, state in result.states().items():
        tasks_by_state.setdefault(state, []).append(task)
    measured = len(result.tasks) - len(tasks_by_state.get("not measured", []))
    what = "Tasks learnt by their own controls"
    if not measured:
        scored = any(result.scores.values())
        why = "Too few scored prompts have different answers." if scored else "Answers were not measured."
        yield Reading(what, "unknown", verdict=why)
        return
    rule = (
        "Right answers are more probable or more often exact than with pre, and told apart from other prompts' better "
        "than at random and than by pre (95% intervals over prompts and pairs)."
    )
    yield Reading(what, f"{len(tasks_by_state.get('learnt', []))} of {measured}", verdict=rule)
    if "form only" in tasks_by_state:
        verdict = (
            "They became more probable or more often exact, but right ones are not clearly told apart better than at "
            "random and than by pre."
        )
        yield Reading("Only the form of the answers learnt", first_few(tasks_by_state["form only"]), verdict=verdict)
    if "not learnt" in tasks_by_state:
        verdict = "The control is not clearly better than pre. CKA with a control that learnt nothing means little."
        yield Reading("Not learnt", first_few(tasks_by_state["not learnt"]), verdict=verdict)


def _learnt_by_tuned(result: Measurements) -> Iterator[Reading]:
    """Yield how many seen and held-out tasks the tuned model learnt."""
    states = result.states("tuned")
    curves = result.curves()
    for part, what in (
        (curves.seen, "Seen tasks learnt by the tuned model"),
        (curves.unseen, "Held-out tasks learnt without their examples"),
    ):
        tasks = [task for task in part.tasks if states[task] != "not measured"]
        if tasks:
            learnt = sum(states[task] == "learnt" for task in tasks)
            before = np.mean([result.scores[task]["base"].exact.value for task in tasks])
            after = np.mean([result.scores[task]["tuned"].exact.value for task in tasks])
            yield Reading(what, f"{learnt} of {len(tasks)} (exact answers {after:.0%}, pre {before:.0%})")


# ---- layers ----


def _layer_groups(result: Measurements) -> Iterator[Reading]:
    seen = result.curves().seen
    if result.named_groups:
        yield Reading(f"Layer groups of {len(seen.tasks)} seen tasks", str(result.groups))
    elif len(seen.tasks) < LEAST_FOR_GROUPS:
        verdict = f"Medians over tasks and their spread need at least {LEAST_FOR_GROUPS} seen tasks."
        yield Reading("Layer groups", f"not named, {len(seen.tasks)} seen tasks", verdict=verdict)
    else:
        where = layers_text(ranges_text(map(int, seen.undefined_layers)))
        yield Reading("Layer groups", "not named", where, verdict="There, similarity with the controls is undefined.")


def _tuned_alone(result: Measurements) -> Iterator[Reading]:
    """Yield layers at which tuned is less similar to the controls than pre, so that they share no changes."""
    if not result.named_groups:
        return
    curves = result.curves().seen
    few = " Without an interval, this may be chance." if curves.few else ""
    alone = result.groups.tuned_alone
    if alone:
        base = min(curves.median("base")[layer - 1] for layer in alone)
        tuned = min(curves.median("tuned")[layer - 1] for layer in alone)
        yield Reading(
            "Tuned alone changed",
            f"median CKA with the controls at least {base:z.2f} (pre), down to {tuned:z.2f} (tuned)",
            layers_text(ranges_text(alone)),
            verdict=f"The controls are like pre there. A layer also inherits what changed below it.{few}",
        )
    both = [layer for layer in result.groups.farther if layer not in alone]
    if both:
        yield Reading(
            "Tuned is less similar to the controls than pre",
            f"median CKA lower by up to {-min(curves.gap[layer - 1] for layer in both):z.2f}",
            layers_text(ranges_text(both)),
            verdict=f"Tuned changed there, but not as the controls did.{few}",
        )


def _gain(result: Measurements) -> Iterator[Reading]:
    curves = result.curves().seen
    value, (low, high) = result.upper_half_gap
    if not np.isfinite(value):
        yield Reading("Tuned - pre", "unknown", verdict="Similarity with the controls is undefined.")
        return
    ends = f" (95% over tasks {low:z.2f} to {high:z.2f})" if np.isfinite([low, high]).all() else ""
    verdict = f"{_direction(result).partition(' (')[0]}: difference of medians over {len(curves.tasks)} seen tasks."
    yield Reading("Tuned - pre", f"{value:z.2f}{ends}", _UPPER, verdict=verdict)
    largest = int(np.nanargmax(np.abs(curves.gap)))
    yield Reading("Tuned - pre, largest in size", f"{curves.gap[largest]:z.2f}", f"layer {largest + 1}")


# ---- clusters and tasks ----


def _clusters(tables: Tables) -> Iterator[Reading]:
    table = tables.get("clusters")
    if table is None or len(table) < 2:
        return
    for row in table.iloc[:_MAX_CLUSTERS].itertuples():
        span = f"{row.gain_least:z.2f} to {row.gain_most:z.2f}, {counted(row.tasks, 'task')}"
        value = f"tuned - pre {row.gain:z.2f} ({span}), largest at layer {row.at_layer}"
        yield Reading(f"Cluster {shortened(row.cluster)}", value, _UPPER)
    if len(table) > _MAX_CLUSTERS:
        yield Reading("Clusters that gain less", f"{len(table) - _MAX_CLUSTERS} more, in clusters.csv")


def _tasks(result: Measurements, table: pd.DataFrame) -> Iterator[Reading]:
    """Yield the seen tasks that gain most and least, with intervals wide enough for all seen tasks."""
    known = table[~table["held_out"] & table["gain"].notna()]
    if len(known) > 1:
        ends = dict(zip(result.tasks, result.gain_ends(len(known)), strict=True))
        for which, place in (("most", 0), ("least", -1)):
            row = known.iloc[place]
            gain = value_with_interval(row["gain"], ends[row["task"]], ".2f")
            gain += "" if np.isfinite(ends[row["task"]]).all() else " (no interval)"
            value = f"{shortened(row['task'])} {gain}, largest at layer {row['at_layer']}"
            yield Reading(f"Seen task that gains {which}", value, _UPPER)


def _held_out(result: Measurements) -> Iterator[Reading]:
    curves = result.curves().unseen
    if not curves.tasks:
        verdict = "Nothing is known about tasks that the model was not tuned on."
        if result.unmeasured:
            why = f"{verdict} The notes say why."
            yield Reading("Held out and not measured", first_few(result.unmeasured), verdict=why)
        else:
            yield Reading("Held-out tasks", "none", verdict=verdict)
        return
    which = f"Held out: {first_few(curves.tasks)}"
    value = float(upper_half_gap(curves))
    if not np.isfinite(value):
        yield Reading(which, "unknown", _UPPER, verdict="Similarity with the controls is undefined.")
        return
    gains = curves.gain[np.isfinite(curves.gain)]
    span = f" ({gains.min():z.2f} to {gains.max():z.2f})" if len(gains) > 1 else ""
    all_tasks = result.values("all-tasks")[result.is_held_out]
    seen_too = ""
    if np.isfinite(all_tasks).any():
        seen_too = f", and {float(upper_half_gap(replace(curves, tuned=all_tasks))):z.2f} if tuned on them too"
    yield Reading(which, f"tuned - pre {value:z.2f}{span} if tuned without them{seen_too}", _UPPER)


# ---- caveats ----


def caveats(result: Measurements) -> list[str]:
    """Return the caveats on the numbers, with the run's notes."""
    groups = [f"Layer groups: {'; '.join(result.groups.notes)}"] if result.named_groups else []
    return [
        f"Measured at the last token of each test prompt, at the output of every block and after the final norm: n is "
        f"{result.n:,} prompts for the task that has the fewest, d = {result.d:,}. {_roles(result)}",
        "Debiased CKA is 1 for the same geometry, near 0 for unrelated ones, and may be negative. It does not see a "
        "rotation, a common scale or a shift, nor whether a change matters to the answers; a few far-off prompts can "
        "move it.",
        "Intervals of findings, medians and layer groups are over tasks, by bootstrap (of correlations over tasks, "
        "Fisher's): they show how much depends on which tasks were measured. One run has one tuned model; the "
        "intervals include neither the variation between seeds of its tuning nor the likeness of tasks in a cluster.",
        *_on_gains(result),
        *_few_prompts(result),
        *map(_sentence, groups),
        *_references(result),
        *_lacking_answers(result),
        *map(_sentence, result.notes),
    ]


def _roles(result: Measurements) -> str:
    if result.config.trains:
        return (
            "pre is the base model, tuned the base with one adapter for all tasks (for held-out ones, for the others), "
            "a control the base with an adapter for one task."
        )
    return "pre is the base model, tuned the given model of many tasks, a control the given model of one task."


def _on_gains(result: Measurements) -> Iterator[str]:
    if np.isfinite(result.gain_ends()).any():
        over = "prompts" if result.config.units is None else f"units ({quoted(result.config.units)})"
        yield (
            f"The interval of a task's gain is over {over}, from {result.config.n_resamples} random halves of them. Of "
            "the task that gains most or least, it is wide enough for all seen tasks."
        )


def _few_prompts(result: Measurements) -> Iterator[str]:
    if result.n < 10 * result.d:
        yield (
            "n is below 10 d, so biased CKA is too high (independent states with n far below d come near 1): "
            "read the debiased form. The paper's numbers are biased."
        )


def _references(result: Measurements) -> Iterator[str]:
    """Yield the source of the ceiling, or that there is no ceiling or null."""
    curves = result.curves()
    if curves.ceiling is None:
        option = " Ask for it with --ceilings." if result.config.trains else ""
        yield (
            "No task has two controls, so there is no ceiling: it is not known how similar two models of the same task "
            f"are, and a CKA below 1 may be as high as it can get.{option}"
        )
    else:
        tasks = [task for task, row in zip(curves.tasks, curves.ceiling, strict=True) if np.isfinite(row).any()]
        yield f"Tasks with a ceiling, whose controls were trained twice: {first_few(tasks)}."
    if not curves.has("null"):
        yield "Controls of other tasks were not compared, so there is no null; ask for it with --nulls."


def _lacking_answers(result: Measurements) -> Iterator[str]:
    """Yield the tasks without evidence on whether they were learnt."""
    states = result.states()
    lacking = [task for task, state in states.items() if state == "not measured"]
    alike = [task for task in lacking if "control" in result.scores[task]]
    if alike:
        yield (
            "Fewer than two pairs of scored prompts have different answers, so it is not known what was learnt: "
            f"{first_few(alike)}."
        )
    unscored = [task for task in lacking if task not in alike]
    if 0 < len(unscored) < len(states):
        yield f"Answers were not measured for {first_few(unscored)}."


def _sentence(note: str) -> str:
    """Return a note as a sentence."""
    note = note.strip()
    return note if not note or note.endswith((".", "!", "?")) else f"{note[0].upper()}{note[1:]}."
