"""The findings P11 to P17 on what MOSSA reads, with their controls, and the check K3.

Bounds were written before any trio was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, check_part, mean_part, share_part
from mechclust.studies.planted_layers.config import PlantedConfig
from mechclust.studies.planted_layers.findings import NEAR, SHUFFLED
from mechclust.studies.planted_layers.measure import ALL, FEW, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.reading import (
    Reading,
    SeedReadings,
    least_learnt,
    no_gain_below,
    place,
    read_scores,
    reading_chance,
)
from mechclust.studies.planted_layers.trios import ALL_DECAYED, EVERYWHERE, LONGER, SAME

_LEARNT = 0.1
_MOST = Bound(">=", 0.7)  # a share of ten seeds; with ten of ten, Wilson's interval begins at .72
_ABOVE = Bound(">", 0)
_DEBIASED = "debiased CKA"
_SAME_LAYERS = "E and its controls were trained in the same layers"

Found = Sequence[SeedReadings]
Scores = Float[np.ndarray, "seed"]
Measure = Callable[[PlantedConfig, Found], tuple[Part, ...]]


def control_findings_of(config: PlantedConfig, found: Found) -> list[Finding]:
    """Return P11 to P17, and the check K3; none if there are no trios."""
    if not found or not found[0].readings:
        return []
    findings = [*_of_same_layers(config, found), *_of_all_layers(config, found)]
    least, which = least_learnt(found)
    if least < _LEARNT:
        why = (
            f"a model learnt too little: {which}, {least:.2f} more correct answers than the base or than without the "
            f"skill, where {_LEARNT:g} are required"
        )
        findings = [replace(finding, not_tested=why) for finding in findings]
    findings = [*sorted(findings, key=lambda finding: finding.id), _no_gain_below(found)]
    if not config.test_findings:
        findings = [replace(finding, not_tested="this size of the study cannot test it") for finding in findings]
    return findings


def _of_same_layers(config: PlantedConfig, found: Found) -> list[Finding]:
    """Return P11 to P13 and P17: one E, controls trained in the same layers."""
    onset, end = (reading_chance(found[0].of(SAME), name) for name in ("onset", "end"))
    return [
        _beside_shuffled(
            config,
            found,
            _gain_begins,
            id="P11",
            statement=f"if {_SAME_LAYERS}, debiased CKA shows a gain of E over the base from the first of them on, and "
            "the shared layers end there (errors in layers; residual stream)",
            note=f"a random layer: {onset:.2f}; a gain is above {config.gain_margin:g}, as in layer groups; crossing: "
            "the layer from which it is above 0, with at most one exception",
        ),
        replace(
            _beside_shuffled(
                config,
                found,
                _last_is_not_marked,
                id="P12",
                statement=f"if {_SAME_LAYERS}, neither the gain nor the end of the transition marks the last of them: "
                "the gain lasts to the last layer of the model, and the transition ends a layer or more off (shares "
                "of trios; debiased CKA, residual stream)",
            ),
            shown="table",
        ),
        _beside_shuffled(
            config,
            found,
            _gain_of_blocks,
            id="P13",
            statement=f"if {_SAME_LAYERS}, the gain in what each block adds to the base's stream finds both ends "
            "(errors in layers; debiased CKA)",
            note=f"a random layer: onset {onset:.2f}, end {end:.2f}; that no other layer has a gain holds by "
            "construction",
        ),
        Finding(
            id="P17",
            statement=f"if {_SAME_LAYERS} and there are fewer prompts than dimensions, biased CKA shows a gain in "
            "fewer of them than debiased CKA does (share of layers, debiased - biased)",
            source="ours",
            parts=_biased_misses(config, found, FEW),
            control=Control("all prompts", _biased_misses(config, found, ALL)),
            shown="table",
            note="the margin is the same for both, though gains in biased CKA are smaller and those in debiased CKA "
            "noisier",
        ),
    ]


def _of_all_layers(config: PlantedConfig, found: Found) -> list[Finding]:
    """Return P14 to P16: E trained in all layers."""
    every, decayed, longer = (
        _scores(config, found, column, "shared layers") for column in (EVERYWHERE, ALL_DECAYED, LONGER)
    )
    shuffled = _scores(config, _shuffle_layers(found), EVERYWHERE, "shared layers")
    close, shared = _within_margin(config, found)
    return [
        Finding(
            id="P14",
            statement="if all layers were trained with learning rates that fall from block to block, more layers are "
            "called shared than with a uniform rate (difference; debiased CKA)",
            source="ours",
            parts=(mean_part("", decayed - every, _ABOVE),),
            control=Control("twice the steps, instead of such rates", (mean_part("", longer - every, _ABOVE),)),
            note="partly arithmetic: a block with 1/128 of the rate can hardly differ from the base",
        ),
        Finding(
            id="P15",
            statement="if all layers were trained at a uniform rate, layer groups still call a layer or more shared "
            "(share of seeds; debiased CKA)",
            source="ours",
            parts=(share_part("", _is_true(every, every >= 1), _MOST),),
            control=Control(SHUFFLED, (share_part("", _is_true(shuffled, shuffled >= 1), _MOST),)),
            shown="table",
            note=f"in {close} of these {shared} layers, the base is so similar to the controls that no gain above "
            f"{config.gain_margin:g} could show",
        ),
        Finding(
            id="P16",
            statement="doubling E's steps does not move the end of the shared layers by more than a layer (share of "
            "seeds; debiased CKA)",
            source="ours",
            parts=(share_part("", _is_true(longer - every, np.abs(longer - every) <= 1), _MOST),),
            control=Control(
                "rates that fall from block to block",
                (share_part("", _is_true(decayed - every, np.abs(decayed - every) <= 1), _MOST),),
            ),
            shown="table",
        ),
    ]


def _no_gain_below(found: Found) -> Finding:
    return Finding(
        id="K3",
        kind="check",
        statement="below the first layer in which both E and its controls were trained, E is not more similar to its "
        "controls than the base is (largest gain by any measure)",
        source="definition",
        parts=(check_part("", no_gain_below(found), Bound("<=", 1e-9)),),
    )


def _beside_shuffled(
    config: PlantedConfig, found: Found, measure: Measure, *, id: str, statement: str, note: str = ""
) -> Finding:
    """Return a finding with the same measure of shuffled layers as its control."""
    control = Control(SHUFFLED, measure(config, _shuffle_layers(found)))
    parts = measure(config, found)
    return Finding(id=id, statement=statement, source="ours", parts=parts, control=control, note=note)


# ---- what is measured ----


def _scores(
    config: PlantedConfig,
    found: Found,
    column: str,
    name: str,
    view: str = RESIDUAL,
    measure: str = _DEBIASED,
    prompts: str = ALL,
) -> Scores:
    return read_scores(found, column, name, config.gain_margin, place(view, measure, prompts))


def _shuffle_layers(found: Found) -> list[SeedReadings]:
    """Return the readings with their layers in one random order, the same for all seeds and trios."""
    order = np.random.default_rng(0).permutation(found[0].readings[0].n_layers)
    return [replace(seed, readings=tuple(_reordered(reading, order) for reading in seed.readings)) for seed in found]


def _reordered(reading: Reading, order: np.ndarray) -> Reading:
    return replace(
        reading,
        base=reading.base[..., order],
        tuned=reading.tuned[..., order],
        spread=reading.spread[..., order],
        dims=reading.dims[..., order],
    )


def _gain_begins(config: PlantedConfig, found: Found) -> tuple[Part, ...]:
    return (
        mean_part("first layer with a gain", _scores(config, found, SAME, "onset"), NEAR),
        mean_part("crossing", _scores(config, found, SAME, "crossing"), NEAR),
        mean_part("first layer that is not shared", _scores(config, found, SAME, "shared"), NEAR),
    )


def _last_is_not_marked(config: PlantedConfig, found: Found) -> tuple[Part, ...]:
    return (
        share_part("the gain lasts", _scores(config, found, SAME, "top"), _MOST),
        share_part("the transition ends elsewhere", _scores(config, found, SAME, "transition off"), _MOST),
    )


def _gain_of_blocks(config: PlantedConfig, found: Found) -> tuple[Part, ...]:
    return tuple(mean_part(end, _scores(config, found, SAME, end, SAME_INPUT), NEAR) for end in ("onset", "end"))


def _biased_misses(config: PlantedConfig, found: Found, prompts: str) -> tuple[Part, ...]:
    debiased = _scores(config, found, SAME, "hit", prompts=prompts)
    biased = _scores(config, found, SAME, "hit", measure="CKA", prompts=prompts)
    return (mean_part("", debiased - biased, _ABOVE),)


def _is_true(values: Scores, condition: np.ndarray) -> Scores:
    """Return 1 if a condition is met and 0 if not; NaN if there is no value."""
    return np.where(np.isfinite(values), condition.astype(float), np.nan)


def _within_margin(config: PlantedConfig, found: Found) -> tuple[int, int]:
    """Of the layers called shared with all layers trained: those in which no gain could show, and their number."""
    at, margin = place(RESIDUAL, _DEBIASED), config.gain_margin
    shared = read_scores(found, EVERYWHERE, "shared layers", margin, at)
    layers = [
        seed.of(EVERYWHERE)[0].base[at][: int(count)]
        for seed, count in zip(found, shared, strict=True)
        if np.isfinite(count)
    ]
    return sum(int((base >= 1 - margin).sum()) for base in layers), sum(map(len, layers))
