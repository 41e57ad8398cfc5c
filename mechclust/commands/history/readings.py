"""Conclusions about a series of checkpoints: one headline, a table of readings, and caveats on the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Shaped

from mechclust.commands.history.changes import mean_change, mean_over_layers, measured_ends
from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.curves import FROM_FIRST, OPEN_NOTES, SINGLE, TITLES, Curve
from mechclust.commands.history.integrity import listed_names
from mechclust.commands.history.measurements import Measurements
from mechclust.evidence.intervals import value_with_interval
from mechclust.evidence.p_values import least_permutations_for_p_values
from mechclust.report.reading import Reading
from mechclust.report.text import counted, layers_text, ranges_text
from tasks.text.visible import quoted

if TYPE_CHECKING:
    import pandas as pd

MAX_FINDINGS = 8  # findings that are readings. Others are caveats
MAX_CROSSINGS = 4  # checkpoints of a measure at which layers cross chance, a reading each
_RANDOM_WEIGHTS = (
    "Each of its biases and normalisation weights holds a single number, as before the first step. Structure there "
    "comes from the prompts or the architecture, and was not learnt."
)
_UNKNOWN_WEIGHTS = "Structure there may have been learnt, or come from the prompts or the architecture."
_SHORT_TITLES = {
    "clusters": "clusters against tasks",
    "heads": "variance between tasks in heads",
    "topics": "attention within topics",
}


def headline(result: Measurements) -> str:
    """Return the conclusion."""
    n = len(result.series)
    wrong = len(result.flagged)
    integrity = f"All {n} checkpoints pass integrity checks."
    if wrong:
        integrity = f"{wrong} of {n} checkpoints {'fails' if wrong == 1 else 'fail'} integrity checks."
    if result.tested:
        curve = next(iter(result.tested.values()))
        return f"{integrity} {_crossing_in_short(result, curve)}"
    return " ".join([integrity, *(str(_means(result, curve)) for curve in _untested(result)[:1])])


def _crossing_in_short(result: Measurements, curve: Curve) -> str:
    title = _SHORT_TITLES[curve.name]
    if not curve.measured:
        return f"Undefined at every checkpoint: {title}."
    if not np.isfinite(curve.p[result.right]).any():
        return f"Not tested against chance, for want of relabellings: {title}."
    table = result.crossings_of(curve)
    places = sorted(result.names.index(name) for name in table["crosses_at"].dropna())
    where = f"{capitalised(curve.place)}s crossing chance"
    if not places:
        return f"{where}: none of {len(table)} ({title})."
    when = _at(result, result.names[places[(len(places) - 1) // 2]])
    if len(places) > 1:
        when = f"half by {when.partition(' ')[2]}"
    return f"{where}: {len(places)} of {len(table)} ({title}), {when}."


def readings(result: Measurements) -> list[Reading]:
    """Return the readings, the most important first."""
    rows = list(_integrity(result))
    for curve in result.tested.values():
        if curve.measured:
            rows += _crossings(result, curve)
            rows += _change(result, curve)
    if result.tested:
        value = "random weights" if result.starts_random else "not known to be random"
        meaning = _RANDOM_WEIGHTS if result.starts_random else _UNKNOWN_WEIGHTS
        rows.append(Reading("First checkpoint", value, quoted(result.first), verdict=meaning))
    rows += [_means(result, curve) for curve in _untested(result)]
    return [*rows, *_undefined(result)]


def _integrity(result: Measurements) -> Iterator[Reading]:
    for finding in result.findings[:MAX_FINDINGS]:
        names = listed_names([result.names[i] for i in finding.checkpoints])
        yield Reading("Integrity", "left out of all conclusions", names, verdict=finding.text)
    if not result.findings:
        yield Reading(
            "Integrity",
            "no fault found",
            f"{len(result.series)} checkpoints",
            verdict="They have different weights and one configuration.",
        )


def _crossings(result: Measurements, curve: Curve) -> Iterator[Reading]:
    """Yield when layers cross chance, by checkpoint, and which never do."""
    what = f"Crosses chance: {_SHORT_TITLES[curve.name]}"
    table = result.crossings_of(curve)
    at = [name for name in result.names if name in set(table["crosses_at"])]
    for name in at[:MAX_CROSSINGS]:
        rows = table[table["crosses_at"] == name]
        yield Reading(
            what,
            f"{_at(result, name)}, {_span_with_ends(result, curve, rows)}",
            _layers(rows, curve),
            chance=f"at most {rows['null_high'].max():z.2f}",
            random_weights=_with_random_weights(result, curve, rows),
            verdict=_notes(rows, curve),
        )
    later = table[table["crosses_at"].isin(at[MAX_CROSSINGS:])]
    if len(later):
        yield Reading(what, f"at {counted(len(at) - MAX_CROSSINGS, 'later checkpoint')}", _layers(later, curve))
    yield from _without_crossing(table[table["crosses_at"].isna()], curve, what)


def _without_crossing(table: pd.DataFrame, curve: Curve, what: str) -> Iterator[Reading]:
    """Yield the layers that never cross chance, and those of which it is not known."""
    for note in OPEN_NOTES:
        rows = table[table["note"] == note]
        if len(rows):
            yield Reading(what, "unknown", _layers(rows, curve), verdict=f"{capitalised(note)}.")
    never = table[~table["note"].isin(OPEN_NOTES)]
    if len(never):
        yield Reading(what, "never", _layers(never, curve), verdict=_notes(never[never["note"] == SINGLE], curve))


def _change(result: Measurements, curve: Curve) -> Iterator[Reading]:
    """Yield the mean change from the first to the last checkpoint without findings."""
    ends = measured_ends(curve, result.right)
    if len(ends) < 2:
        return
    first, last = ends
    change, interval = mean_change(curve, first, last)
    verdict = ""
    if interval[0] > 0 or interval[1] < 0:
        verdict = "It rose." if change > 0 else "It fell."
    checkpoints = f"from {quoted(result.names[first])} to {quoted(result.names[last])}"
    yield Reading(
        f"Change: {_SHORT_TITLES[curve.name]}",
        f"{value_with_interval(change, interval, '.2f')} {checkpoints}",
        f"mean over {curve.place}s",
        verdict=verdict,
    )


def _span_with_ends(result: Measurements, curve: Curve, rows: pd.DataFrame) -> str:
    """Return the values of layers at a checkpoint, with the outermost ends of their intervals in brackets."""
    at = result.names.index(rows["crosses_at"].iloc[0])
    low = curve.value_low[at, rows.index]
    high = curve.value_high[at, rows.index]
    span = _span(rows["value"])
    return span if np.isnan(low).any() else f"{span} ({low.min():z.2f} to {high.max():z.2f})"


def _at(result: Measurements, name: str) -> str:
    """Return when a layer crossed: at a checkpoint, or by the first one if it was above chance there."""
    if name != result.first:
        return f"at {quoted(name)}"
    if result.starts_random:
        return f"at {quoted(name)}, with random weights"
    return f"by {quoted(name)}"


def _layers(rows: pd.DataFrame, curve: Curve) -> str:
    return layers_text(ranges_text(sorted(rows["layer"])), curve.place)


def _notes(rows: pd.DataFrame, curve: Curve) -> str:
    """Return the notes of crossings in sentences, each with its layers, except ones that ``_at`` states."""
    sentences = []
    for note, noted in rows.groupby("note"):
        beyond = str(note).removeprefix(FROM_FIRST).removeprefix("; ")
        if beyond:
            sentences.append(f"{capitalised(beyond)}: {_layers(noted, curve)}.")
    return " ".join(sentences)


def _with_random_weights(result: Measurements, curve: Curve, rows: pd.DataFrame) -> str:
    """Return the values at the first checkpoint, if it has random weights and differs from the crossing."""
    if not result.starts_random or result.first in set(rows["crosses_at"]):
        return ""
    return _span(curve.value[result.names.index(result.first), rows.index])


def _span(values: Shaped[np.ndarray, "n"] | pd.Series) -> str:
    low = f"{np.min(values):z.2f}"
    high = f"{np.max(values):z.2f}"
    return low if low == high else f"{low} to {high}"


def _untested(result: Measurements) -> list[Curve]:
    """Return the curves without crossings that have a reading."""
    without_reading = (*result.tested, "cka_first", "cka_previous")
    curves = [curve for name, curve in result.summarised.items() if name not in without_reading]
    return [curve for curve in curves if np.isfinite(curve.value[result.right]).any()]


def _means(result: Measurements, curve: Curve) -> Reading:
    """Return means over layers at the first and the last checkpoint."""
    means = []
    for i in measured_ends(curve, result.right):
        means.append(f"{value_with_interval(*mean_over_layers(curve, i), '.2f')} at {quoted(result.names[i])}")
    return Reading(capitalised(curve.title), ", ".join(means), f"mean over {curve.place}s")


def _undefined(result: Measurements) -> Iterator[Reading]:
    for name, curve in result.curves.items():
        if curve.measured:
            continue
        notes: list[str] = []
        of_curve = [each for place, each in result.results.items() if place.startswith(f"{name}/")]
        if any("debiased_cka" in each and bool(each["debiased_cka"].isfinite().any()) for each in of_curve):
            verdict = "The checkpoints to compare with have findings."
            yield Reading(capitalised(curve.title), "not given", verdict=verdict)
            continue
        for probe_result in of_curve:
            notes += probe_result.notes
        if notes or name in result.tested:
            reasons = " ".join(f"{capitalised(note)}." for note in dict.fromkeys(notes))
            yield Reading(capitalised(curve.title), "undefined at every checkpoint", verdict=reasons)


def caveats(result: Measurements) -> list[str]:
    """Return the caveats on the numbers."""
    notes = [*result.input_notes, *(finding.text for finding in result.findings[MAX_FINDINGS:])]
    if result.flagged:
        notes.append(
            "Checkpoints with findings are drawn hollow and left out of all conclusions, that is, of the crossings of "
            "chance and their correction for the number of tests; no other checkpoint's CKA with the first or the one "
            "before is given if that is one of them."
        )
    if any(checkpoint.step is None for checkpoint in result.series):
        notes.append(
            f"A name of a checkpoint has no number; the series is measured in this order: {', '.join(result.names)}."
        )
    if result.tested:
        notes.append(
            "A layer crosses chance at the first checkpoint at which it is above chance and stays so at the next; "
            "p-values are corrected for all layers and checkpoints (Benjamini & Hochberg: of the places above chance, "
            "at most 5% are so by chance, on average, so the earliest crossing may be too early)."
        )
    if any(np.isfinite(curve.value_low).any() for name, curve in result.curves.items() if name in TITLES):
        notes.append(_on_intervals(result.config))
    notes += _on_others_without_units(result)
    for name in result.config.others:
        if not any(key.startswith(f"{name}_") for key in result.curves):
            notes.append(f"{name} has no measure with one number per layer or head; all it found is in results.")
    return [*notes, *_too_few_permutations(result)]


def _on_intervals(config: HistoryConfig) -> str:
    documents = (
        " Those of topics are over documents, wide enough for the best head." if "topics" in config.measured else ""
    )
    return (
        f"In brackets after a value: its 95% interval over {config.sampled}, from {config.n_resamples} random halves "
        f"that are the same at every checkpoint. After several layers' values: the outermost ends.{documents}"
    )


def _on_others_without_units(result: Measurements) -> Iterator[str]:
    """Yield the other probes with chance or intervals, if these are not of the units of the series' own."""
    if result.config.unit_label is None:
        return
    for name in result.config.others:
        curves = [curve for key, curve in result.curves.items() if key.startswith(f"{name}_")]
        if any(np.isfinite([curve.high, curve.value_low]).any() for curve in curves):
            yield (
                f"{name} has its default settings, without units: its chance and intervals take prompts as "
                "independent, and may be too narrow."
            )


def _too_few_permutations(result: Measurements) -> Iterator[str]:
    n = result.config.n_permutations
    n_tests = max((int(np.isfinite(curve.p[result.right]).sum()) for curve in result.tested.values()), default=0)
    least = least_permutations_for_p_values(n_tests)
    if n < least:
        yield (
            f"With {n} relabellings, no single one of the {n_tests} tests (layers times checkpoints) can be "
            f"significant unless others are too; --n-permutations {least} is enough."
        )


def capitalised(text: str) -> str:
    """Return the text with a capital at its beginning.

    Example:
        >>> capitalised("CKA of layer 0")
        'CKA of layer 0'
    """
    return text[:1].upper() + text[1:]
