"""The findings, in sentences: each number with its value by chance and in models with random weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mechclust.commands.clusters.follow import MOSTLY, Followed
from mechclust.commands.clusters.readings import Asked, LabelReading, LabelReadings, LabelVerdict, read_label
from mechclust.report.chance import CHANCE_LEVEL, least_permutations
from mechclust.report.text import join, ranges
from tasks.text.visible import quoted, short

if TYPE_CHECKING:
    import pandas as pd

_SUBJECT = "The clusters of the hidden states"

# ---- the conclusion ----


def conclusion(
    readings: Mapping[str, LabelReadings], followed: Followed, given: str | None, told: str | None
) -> list[str]:
    """Say in two sentences what the clusters follow, and whether the task is also present.

    Args:
        readings: by label, the task and the further labels that were requested.
        followed: what the clusters agree with.
        given: the label whose means were subtracted from the states.
        told: what the clusters follow, if it determines the task in these prompts, so that it cannot be subtracted.
    """
    task, best = readings["task"], followed.best(list(readings))
    first = _what_is_followed(readings, followed, best)
    if told is None:
        return [first, _what_of_the_task(task, followed, best, given)]
    apart = f"In these prompts {followed.called(told)} determines the task, so the two cannot be separated"
    if task.linear is None:
        return [first, f"{apart}."]
    reads = f"a linear classifier reads the task with accuracy {_number(task.linear, '.2f')}"
    return [first, f"{apart}; {reads}{_no_more(task.linear)}."]


def _what_is_followed(readings: Mapping[str, LabelReadings], followed: Followed, best: str | None) -> str:
    raw = readings["task"].clusters
    if raw is None:
        return f"{_SUBJECT} could not be compared with the task; the notes say why."
    if best is None:
        return _nothing_is_followed(raw, followed)
    name = f"{followed.called(best)}{'' if followed.means[best] >= MOSTLY else ' in part'}{_beside(followed, best)}"
    if best == "task":
        return f"{_follow(name, raw.verdict)} ({_index(raw)})."
    reading = readings[best].clusters if best in readings else None
    if reading is None:
        verdict, compared = _feature_against_random_weights(followed, best)
    else:
        verdict, compared = reading.verdict, "not compared with random weights"
        if reading.untrained_best is not None:
            compared = f"adjusted Rand index at most {reading.value:z.3f}, {_random_weights(reading, '.3f')}"
    agreement = f"{_agreement(followed, best)}; {compared}"
    return f"{_follow(name, verdict)} ({agreement}), {_task_beside(raw, followed, best)}."


def _feature_against_random_weights(followed: Followed, name: str) -> tuple[LabelVerdict, str]:
    """Compare the mean agreement with a surface feature to that of clusters of random weights."""
    random = followed.highest_of_random[name]
    if np.isnan(random):
        return LabelVerdict.NOT_COMPARED, "not compared with random weights"
    verdict = LabelVerdict.NO_MORE if followed.no_more_than_random(name) else LabelVerdict.MORE
    return verdict, f"random weights {random:z.2f} on average"


def _follow(name: str, verdict: LabelVerdict) -> str:
    """What the clusters follow, and whether those of random weights do so as much."""
    if verdict == LabelVerdict.NO_MORE:
        return f"{_SUBJECT} agree with {name} no more than random weights do"
    more = ", more than random weights do" if verdict == LabelVerdict.MORE else ""
    return f"{_SUBJECT} follow {name}{more}"


def _task_beside(raw: LabelReading, followed: Followed, best: str) -> str:
    """How much of the task is in clusters that follow something else."""
    if "task" in followed.as_much_as(best):
        return f"the task too{_no_more(raw)} ({_index(raw)})"
    return f"and the task less{_no_more(raw)} ({_index(raw)})" if raw.above else f"not the task ({_index(raw)})"


def _nothing_is_followed(raw: LabelReading, followed: Followed) -> str:
    others = [name for name in followed.means if name != "task"]
    nor = f" {_highest_of(followed, others)}" if others else ""
    if not raw.above:
        return f"{_SUBJECT} are not shown to follow the task ({_index(raw)}){f', nor{nor}' if nor else ''}."
    do_not = f", and do not follow{nor}" if nor else ""
    if raw.verdict == LabelVerdict.NO_MORE:
        return f"{_SUBJECT} agree with the task no more than random weights do ({_index(raw)}){do_not}."
    return f"{_SUBJECT} agree a little with the task ({_index(raw)}){do_not}."


def _highest_of(followed: Followed, others: Sequence[str]) -> str:
    """The label or feature with which the clusters agree most, out of several."""
    highest, agreement = followed.called(others[0]), _agreement(followed, others[0])
    if len(others) == 1:
        return f"{highest} ({agreement})"
    return f"any of the {len(others)} other labels and surface features looked at (highest: {highest}, {agreement})"


def _what_of_the_task(task: LabelReadings, followed: Followed, best: str | None, given: str | None) -> str:
    parts: list[tuple[LabelReading, str]] = []
    if task.given is not None and given is not None:
        parts.append((task.given, f"given {followed.called(given)}, its index is {_number(task.given, '.3f')}"))
    if task.linear is not None:
        parts.append((task.linear, f"a linear classifier reads it with accuracy {_number(task.linear, '.2f')}"))
    if not parts:
        none = "No other measure of the task"
        return f"{none} was taken." if best == "task" else f"{none} could be taken; the notes say why."
    judged = [f"{text}{_no_more(reading)}" for reading, text in parts]
    if best == "task":
        text = ", and ".join(judged).replace("classifier reads it", "classifier reads the task")
        return f"{text[0].upper()}{text[1:]}."
    shows = [reading.verdict in (LabelVerdict.MORE, LabelVerdict.NOT_COMPARED) for reading, _ in parts]
    if any(shows):
        present = [text for text, shown in zip(judged, shows, strict=True) if shown]
        rest = [text for text, shown in zip(judged, shows, strict=True) if not shown]
        return f"The task is still present: {', and '.join(present)}{', while ' * bool(rest)}{', and '.join(rest)}."
    verdicts = {reading.verdict for reading, _ in parts}
    return f"{_not_shown(verdicts, task.clusters)}: {', and '.join(text for _, text in parts)}."


def _not_shown(verdicts: Collection[LabelVerdict], raw: LabelReading | None) -> str:
    """What it means that no further measure shows the task."""
    if LabelVerdict.NO_MORE in verdicts:
        return "Other measures show the task no more than random weights do, for which the wording is enough"
    if LabelVerdict.TOO_FEW in verdicts:
        return "Whether other measures show the task is open, because there were too few relabellings to tell"
    return "Nor do other measures show the task" if raw is None or not raw.above else "Other measures do not show it"


def _no_more(reading: LabelReading) -> str:
    return f", {LabelVerdict.NO_MORE}" if reading.verdict == LabelVerdict.NO_MORE else ""


def _number(reading: LabelReading, form: str) -> str:
    """The highest value with its controls."""
    bound = "" if reading.above or reading.too_few else "at most "
    parts = [_chance(reading, form), _p(reading)]
    if reading.untrained is not None and reading.untrained_best is not None:
        value, layer = reading.untrained_best
        there, most = f"{reading.untrained:z{form}}", f"{value:z{form}}"
        elsewhere = f", at most {most} (layer {layer})" if reading.above and there != most else ""
        parts.append(f"random weights {there}{elsewhere}")
    elif reading.above:
        parts.append("not compared with random weights")
    return f"{bound}{reading.value:z{form}} at layer {reading.layer} ({'; '.join(filter(None, parts))})"


def _p(reading: LabelReading) -> str:
    if np.isnan(reading.p):
        return "not tested"
    if reading.above:
        return f"p = {reading.p:.2g}"
    return f"p = {reading.p:.2g} for that layer alone" if reading.too_few else "not above chance"


def _index(raw: LabelReading) -> str:
    """The highest index of the task with its controls."""
    place = f"adjusted Rand index at most {raw.value:z.3f}, at layer {raw.layer}"
    text = ", ".join(filter(None, [place, _chance(raw, ".3f")]))
    if np.isnan(raw.p):
        return f"{text}; not tested"
    return f"{text}; above chance at {raw.where}; {_random_weights(raw, '.3f')}" if raw.above else text


def _random_weights(reading: LabelReading, form: str) -> str:
    """The highest value of random weights."""
    if reading.untrained_best is None:
        return "not compared with random weights"
    value, layer = reading.untrained_best
    return f"random weights at most {value:z{form}}, at layer {layer}"


def _chance(reading: LabelReading, form: str) -> str:
    return "" if np.isnan(reading.low) else f"chance {reading.low:z{form}} to {reading.high:z{form}}"


def _agreement(followed: Followed, name: str) -> str:
    """How much the clusters agree with a label or feature, over the layers."""
    table = followed.table[followed.table["name"] == name]
    above = table[table["layer"] > 0]
    table = above if len(above) else table
    top = table.loc[table["ami"].idxmax()]
    over = f"on average over layers {ranges(table['layer'])}, " if len(table) > 1 else ""
    most = f"{top['ami']:z.2f} at layer {top['layer']}"
    mean = f"{followed.means[name]:z.2f} {over}" if over else ""
    return f"adjusted mutual information {mean}{most}; chance 0"


def _beside(followed: Followed, name: str) -> str:
    """What divides the prompts in the same way, and what is followed equally."""
    same = [followed.called(other) for other in followed.same_as(name)]
    much = [followed.called(other) for other in followed.as_much_as(name) if other != "task"]
    return (f" (or {join(same)}, nearly the same in these prompts)" if same else "") + (
        f" and, as much, {join(much)}" if much else ""
    )


# ---- label by label ----


def details(table: pd.DataFrame, label: str, given: str | None, n_untrained: int, asked: Asked) -> list[str]:
    """What each measure says of one label.

    Args:
        table: a row per layer, of this label.
        label: its name.
        given: the label whose means were subtracted from the states, in words.
        n_untrained: number of models with random weights.
        asked: relabellings of the indices, and of the classifier.
    """
    readings = read_label(table, asked)
    raw, within, linear = readings.clusters, readings.given, readings.linear
    if raw is None:
        said = [f"By {quoted(label)}, no layer has an index; the notes say why."]
    else:
        said = _said(table, raw, f"By {quoted(label)}", "hidden states cluster", "adjusted Rand index", ".3f")
        said += _untrained(raw, n_untrained, ".3f") + _too_few(raw, asked[0], "n-permutations")
        said += _below(table, "ari", "null_low", "an index")
        if raw.above and raw.above[0] == 0:
            first = float(table[table["layer"] == 0]["ari"].iloc[0])
            said.append(
                f"Layer 0, the embedding, is one of them (index {first:z.3f}): there the words themselves (with their "
                f"places, where the model adds these first) tell the classes of {quoted(label)} apart, before context "
                "is read."
            )
    if given is not None and within is not None:
        said += _said(table, within, f"By {quoted(label)}, given {given}", "they cluster", "index", ".3f")
        said += _untrained(within, n_untrained, ".3f") + _too_few(within, asked[0], "n-permutations")
    if linear is not None:
        said += _said(table, linear, f"Of {quoted(label)}", "a linear classifier reads the classes", "accuracy", ".2f")
        said += _untrained(linear, n_untrained, ".2f") + _too_few(linear, asked[1], "n-shuffles")
        said += _below(table, "accuracy", "linear_null_low", "an accuracy")
    return said


def _below(table: pd.DataFrame, value: str, low: str, what: str) -> list[str]:
    """Layers below chance."""
    layers = table["layer"][table[value] < table[low]].tolist()
    if not layers:
        return []
    return [
        f"At layer{'s' * (len(layers) > 1)} {ranges(layers)} it is below the chance interval (so are 2.5% of layers by "
        f"chance alone): {what} that low may be the trace of another label that moves the states more, and is spread "
        "evenly over the classes."
    ]


def _said(table: pd.DataFrame, reading: LabelReading, of: str, what: str, measure: str, form: str) -> list[str]:
    n = len(reading.layers)
    looked = f"corrected for {'the layer' if n == 1 else f'the {n} layers'} looked at"
    highest = f"the highest {measure} is {reading.value:z{form}}, at layer {reading.layer}"
    if np.isnan(reading.p):
        return [f"{of}, no layer was tested against chance, and the notes say why; {highest}."]
    highest += f" (chance: {reading.low:z{form}} to {reading.high:z{form}}; p = {reading.p:.2g})"
    if not reading.above:
        shown = what.replace("they cluster", "to cluster").replace("hidden states cluster", "to cluster")
        return [
            f"{of}, no layer is shown {shown if shown != what else 'to be read by a linear classifier'} above chance: "
            f"{highest}, and the smallest p, {looked}, is {reading.least_p:.2g}."
        ]
    return [f"{of}, {what} above chance at {reading.where} (p of at most {CHANCE_LEVEL:g}, {looked}); {highest}."]


def _untrained(reading: LabelReading, n: int, form: str) -> list[str]:
    """What untrained models give at the model's best layer and at their own best layer, with the verdict."""
    if reading.untrained is None or reading.untrained_best is None:
        return ["This was not compared with random weights."] if reading.above else []
    top, layer = reading.untrained_best
    who = "An untrained model of the same shape gives"
    if n > 1:
        who = f"{n} untrained models of the same shape give, on average,"
    there, most = f"{reading.untrained:z{form}}", f"{top:z{form}}"
    elsewhere = f" and at most {most}, at layer {layer}" if most != there else ""
    verdict = f"; the verdict: {reading.verdict}" if reading.above else ""
    return [f"{who} {there} at that layer{elsewhere}{verdict}."]


def _too_few(reading: LabelReading, n: int, option: str) -> list[str]:
    """The note for the case in which no layer could have been above chance, however many prompts there are."""
    if not reading.too_few or np.isnan(reading.p):
        return []
    return [
        f"{n} relabellings are too few to tell for {len(reading.layers)} layers: no p can be below {1 / (1 + n):.2g}; "
        f"give --{option} {max(least_permutations(len(reading.layers)), 1000)}."
    ]


def agreements(followed: Followed) -> str:
    """Everything that the clusters were compared with, in order."""
    layers = sorted(set(followed.table["layer"]))
    above = [layer for layer in layers if layer > 0] or layers
    found = ", ".join(f"{short(name)} {mean:z.2f}" for name, mean in followed.means.items())
    over = f"layers {ranges(above)}" if len(above) > 1 else f"layer {above[0]}"
    return (
        "Agreement of the clusters with labels and surface features (adjusted mutual information, mean over "
        f"{over}; chance 0): {found}."
    )
