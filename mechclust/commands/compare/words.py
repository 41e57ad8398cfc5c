"""What ``mechclust compare`` found, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mechclust.commands.compare.result import ALL, CompareResult, ranges

if TYPE_CHECKING:
    import pandas as pd


def sentences(result: CompareResult) -> list[str]:
    """Which layers changed, for which tasks; a few sentences, the most important first."""
    if not result.diagonal:
        return _nearest(result)
    c, changed = result.config, result.changed()
    if not changed.any():
        lines = [
            "No layer changed: at every layer and for every task, the 95% interval of 1 - CKA reaches down to the "
            f"tolerance of {c.tolerance:g}."
        ]
    else:
        lines = [_layers(result), _tasks(result), *_where(result)]
    return lines + _controls(result)


def _layers(result: CompareResult) -> str:
    table, changed = result.by_layer(), result.changed()
    layers = ranges(layer for layer, found in zip(result.layers, changed, strict=True) if found.any())
    first, last = table.iloc[0], table.iloc[-1]
    most = f"most at layer {first.layer} (1 - CKA {first.change:.2f} on average over tasks)"
    least = f", least at layer {last.layer} ({last.change:.2f})" if len(table) > 1 else ""
    return f"Layers that changed for at least one task: {layers} of {ranges(result.layers)}; {most}{least}."


def _tasks(result: CompareResult) -> str:
    table = result.summary()
    out, rest = table[table["stands_out"]], table[~table["stands_out"] & table["change"].notna()]
    if len(out):
        names = join(f"{r.task} ({r.change:.2f}, {r.low:.2f} to {r.high:.2f})" for r in out.itertuples())
        return (
            f"Over all layers, {names} stand{'s' * (len(out) == 1)} out (mean 1 - CKA and 95% over prompts), against "
            f"at most {rest['change'].max():.2f} ({rest.iloc[0]['task']}) for the other{'s' * (len(rest) > 1)}."
        )
    if not len(rest):
        return "No task can be compared with another: no layer has a CKA for every task."
    first, last = rest.iloc[0], rest.iloc[-1]
    return (
        f"Over all layers, no task stands out: mean 1 - CKA is {last.change:.2f} ({last.task}) to {first.change:.2f} "
        f"({first.task})."
    )


def _where(result: CompareResult) -> list[str]:
    """Tasks that stand out at the same layers share a sentence part."""
    groups: dict[str, list[str]] = {}
    for row in result.summary().itertuples():
        if row.stands_out_layers:
            groups.setdefault(row.stands_out_layers, []).append(row.task)
    if not groups:
        return ["At no layer does a task stand out from the others."]
    parts = (f"{join(tasks)} at layer{'s' * (not at.isdigit())} {at}" for at, tasks in groups.items())
    return [f"Layer by layer, these stand out: {'; '.join(parts)}."]


def _nearest(result: CompareResult) -> list[str]:
    table = result.table()
    table = table[(table["task"] == ALL) & table["debiased_cka"].notna()]
    pairs = ", ".join(f"{r.layer} like {r.base_layer} ({r.debiased_cka:.2f})" for r in table.itertuples())
    return [
        f"The models do not have the same layers ({len(result.cka.coords['site'])} in the tuned one and "
        f"{len(result.cka.coords['other_site'])} in the base one, the embedding included), so every layer was compared "
        "with every other, and which layers changed is left to the reader.",
        f"Over all prompts, tuned layers are most like these base layers (CKA): {pairs or 'none'}.",
    ]


def _controls(result: CompareResult) -> list[str]:
    if not result.controls:
        return []
    gain = result.control_table().groupby("layer")["gain"].median().dropna()
    if not len(gain):
        return []
    n = len(result.controls)
    return [
        f"Against {n} control{'s' * (n != 1)}, the tuned model is more like a model of the task alone than the base "
        f"is, in the median by {gain.max():.2f} at layer {gain.idxmax()} (most) and {gain.min():.2f} at layer "
        f"{gain.idxmin()} (least)."
    ]


def rule(result: CompareResult) -> str:
    """How layers and tasks are named, for the report."""
    c = result.config
    return (
        "The rule: a layer changed for a task where the 95% interval of its change, 1 - debiased CKA, lies above "
        f"{c.tolerance:g}. Tasks stand out at a layer where the tasks' changes fall in two groups (Jenks' natural "
        "break of log change) such that no interval of the upper group meets one of the lower, and the least of the "
        f"upper group is at least {c.factor:g} times the most of the lower. Over all layers: the same with means of "
        "changes and of interval ends. It compares these tasks with each other: where tuning on some tasks changed all "
        "of them alike, none stands out."
    )


def notes(result: CompareResult) -> list[str]:
    """What a reader must know of the numbers."""
    c, table = result.config, result.table()
    counts = table.drop_duplicates("task").set_index("task")["n"]
    per_task = _span(sorted(counts.drop(ALL)))
    d = " and ".join(f"{_span(sorted(table[f'd_{m}']))} ({m})" for m in ("tuned", "base"))
    states = "the last prompt token" if c.position == "last" else "the mean over prompt tokens"
    found = [
        f"n = {counts[ALL]} prompts of {len(result.tasks)} tasks ({per_task} each), hidden state at {states}, "
        f"d = {d}; layer 0 is the token embedding."
    ]
    largest = int(table[["d_tuned", "d_base"]].to_numpy().max())
    if (small := counts[counts < 10 * largest]).size:
        which = "every label" if len(small) == len(counts) else join(small.index)
        found.append(f"n is below 10 d for {which}: there the biased form, column cka, is too high; read debiased_cka.")
    none = table[table["debiased_cka"].isna()]
    for layer, part in none.groupby("layer"):
        which = "any task" if len(part) == len(counts) else join(part["task"])
        found.append(
            f"Layer {layer} has no CKA for {which}: the prompts' hidden states do not differ there, as with the "
            "embedding of a last token that all prompts share."
        )
    if result.diagonal and table["debiased_cka"].notna().mul(table["low"].isna()).any():
        found.append("Where there is a CKA and no interval, half of the prompts are too few for one; give more.")
    found += [
        *result.notes,
        "CKA compares geometry among the prompts: it does not see a rotation, a common scale or a shift of all hidden "
        "states, nor whether a change matters to the output; and a few far-off prompts can move it (Davari et al. "
        f"2022, arXiv 2210.16156).{_second_opinion(table)}",
        "Debiased CKA is 1 for the same geometry, near 0 for unrelated ones, and may be negative.",
    ]
    if result.diagonal:
        found[-1] += (
            " Intervals: 95% over prompts, from half-samples; chance: 97.5% of CKA for prompts paired at random."
        )
    return found


def _second_opinion(table: pd.DataFrame) -> str:
    if "rbf_cka" not in table or not (both := table[table["rbf_cka"].notna() & table["debiased_cka"].notna()]).size:
        return ""
    row = both.loc[(both["rbf_cka"] - both["debiased_cka"]).abs().idxmax()]
    return (
        " A second opinion is rbf_cka, with Gaussian kernels (debiased); the two differ most at layer "
        f"{row['layer']} for {row['task']}: {row['debiased_cka']:.2f} and {row['rbf_cka']:.2f}."
    )


def join(names: Iterable[str]) -> str:
    """Such as ``"a, b and c"``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
