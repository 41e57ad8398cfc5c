"""The findings, in sentences: each number with its value by chance and in models with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mechclust.commands.clusters.follow import MOSTLY, Followed
from mechclust.report.chance import LEVEL, corrected, least_permutations
from mechclust.report.text import join, ranges
from tasks.text.visible import quoted, short

if TYPE_CHECKING:
    import pandas as pd


Asked = tuple[int, int]  # relabellings of the indices, and of the classifier


@dataclass(frozen=True)
class Reading:
    """A curve over layers, read against chance.

    Attributes:
        value: the highest value, among the layers above chance if there are any.
        layer: its layer.
        low, high: 95% chance interval there.
        p: p-value of the highest value, for that layer alone.
        surely: the lower end of its own interval, if it has one; otherwise the value minus half the width of chance.
        above: layers above chance, corrected for the number of layers examined.
        layers: all layers examined.
        least_p: the smallest corrected p.
        too_few: whether there are too few relabellings for any layer to be above chance.
        untrained: mean value at that layer for models with random weights; ``None`` if there are none.
        untrained_best: their highest value at any layer, and that layer.
    """

    value: float
    layer: int
    low: float
    high: float
    p: float
    surely: float
    above: Sequence[int]
    layers: Sequence[int]
    least_p: float
    too_few: bool
    untrained: float | None
    untrained_best: tuple[float, int] | None

    @property
    def beats_untrained(self) -> bool:
        """Whether it is above everything that random weights give; true if they were not measured."""
        return self.untrained_best is None or self.surely > self.untrained_best[0]

    @property
    def where(self) -> str:
        """The layers above chance, in words."""
        if len(self.above) == len(self.layers):
            return "every layer" if len(self.layers) > 1 else f"layer {self.layers[0]}"
        return f"layer{'s' * (len(self.above) > 1)} {ranges(self.above)} of {ranges(self.layers)}"


def read(
    table: pd.DataFrame, value: str, null: str, p: str, untrained: str, asked: int, *, surely: str | None = None
) -> Reading | None:
    """A curve of a table with a row per layer, by the names of its columns; ``None`` if it has no value.

    Args:
        table: of one label.
        value: the column to read.
        null: prefix of its chance columns.
        p: column of its p-value for each layer alone; jointly corrected ones are in ``{p}_corrected``, if present.
        untrained: its column for random weights.
        asked: relabellings behind ``p``.
        surely: the column of the lower end of its interval.
    """
    if value not in table or table[value].isna().all():
        return None
    table = table[table[value].notna()].reset_index(drop=True)
    together = f"{p}_corrected" in table
    p_corrected = table[f"{p}_corrected"].to_numpy() if together else corrected(table[p])
    above = p_corrected <= LEVEL
    best = table.loc[(table[above] if above.any() else table)[value].idxmax()]
    low, high = float(best[f"{null}_low"]), float(best[f"{null}_high"])
    fresh = untrained in table and table[untrained].notna().any()
    top = table.loc[table[untrained].idxmax()] if fresh else None
    least = least_permutations(1 if together else len(table))
    return Reading(
        value=float(best[value]),
        layer=int(best["layer"]),
        low=low,
        high=high,
        p=float(best[p]),
        surely=float(best[value] - (high - low) / 2 if surely is None else best[surely]),
        above=[int(layer) for layer in table["layer"][above]],
        layers=[int(layer) for layer in table["layer"]],
        least_p=float(np.nanmin(p_corrected)) if np.isfinite(p_corrected).any() else np.nan,
        too_few=not above.any() and asked < least and table[p].min() <= 1.5 / (1 + asked),
        untrained=float(best[untrained]) if fresh else None,
        untrained_best=None if top is None else (float(top[untrained]), int(top["layer"])),
    )


def read_raw(table: pd.DataFrame, asked: Asked) -> Reading | None:
    """The index of clusters against a label."""
    return read(table, "ari", "null", "p_value", "untrained", asked[0])


def read_given(table: pd.DataFrame, asked: Asked) -> Reading | None:
    """The index after another label's means are subtracted."""
    return read(table, "given_ari", "given_null", "given_p", "untrained_given", asked[0])


def read_linear(table: pd.DataFrame, asked: Asked) -> Reading | None:
    """The accuracy of the linear classifier."""
    return read(table, "accuracy", "linear_null", "linear_p", "untrained_accuracy", asked[1], surely="accuracy_low")


# ---- the conclusion ----


def conclusion(
    table: pd.DataFrame, followed: Followed, given: str | None, labels: Sequence[str], asked: Asked, told: str | None
) -> list[str]:
    """Two sentences: what the clusters follow, and whether the task is also present.

    Args:
        table: a row per layer, for the task.
        followed: what the clusters agree with.
        given: the label whose means were subtracted from the states.
        labels: the task and the further labels that were requested.
        asked: relabellings of the indices, and of the classifier.
        told: what the clusters follow, if it determines the task in these prompts, so that it cannot be subtracted.
    """
    raw, best = read_raw(table, asked), followed.best(labels)
    second = _what_of_the_task(table, raw, followed, best, given, asked)
    if told is not None:
        apart = f"In these prompts {followed.called(told)} determines the task, so the two cannot be separated"
        linear = read_linear(table, asked)
        reads = "" if linear is None else f"; a linear classifier reads the task with accuracy {_number(linear, '.2f')}"
        second = f"{apart}{reads}."
    return [_what_is_followed(raw, followed, best), second]


def _what_is_followed(raw: Reading | None, followed: Followed, best: str | None) -> str:
    subject = "The clusters of the hidden states"
    if raw is None:
        return f"{subject} could not be compared with the task; the notes say why."
    index = f"adjusted Rand index at most {raw.value:z.3f}, at layer {raw.layer}, {_chance(raw)}"
    shared = raw.above and f"above chance at {raw.where}"
    if best is not None:
        much = "" if followed.means[best] >= MOSTLY else " in part"
        follow = f"{subject} follow {followed.called(best)}{much}{_beside(followed, best)}"
        if best == "task":
            here = f", {shared}" if shared else ""
            return f"{follow} ({index}{here})."
        not_task = f"and the task less ({index}; {shared})" if shared else f"not the task ({index})"
        if "task" in followed.as_much_as(best):
            not_task = f"the task too ({index}{f'; {shared}' if shared else ''})"
        return f"{follow} ({_agreement(followed, best)}), {not_task}."
    others = [name for name in followed.means if name != "task"]
    nor = ""
    if others:
        highest, agreement = followed.called(others[0]), _agreement(followed, others[0])
        nor = f" {highest} ({agreement})"
        if len(others) > 1:
            nor = (
                f" any of the {len(others)} other labels and surface features looked at (highest: {highest}, "
                f"{agreement})"
            )
    if shared:
        return (
            f"{subject} agree a little with the task ({index}; {shared}){f', and do not follow{nor}' if nor else ''}."
        )
    open_ = f"{subject} are not shown to follow"
    return f"{open_} the task ({index}), nor{nor}." if nor else f"{open_} the task ({index})."


def _what_of_the_task(
    table: pd.DataFrame, raw: Reading | None, followed: Followed, best: str | None, given: str | None, asked: Asked
) -> str:
    within, linear = read_given(table, asked), read_linear(table, asked)
    parts: list[tuple[Reading, str]] = []
    if within is not None and given is not None:
        parts.append((within, f"given {followed.called(given)}, its index is {_number(within, '.3f')}"))
    if linear is not None:
        parts.append((linear, f"a linear classifier reads it with accuracy {_number(linear, '.2f')}"))
    if best == "task" and raw is not None:
        return _beside_clusters(raw, [text for _, text in parts])
    if not parts:
        return "No other measure of the task could be taken; the notes say why."
    trained = [text for reading, text in parts if reading.above and reading.beats_untrained]
    others = [text for _, text in parts if text not in trained]
    if trained:
        rest = f", while {', and '.join(others)}" if others else ""
        return f"The task is still present: {', and '.join(trained)}{rest}."
    if any(reading.above for reading, _ in parts):
        start = "Other measures show the task no more than random weights do, for which the wording is enough"
    elif any(reading.too_few for reading, _ in parts):
        start = "Whether other measures show the task is open, because there were too few relabellings to tell"
    else:
        start = (
            "Nor do other measures show the task" if raw is None or not raw.above else "Other measures do not show it"
        )
    return f"{start}: {', and '.join(others)}."


def _beside_clusters(raw: Reading, others: Sequence[str]) -> str:
    """What else there is to say if the clusters are the tasks."""
    parts = list(others)
    if raw.untrained_best is not None:
        value, layer = raw.untrained_best
        alike = "" if raw.beats_untrained else ", as high without any training"
        parts.insert(0, f"random weights give an index of at most {value:z.3f} (layer {layer}){alike}")
    text = ", and ".join(parts) or "no other measure was taken"
    text = text.replace("classifier reads it", "classifier reads the task")
    return f"{text[0].upper()}{text[1:]}."


def _number(reading: Reading, form: str) -> str:
    """The highest value with its controls."""
    bound = "" if reading.above else "at most "
    chance = f"chance {reading.low:z{form}} to {reading.high:z{form}}"
    p = f"p = {reading.p:.2g}" if reading.above else "not above chance"
    if reading.too_few:
        bound, p = "", f"p = {reading.p:.2g} for that layer alone"
    fresh = "" if reading.untrained is None else f"; random weights {reading.untrained:z{form}}"
    if reading.untrained_best is not None and reading.above:
        most, layer = (f"{reading.untrained_best[0]:z{form}}", reading.untrained_best[1])
        fresh += f", at most {most} (layer {layer})" if fresh != f"; random weights {most}" else ""
    return f"{bound}{reading.value:z{form}} at layer {reading.layer} ({chance}; {p}{fresh})"


def _chance(reading: Reading) -> str:
    return f"chance {reading.low:z.3f} to {reading.high:z.3f}"


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
    raw = read_raw(table, asked)
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
    if given is not None and (within := read_given(table, asked)) is not None:
        said += _said(table, within, f"By {quoted(label)}, given {given}", "they cluster", "index", ".3f")
        said += _untrained(within, n_untrained, ".3f") + _too_few(within, asked[0], "n-permutations")
    if (linear := read_linear(table, asked)) is not None:
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


def _said(table: pd.DataFrame, reading: Reading, of: str, what: str, measure: str, form: str) -> list[str]:
    n = len(reading.layers)
    looked = f"corrected for {'the layer' if n == 1 else f'the {n} layers'} looked at"
    highest = (
        f"the highest {measure} is {reading.value:z{form}}, at layer {reading.layer} (chance: {reading.low:z{form}} to "
        f"{reading.high:z{form}}; p = {reading.p:.2g})"
    )
    if not reading.above:
        shown = what.replace("they cluster", "to cluster").replace("hidden states cluster", "to cluster")
        return [
            f"{of}, no layer is shown {shown if shown != what else 'to be read by a linear classifier'} above chance: "
            f"{highest}, and the smallest p, {looked}, is {reading.least_p:.2g}."
        ]
    return [f"{of}, {what} above chance at {reading.where} (p of at most {LEVEL:g}, {looked}); {highest}."]


def _untrained(reading: Reading, n: int, form: str) -> list[str]:
    """What untrained models give at the model's best layer, and at their own best layer."""
    if reading.untrained is None or reading.untrained_best is None:
        return []
    top, layer = reading.untrained_best
    who, whose = (
        ("An untrained model of the same shape gives", "its")
        if n == 1
        else (f"{n} untrained models of the same shape give, on average,", "their")
    )
    there, most = f"{reading.untrained:z{form}}", f"{top:z{form}}"
    elsewhere = f" and, at layer {layer}, {most}, {whose} highest" if most != there else ""
    much = ": as high without any training" if reading.p <= LEVEL and top >= reading.value else ""
    return [f"{who} {there} at that layer{elsewhere}{much}."]


def _too_few(reading: Reading, n: int, option: str) -> list[str]:
    """The note for the case in which no layer could have been above chance."""
    if not reading.too_few:
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
