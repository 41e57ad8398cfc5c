"""The findings of a MOSSA run, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mechclust.commands.mossa.learnt import LearningState
from mechclust.commands.mossa.result import MossaResult
from mechclust.commands.mossa.tables import clusters_table, tasks_table
from mechclust.evidence import Finding
from mechclust.mossa.curve_statistics import upper_gap
from mechclust.mossa.layer_groups import LEAST_FOR_GROUPS
from mechclust.mossa.task_curves import TaskCurves, bootstrap
from mechclust.report.text import join, ranges
from tasks.text.visible import short

if TYPE_CHECKING:
    import pandas as pd

_NAMED = 6  # tasks or clusters in a list


def lead_of(result: MossaResult) -> list[str]:
    """The conclusion, one sentence each: what was learnt, layers, tasks, open questions, and what cannot be decided."""
    return [
        *_learnt(result),
        *_groups(result),
        *_changed(result),
        *_held_out(result),
        *_verdicts(result.findings),
    ]


# ---- what was learnt ----


def _learnt(result: MossaResult) -> list[str]:
    states = result.states()
    if set(states.values()) == {"not measured"}:
        return ["Answers were not measured, so nothing shows whether any model learnt its tasks."]
    of: dict[LearningState, list[str]] = {}
    for task, state in states.items():
        of.setdefault(state, []).append(task)
    known = [task for task, state in states.items() if state != "not measured"]
    learnt = of.get("learnt", [])
    said = (
        f"By its own control, {len(learnt) or 'none'} of {_many(len(known), 'task')} "
        f"{'was' if len(learnt) < 2 else 'were'} learnt (right answers are told apart from other prompts' better "
        "than at random and than by pre, by 95% intervals over pairs of prompts)"
    )
    if half := of.get("form only"):
        said += f"; of {_named(half)} only the form of the answers"
    found = [f"{said}."]
    if none := of.get("not learnt"):
        its = "its control is" if len(none) == 1 else "their controls are"
        found.append(f"Not learnt: {_named(none)}; {its} no better than pre, and CKA with such a control means little.")
    return [*found, *_multi_task(result)]


def _multi_task(result: MossaResult) -> list[str]:
    """On how many tasks the tuned model is better than pre."""
    states, scores = result.states("tuned"), result.scores
    held_out = dict(zip(result.tasks, result.held_out, strict=True))
    parts = []
    for out, called in ((False, "the tuned model"), (True, "the model that was trained without them")):
        tasks = [task for task, state in states.items() if held_out[task] == out and state != "not measured"]
        if not tasks:
            continue
        better = sum(states[task] == "learnt" for task in tasks)
        before, after = (float(np.mean([scores[task][role].exact for task in tasks])) for role in ("base", "tuned"))
        parts.append(
            f"{called} learnt {better or 'none'} of {_many(len(tasks), 'held-out task' if out else 'seen task')} "
            f"(exact answers {after:.0%}, pre {before:.0%})"
        )
    return [f"By the same measure, {', and '.join(parts)}."] if parts else []


# ---- layers ----


def _groups(result: MossaResult) -> list[str]:
    n = len(result.curves().seen.tasks)
    if n >= LEAST_FOR_GROUPS and not result.named_groups:
        undefined = [int(layer) for layer in result.curves().seen.undefined_layers]
        return [f"No layer groups are named: similarity with the controls is undefined at {_layers(undefined)}."]
    if not result.named_groups:
        return [
            f"No layer groups are named: {_many(n, 'seen task')}, and medians over tasks and their spread need at "
            f"least {LEAST_FOR_GROUPS}."
        ]
    return [f"Layer groups of {n} seen tasks: {result.groups.in_words()}.", *_farther(result)]


def _farther(result: MossaResult) -> list[str]:
    """Layers where tuned is less similar to the controls than pre: nothing there is shared by tuned and controls."""
    groups, curves = result.groups, result.curves().seen
    found = []
    if alone := groups.tuned_alone:
        least = min(alone, key=lambda layer: float(curves.median("tuned")[layer - 1]))
        found.append(
            f"Tuned alone changed at {_layers(alone)}: there the controls are like pre (median debiased CKA at least "
            f"{min(curves.median('base')[layer - 1] for layer in alone):z.2f}) and tuned is not "
            f"({curves.median('tuned')[least - 1]:z.2f} at layer {least}). A layer also inherits what changed below it."
        )
    if both := [layer for layer in groups.farther if layer not in alone]:
        found.append(
            f"At {_layers(both)}, tuned is less similar to the controls than pre is: tuned changed there, but not as "
            "the controls did."
        )
    return found


def _layers(layers: Sequence[int]) -> str:
    return f"layer{'s' * (len(layers) > 1)} {ranges(layers)}"


# ---- tasks and clusters ----


def _changed(result: MossaResult) -> list[str]:
    curves = result.curves().seen
    value, (low, high) = bootstrap(curves, upper_gap, seed=result.config.seed)
    if not np.isfinite(value):
        return ["Which tasks changed most cannot be told: similarity with the controls is undefined."]
    ends = f"; 95% over tasks {low:z.2f} to {high:z.2f}" if np.isfinite([low, high]).all() else ""
    direction = "nearer to" if value > 0 else "farther from"
    if np.isfinite([low, high]).all() and low <= 0 <= high:
        direction = "neither clearly nearer to nor farther from"
    most = int(np.nanargmax(np.abs(curves.gap)))
    found = [
        f"In the upper half of the layers, tuned is {direction} the controls than pre: by {value:z.2f} in debiased "
        f"CKA (difference of medians over {_many(len(curves.tasks), 'seen task')}{ends}); the difference is "
        f"largest in size at layer {most + 1} ({curves.gap[most]:z.2f})."
    ]
    found += _clusters(clusters_table(result))
    table = tasks_table(result)
    table = table[~table["held_out"] & table["gain"].notna()]
    if len(table) > 1:
        first, last = table.iloc[0], table.iloc[-1]
        found.append(
            f"Of the seen tasks, tuned - pre is greatest for {_gained(first)} and least for {_gained(last)} (mean over "
            "the upper half; a task by itself has no interval)."
        )
    return found


def _gained(row: pd.Series) -> str:
    return f"{short(row['task'])} ({row['gain']:z.2f}, largest at layer {row['at_layer']})"


def _clusters(table: pd.DataFrame) -> list[str]:
    if len(table) < 2:
        return []
    parts = []
    for row in table.iloc[:_NAMED].itertuples():
        between = f"{row.gain_least:z.2f} to {row.gain_most:z.2f}, " if row.tasks > 1 else ""
        many = _many(row.tasks, "task")
        parts.append(f"{short(row.cluster)} {row.gain:z.2f} ({between}{many}, largest at layer {row.at_layer})")
    rest = f", and {len(table) - _NAMED} more" if len(table) > _NAMED else ""
    return [f"By cluster, tuned - pre in the upper half, median and range over tasks: {', '.join(parts)}{rest}."]


def _held_out(result: MossaResult) -> list[str]:
    curves = result.curves().unseen
    if not curves.tasks and result.unmeasured:
        return [
            f"Held out and not measured: {_named(result.unmeasured)}, so nothing is known about tasks that the model "
            "was not tuned on; the notes say why."
        ]
    if not curves.tasks:
        return ["No task was held out, so nothing is known about tasks that the model was not tuned on."]
    value = float(upper_gap(curves))
    if not np.isfinite(value):
        return []
    whole = curves.gain[np.isfinite(curves.gain)]
    between = f" ({whole.min():z.2f} to {whole.max():z.2f})" if len(whole) > 1 else ""
    them = "them" if len(curves.tasks) > 1 else "it"
    return [
        f"Held out: {_named(curves.tasks)}. There tuned - pre in the upper half is {value:z.2f}{between} for the model "
        f"that never saw {them}{_seen_too(result, curves, them)}."
    ]


def _seen_too(result: MossaResult, curves: TaskCurves, them: str) -> str:
    """The value for the model that saw them."""
    values = result.values("all-tasks")[result.curves().held_out]
    if not np.isfinite(values).any():
        return ""
    return f", and {float(upper_gap(replace(curves, tuned=values))):z.2f} for the one that was tuned on {them} too"


# ---- findings ----


_VERDICTS = {
    "holds": ("holds", "hold"),
    "not specific": ("holds on its control too", "hold on their controls too"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
}


def _verdicts(findings: Iterable[Finding]) -> list[str]:
    """Return how many findings hold, and why some are not tested; checks are left out."""
    by_verdict: dict[str, list[str]] = {}
    by_reason: dict[str, list[str]] = {}
    for finding in findings:
        if finding.kind == "check":
            continue
        if finding.verdict == "not tested":
            by_reason.setdefault(finding.why_not, []).append(finding.id)
        else:
            by_verdict.setdefault(finding.verdict, []).append(finding.id)
    sentences = []
    if by_verdict:
        count = sum(map(len, by_verdict.values()))
        parts = join(_with_verb(verdict, by_verdict[verdict]) for verdict in _VERDICTS if verdict in by_verdict)
        sentences.append(
            f"Of {_many(count, 'finding')} that could be tested, {parts}; a finding is undecided if its interval "
            "contains its bound, or if it has no interval."
        )
    if by_reason:
        reasons = "; ".join(f"{join(ids)} ({why})" for why, ids in by_reason.items())
        sentences.append(f"Not tested: {reasons}.")
    return sentences


def _with_verb(verdict: str, ids: Sequence[str]) -> str:
    one, several = _VERDICTS[verdict]
    return f"{len(ids)} {several if len(ids) > 1 else one} ({join(ids)})"


# ---- what a reader must know ----


def notes_of(result: MossaResult) -> list[str]:
    """What a reader needs to know about the numbers, with the run's own notes."""
    curves = result.curves()
    n, d = result.n, result.d
    found = [
        f"Measured at the last token of each test prompt, at the output of every block and after the final norm: n is "
        f"{n:,} prompts for the task that has the fewest, d = {d:,}. pre is the base model, tuned the base with one "
        "adapter for all tasks, a control the base with an adapter for one task.",
        "Debiased CKA is 1 for the same geometry, near 0 for unrelated ones, and may be negative. It does not see a "
        "rotation, a common scale or a shift, nor whether a change matters to the answers; a few far-off prompts can "
        "move it.",
        "Intervals of findings, medians and layer groups are over tasks, by bootstrap: they show how much depends "
        "on which tasks were measured. One run has one tuned model; the intervals include neither the variation "
        "between seeds of its tuning nor the likeness of tasks in a cluster.",
    ]
    if n < 10 * d:
        found.append(
            "n is below 10 d, so biased CKA is too high (independent states with n far below d come near 1): "
            "read the debiased form. The paper's numbers are biased."
        )
    if result.named_groups:
        found.append(_sentence("Layer groups: " + "; ".join(result.groups.notes)))
    found += _references(curves, result.config.trains)
    found += _states_notes(result)
    return [*found, *(_sentence(note) for note in result.notes)]


def _references(curves: TaskCurves, trains: bool) -> list[str]:
    found = []
    if curves.ceiling is None:
        found.append(
            "No task has two controls, so there is no ceiling: it is not known how similar two models of the same task "
            "are, and a CKA below 1 may be as high as it can get." + " Ask for it with --ceilings." * trains
        )
    else:
        known = [task for task, row in zip(curves.tasks, curves.ceiling, strict=True) if np.isfinite(row).any()]
        found.append(
            f"The ceiling is from {_many(len(known), 'task')}, whose controls were trained twice: {_named(known)}."
        )
    if curves.null is None or not np.isfinite(curves.null).any():
        found.append("Controls of other tasks were not compared, so there is no null; ask for it with --nulls.")
    return found


def _states_notes(result: MossaResult) -> list[str]:
    states = result.states()
    lacking = [task for task, state in states.items() if state == "not measured"]
    alike = [task for task in lacking if "control" in result.scores[task]]
    found = []
    if alike:
        found.append(
            f"The answers scored of {_named(alike)} are all the same, or nearly, so nothing shows whether "
            f"{'they were' if len(alike) > 1 else 'it was'} learnt."
        )
    if 0 < len(rest := [task for task in lacking if task not in alike]) < len(states):
        found.append(f"Answers were not measured for {_named(rest)}.")
    return found


def _sentence(note: str) -> str:
    """A note as a sentence."""
    note = note.strip()
    return note if not note or note.endswith((".", "!", "?")) else f"{note[0].upper()}{note[1:]}."


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _named(tasks: Sequence[str]) -> str:
    """The first few of many."""
    if len(tasks) <= _NAMED + 1:
        return join(map(short, tasks))
    return join([*map(short, tasks[:_NAMED]), f"{len(tasks) - _NAMED} others"])
