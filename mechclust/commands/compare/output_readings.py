"""Readings of how much of the change reaches the output, from patching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mechclust.commands.compare.by_layer import ALL
from mechclust.commands.compare.measurements import Measurements
from mechclust.commands.compare.output_verdict import LEAST_DIVERGENCE
from mechclust.evidence.intervals import value_with_interval
from mechclust.report.reading import Reading
from mechclust.report.text import layers_text, span_text
from probes import ProbeResult

MATTERS = "Layers that matter to the output"
UNEMBEDDING = "the unembedding"
_ENDS = ("", "_low", "_high")
_RULE = (
    "Patching the tuned model's residual stream into the base restores a larger or smaller share of the output there "
    "than one layer before."
)
_CONTROLS = (
    "0: the base patched into itself. 1: the tuned model into itself. Chance: the tuned model's stream of another "
    "prompt of the task."
)


def output_sentence(result: Measurements) -> str:
    """Return which layers matter to the output, as a sentence of the headline, empty without patching."""
    if result.patching is None:
        return ""
    return f" {MATTERS}: {_what_matters(result, result.patching)}."


def output_readings(result: Measurements) -> Iterator[Reading]:
    """Yield the results of patching over all prompts."""
    if result.patching is None:
        return
    yield Reading(MATTERS, _what_matters(result, result.patching), verdict=_RULE)
    if _divergence(result.patching) <= LEAST_DIVERGENCE:
        return
    verdict = result.output_verdicts[ALL]
    if verdict.first is not None and verdict.last is not None:
        yield _end(result, result.patching, "First", verdict.first)
        yield _end(result, result.patching, "Last", verdict.last)
    after = after_last(result.patching)
    if _is_beyond(after, result.config.least_restored):
        value = value_with_interval(after[""], (after["_low"], after["_high"]), ".2f")
        yield Reading(f"Share left to the final norm and {UNEMBEDDING}", value, "after the last block")
    silent = (result.changed_for_a_task | result.changed_only_together) & ~verdict.may_matter
    if silent.any():
        yield Reading("Changed, but do not matter to the output", layers_text(result.ranges_of(silent)))


def _what_matters(result: Measurements, patching: ProbeResult) -> str:
    """Return the layers that matter to the output."""
    divergence = _divergence(patching)
    if divergence <= LEAST_DIVERGENCE:
        how = f"differ by {divergence:.1g} nats" if divergence else "do not differ"
        return f"none, as the outputs {how}"
    layers = result.ranges_of(result.output_verdicts[ALL].matters)
    parts = [layers] if layers else []
    if _is_beyond(after_last(patching), result.config.least_restored):
        parts.append(UNEMBEDDING)
    return " and ".join(parts) or "none known"


def _divergence(patching: ProbeResult) -> float:
    return float(patching.sel("divergence", label=ALL))


def after_last(patching: ProbeResult) -> Mapping[str, float]:
    """Return the share that patching after the last block does not restore, with its ``_low`` and ``_high``."""
    shares = {end: float(patching[f"restored{end}"][-1, 0]) for end in _ENDS}
    return {"": 1 - shares[""], "_low": 1 - shares["_high"], "_high": 1 - shares["_low"]}


def _is_beyond(share: Mapping[str, float], least: float) -> bool:
    return share["_low"] > least or share["_high"] < -least


def _end(result: Measurements, patching: ProbeResult, which: str, places: tuple[int, int, int]) -> Reading:
    """Return the first or last layer that matters, with the effect of patching it."""
    place, *ends = places
    layers = result.layer_numbers
    where = f"layer {layers[place]}"
    if ends[0] != ends[1]:
        where = f"{where} (95%: {layers[ends[0]]} to {layers[ends[1]]})"
    restored, low, high = (float(patching[f"restored{end}"][place, 0]) for end in _ENDS)
    chance = float(patching["chance"][place, 0])
    return Reading(
        f"{which} layer that matters: share restored",
        value_with_interval(restored, (low, high), ".2f"),
        where,
        chance=f"{chance:z.2f}" if np.isfinite(chance) else "",
        verdict=_CONTROLS,
    )


def how_patched(result: Measurements) -> Iterator[str]:
    """Yield the number of patched prompts and the compared outputs, or why patching was not done."""
    if result.patching is None:
        if result.why_no_patching:
            yield f"What of the change reaches the output was not measured: {result.why_no_patching}."
        return
    n, *of_tasks = result.patching["n"].tolist()
    divergence = float(result.patching["divergence"][0])
    yield (
        "Patching: the tuned model's residual stream is written into the base at all positions, layer by layer, on "
        f"{n:,} prompts ({span_text(of_tasks)} of a task). Restored is the share by which this lowers the mean KL "
        "divergence of the base's next-token distribution, after the last prompt token, from the tuned model's, which "
        f"is {divergence:.3g} nats. Layer 0 is the stream before the first block, with positions. A layer matters if "
        "the 95% interval (jackknife over prompts or units) of what it restores beyond the layer before lies above "
        f"{result.config.least_restored:g}, or below its negative."
    )
