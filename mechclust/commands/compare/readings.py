"""Conclusions of a comparison: one headline, a table of readings, and caveats on the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from mechclust.commands.compare.by_layer import ALL
from mechclust.commands.compare.layer_verdict import LayerVerdict
from mechclust.commands.compare.measurements import Measurements
from mechclust.commands.compare.output_readings import how_patched, output_readings, output_sentence
from mechclust.evidence.intervals import value_with_interval
from mechclust.models.tokenizers import tokenization_in_words
from mechclust.report.reading import Reading
from mechclust.report.text import LAYERS, first_few, layers_text, list_text, ranges_text, span_text
from tasks.text.visible import shortened

if TYPE_CHECKING:
    import pandas as pd

    Tables = Mapping[str, pd.DataFrame]

_CHANGED_LAYERS = ("Layers that changed", "Layers whose blocks changed")
"""Without and with measured blocks."""
_INHERITED = (
    "Later layers are computed from earlier ones and inherit their change: tuning need not have altered them, not even "
    "the one where it is largest."
)
_SAME_INPUT = "Each block was given the base's hidden states, so that it inherits no change from earlier layers."


def headline(result: Measurements, tables: Tables) -> str:
    """Return the conclusion."""
    if result.families:
        return (
            f"The models are of different families ({list_text(result.families)}), so neither was tuned from the "
            "other: 1 - CKA is a difference between two models here, and no effect of tuning."
        )
    if not np.isfinite(result.verdict.change[:, 1:]).any() and not result.changed_together.any():
        unknown = "CKA is undefined at every layer for every task, so it is not known whether a layer changed."
        return f"{unknown}{output_sentence(result)}"
    changed = result.changed_for_a_task | result.changed_only_together
    if changed.any():
        tasks = tables["tasks"]
        out = list(tasks.loc[tasks["stands_out"].eq(True), "task"])
        layers = f"{result.ranges_of(changed)} of {ranges_text(result.layer_numbers)}"
        if result.changed_only_together.any():
            layers = f"{layers} ({result.ranges_of(result.changed_only_together)} for all prompts together only)"
        what = _CHANGED_LAYERS[result.blocks is not None]
        none = "none" if tasks["stands_out"].notna().any() else "unknown"
        stands_out = f"Tasks that stand out: {first_few(out) if out else none}."
        return f"{what}: {layers}.{output_sentence(result)} {stands_out}"
    known = "is known to have changed" if _is_open(result.verdict) else "changed"
    return (
        f"No layer {known}: the 95% interval of 1 - {result.judged_by} reaches down to the tolerance of "
        f"{result.config.tolerance:g}, where there is one.{output_sentence(result)}"
    )


def _is_open(verdict: LayerVerdict) -> bool:
    """Return whether a possible change of a task cannot be judged."""
    return bool(verdict.maybe_changed[:, 1:].any() or np.isnan(verdict.change[:, 1:]).any())


def readings(result: Measurements, tables: Tables) -> list[Reading]:
    """Return the readings, the most important first.

    Args:
        result: the measurements.
        tables: as ``CompareResult.tables``.
    """
    return [
        *_where_change_begins(result),
        *_changed_layers(result),
        *output_readings(result),
        *_residual_stream(result),
        *_extremes(tables["layers"]),
        *_standing_out(result, tables["tasks"]),
        *_what_is_unknown(result, tables["compare"]),
        *_second_opinion(result, tables["compare"]),
    ]


def _where_change_begins(result: Measurements) -> Iterator[Reading]:
    changed = {
        "all prompts together": result.changed_together,
        **dict(zip(result.tasks, result.changed.T, strict=True)),
    }
    names_at: dict[int, list[str]] = {}
    for name, mask in changed.items():
        layer = result.first_layer(mask.filled(False))
        if layer is not None:
            names_at.setdefault(layer, []).append(name)
    change = f"1 - {result.judged_by}"
    rule = f"It is the first layer, by depth, whose 95% interval of {change} lies above {result.config.tolerance:g}."
    for layer in sorted(names_at):
        yield Reading("Change begins", first_few(names_at[layer]), f"layer {layer}", verdict=rule)
    begun = result.changed.filled(False).cumsum(axis=0) > 0
    maybe = np.asarray(result.maybe_changed & ~begun)
    tasks = [task for task, mask in zip(result.tasks, maybe.T, strict=True) if mask.any()]
    if tasks:
        where = layers_text(result.ranges_of(np.asarray(maybe.any(axis=1))))
        yield Reading("Change may begin", first_few(tasks), where, verdict="There is a change, but no interval.")


def _changed_layers(result: Measurements) -> Iterator[Reading]:
    layers = result.ranges_of(result.changed_for_a_task)
    nothing = "none is known to have" if _is_open(result.verdict) else "none"
    what = _CHANGED_LAYERS[result.blocks is not None]
    how = _INHERITED if result.blocks is None else _SAME_INPUT
    yield Reading(f"{what} for at least one task", layers or nothing, verdict=how)
    if result.changed_only_together.any():
        together = result.ranges_of(result.changed_together.filled(False))
        yield Reading(f"{what} for all prompts together", together, verdict=how)


def _residual_stream(result: Measurements) -> Iterator[Reading]:
    """Yield the layers that differ for a task or all, including inherited change, if blocks decide which changed."""
    if result.blocks is None:
        return
    of_residual = np.asarray(result.residual_verdict.changed.filled(False).any(axis=1))
    nothing = "none is known to" if _is_open(result.residual_verdict) else "none"
    layers = result.ranges_of(of_residual) or nothing
    yield Reading("Layers after which the residual stream differs", layers, verdict=_INHERITED)


def _extremes(layers: pd.DataFrame) -> Iterator[Reading]:
    comparable = layers[layers["tasks"] == layers["tasks"].max()]  # means over the same tasks
    for what, place in (("Largest", "idxmax"), ("Least", "idxmin")):
        if len(comparable):
            row = comparable.loc[getattr(comparable["change"], place)()]
            yield Reading(f"{what} mean 1 - CKA over tasks", f"{row.change:z.2f}", f"layer {row.layer}")


def _standing_out(result: Measurements, tasks: pd.DataFrame) -> Iterator[Reading]:
    where = layers_text(result.ranges_of(result.common[0]))
    compared = tasks[tasks["stands_out"].notna()]
    out = compared["stands_out"].astype(bool)
    mean = f"Mean 1 - CKA, and 95% over {result.config.sampled}."
    for row in compared[out].itertuples():
        yield Reading("Stands out", _with_interval(row), where, verdict=mean)
    if not out.any():
        yield Reading(
            "Stands out", "no task" if len(compared) else "unknown: no layer has intervals of two tasks", where
        )
    if len(compared):
        others = list(compared[~out].itertuples())
        yield Reading("Most changed task that does not stand out", _with_interval(others[0]), where, verdict=mean)
        yield Reading("Least changed task", _with_interval(others[-1]), where, verdict=mean)
    not_compared = list(tasks.loc[tasks["stands_out"].isna(), "task"])
    if not_compared:
        yield Reading("Not compared", first_few(not_compared), where, verdict="They have no interval there.")


def _with_interval(row: pd.Series) -> str:
    return f"{shortened(row.task)} {value_with_interval(row.change, (row.low, row.high), '.2f')}"


def _what_is_unknown(result: Measurements, table: pd.DataFrame) -> Iterator[Reading]:
    """Yield layers without CKA or interval, of the residual stream and of the blocks' additions."""
    if result.blocks is None:
        yield from _without_cka_or_interval(table, "changed or stand out")
        return
    is_embedding = table["layer"] == 0
    blocks = table[~is_embedding]
    yield from _without_cka_or_interval(table[is_embedding], "changed or stand out")
    yield from _without_cka_or_interval(blocks, "stand out")
    n = dict(zip(result.blocks.coords["label"], result.blocks["n"].tolist(), strict=True))
    blocks = blocks.assign(
        n=blocks["task"].map(n),
        debiased_cka=blocks["block_cka"],
        low=blocks["block_low"],
        change=1 - blocks["block_cka"],
    )
    yield from _without_cka_or_interval(blocks, "changed", "block ")


def _without_cka_or_interval(table: pd.DataFrame, unknown: str, block: str = "") -> Iterator[Reading]:
    """Yield layers without CKA or interval.

    Args:
        table: by layer and task.
        unknown: the unknown measure of these tasks.
        block: ``"block "`` for the blocks' additions.
    """
    undefined = table["debiased_cka"].isna()
    lacking = {f"No {block}CKA": undefined, f"No {block}interval": table["low"].isna() & ~undefined}
    for what, mask in lacking.items():
        tasks_at: dict[tuple[str, ...], list[pd.DataFrame]] = {}
        for _, part in table[mask].groupby("layer"):
            tasks_at.setdefault(tuple(part["task"]), []).append(part)
        for tasks, parts in tasks_at.items():
            rows = list(chain.from_iterable(part.itertuples() for part in parts))
            change = [row.change for row in rows if np.isfinite(row.change)]
            at_most = f" (1 - {block}CKA at most {max(change):z.2f})" if change else ""
            yield Reading(
                what,
                f"{first_few(tasks)}{at_most}",
                layers_text(ranges_text(part["layer"].iloc[0] for part in parts)),
                verdict=f"{span_text([row.n for row in rows])} prompts: too few, or too alike, as at the embedding of "
                f"a last token that all share. It is not known whether they {unknown}.",
            )


def _second_opinion(result: Measurements, table: pd.DataFrame) -> Iterator[Reading]:
    """Yield where CKA without the largest principal component differs most from debiased CKA."""
    if result.without_top_pc is None:
        return
    difference = (table["without_top_pc"] - table["debiased_cka"]).abs()
    if difference.notna().any():
        row = table.loc[difference.idxmax()]
        yield Reading(
            "Second opinion without_top_pc",
            f"{row['without_top_pc']:z.2f}, debiased_cka {row['debiased_cka']:z.2f}",
            f"layer {row['layer']}, {shortened(row['task'])}",
            verdict="Here it differs most. Measure: debiased CKA without the largest principal component of each side.",
        )


def caveats(result: Measurements, table: pd.DataFrame) -> list[str]:
    """Return the caveats on the numbers.

    Args:
        result: the measurements.
        table: by layer and task, as ``CompareResult.to_dataframe``.
    """
    counts = table.drop_duplicates("task").set_index("task")["n"]
    widths = " and ".join(f"{span_text(table[f'd_{model}'])} ({model})" for model in ("tuned", "base"))
    notes = [
        f"n = {counts[ALL]} prompts of {len(result.tasks)} tasks ({span_text(counts.drop(ALL))} each), hidden "
        f"state at {result.config.states}, d = {widths}. {LAYERS} In decoders, the embedding is without position."
    ]
    small = counts[counts < 10 * table[["d_tuned", "d_base"]].to_numpy().max()]
    if len(small):
        which = "every label" if len(small) == len(counts) else list_text(map(shortened, small.index))
        notes.append(f"n is below 10 d for {which}: there the biased form, column cka, is too high; use debiased_cka.")
    sampled = result.config.sampled
    if result.tokenization:
        notes.append(tokenization_in_words(result.tokenization))
    return [
        *notes,
        *result.notes,
        "CKA compares geometry among the prompts: it does not see a rotation, a common scale or a shift of all hidden "
        "states, nor whether a change matters to the output; and a few outlying prompts can change it (Davari et al. "
        "2022, arXiv 2210.16156).",
        *_how_judged(result),
        *how_patched(result),
        "Debiased CKA is 1 for the same geometry, near 0 for unrelated ones, and may be negative. Intervals: 95% over "
        f"{sampled}, from half-samples{_on_chance(result)}.",
    ]


def _on_chance(result: Measurements) -> str:
    config = result.config
    return f"; chance: 97.5% of CKA for {config.sampled} paired at random" if config.n_permutations else ""


def _how_judged(result: Measurements) -> Iterator[str]:
    """Yield how it is decided which layers changed, and the limits of this."""
    if result.blocks is not None:
        n, *of_tasks = result.blocks["n"].tolist()
        yield (
            f"Which layers changed is decided on {n:,} prompts ({span_text(of_tasks)} of a task), by what each block "
            "of both models adds to the base's hidden states; layer 0 by the embedding. Changed position embeddings "
            "alone, and changes after the last block, are seen by patching alone."
        )
    elif result.why_no_blocks:
        yield (
            "Which layers changed is decided by the residual stream, in which later layers inherit change. What each "
            f"block adds to the same input was not compared: {result.why_no_blocks}."
        )


def _judged_change(result: Measurements) -> str:
    if result.blocks is None:
        return "its change, 1 - debiased CKA,"
    return "1 - debiased CKA between what its block adds in both models, given the base's hidden states,"


def naming_rule(result: Measurements) -> str:
    """Return how it is decided which layers changed and which tasks stand out."""
    common = layers_text(result.ranges_of(result.common[0]))
    return (
        f"The rule: a layer changed for a task if the 95% interval of {_judged_change(result)} lies above "
        f"{result.config.tolerance:g}; without an interval this is left open. Tasks stand out at a layer if the "
        "changes of those with an interval fall into two groups (Jenks' natural break of log change) such that no "
        "interval of the upper group overlaps one of the lower, and the smallest change of the upper group is at least "
        f"{result.config.factor:g} times the largest of the lower. Over all layers: the same with means of changes and "
        f"of interval ends, over the layers at which every compared task has an interval ({common}), since layers "
        "change by different amounts. The rule compares these tasks with each other: if tuning on some tasks changed "
        "all of them equally, none stands out."
    )
