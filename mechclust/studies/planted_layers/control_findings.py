"""The findings P11 to P17 on what MOSSA reads with their controls, and the check K3.

Their bounds were written before any trio of models was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, check_part, mean_part, share_part
from mechclust.studies.planted_layers.config import PlantedConfig
from mechclust.studies.planted_layers.findings import NEAR, TOO_SMALL
from mechclust.studies.planted_layers.measure import ALL, FEW, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.reading import (
    SeedReadings,
    in_order,
    least_learnt,
    no_gain_below,
    place,
    read_scores,
    reading_chance,
)
from mechclust.studies.planted_layers.trios import ALL_DECAYED, CROSSED, EVERYWHERE, LONGER, SAME

_LEARNT = 0.1
_MOST = Bound(">=", 0.7)  # a share of ten seeds; with ten of ten, Wilson's interval begins at .72
_DEBIASED = "debiased CKA"
_SAME_LAYERS = "if E and its controls were trained in the same layers"

Runs = Sequence[SeedReadings]


def control_findings_of(config: PlantedConfig, runs: Runs) -> list[Finding]:
    """Return P11 to P17, and the check K3; none if there are no trios."""
    if not runs or not runs[0].readings:
        return []
    findings = [
        *_of_same_layers(config, runs),
        _of_few_prompts(config, runs),
        *_of_all_layers(config, runs),
    ]
    too_small = "" if config.test_findings else TOO_SMALL
    not_tested = too_small or _learnt_too_little(runs)
    findings = [replace(finding, not_tested=not_tested) for finding in findings]
    findings.sort(key=lambda finding: int(finding.id[1:]))
    below = Finding(
        id="K3",
        kind="check",
        statement="below the first layer in which both E and its controls were trained, E is not more similar to its "
        "controls than the base is (largest gain by any measure)",
        source="definition",
        parts=(check_part("", no_gain_below(runs), Bound("<=", 1e-9)),),
        not_tested=too_small,
    )
    return [*findings, below]


def _learnt_too_little(runs: Runs) -> str:
    """Return which model learnt too little for a comparison; ``""`` if all learnt enough."""
    least, which = least_learnt(runs)
    if not least < _LEARNT:
        return ""
    return (
        f"a model learnt too little: {which}, {least:.2f} more correct answers than the base or than without the "
        f"skill, where {_LEARNT:g} are required"
    )


# ---- E and its controls trained in the same layers ----


def _of_same_layers(config: PlantedConfig, runs: Runs) -> list[Finding]:
    trios = runs[0].of(SAME)
    margin = config.gain_margin
    return [
        Finding(
            id="P11",
            statement=f"{_SAME_LAYERS}, E's gain over the base begins at the first of them, and the shared layers end "
            "there (errors in layers; debiased CKA, residual stream)",
            source="ours",
            parts=_first_read(config, runs, (SAME,)),
            control=_crossed(runs, _first_read(config, runs, CROSSED)),
            shown="table",
            note=f"a gain is above {margin:g}, as in layer groups; crossing: the layer from which it is above 0, with "
            f"at most one exception; a random layer: {reading_chance(trios, 'onset'):.2f}",
        ),
        Finding(
            id="P12",
            statement=f"{_SAME_LAYERS}, nothing marks the last of them: the gain lasts to the last layer of the model, "
            "and the transition ends a layer or more off (shares of trios; debiased CKA, residual stream)",
            source="ours",
            parts=_last_not_read(config, runs, (SAME,)),
            control=_crossed(runs, _last_not_read(config, runs, CROSSED)),
            shown="table",
        ),
        Finding(
            id="P13",
            statement=f"{_SAME_LAYERS}, the gain in what each block adds to the base's stream finds both ends (errors "
            "in layers; debiased CKA)",
            source="ours",
            parts=_both_ends_read(config, runs, (SAME,)),
            control=_crossed(runs, _both_ends_read(config, runs, CROSSED)),
            shown="table",
            note="that no other layer has a gain holds by construction; a random layer: onset "
            f"{reading_chance(trios, 'onset'):.2f}, end {reading_chance(trios, 'end'):.2f}",
        ),
    ]


def _crossed(runs: Runs, parts: tuple[Part, ...]) -> Control | None:
    """Return the control of these findings: trios in which E and its controls share no trained layer."""
    if not runs[0].of(CROSSED[0]):
        return None
    return Control("E and its controls trained in different layers", parts)


def _first_read(config: PlantedConfig, runs: Runs, columns: Sequence[str]) -> tuple[Part, ...]:
    names = {"first layer with a gain": "onset", "crossing": "crossing", "first layer that is not shared": "shared"}
    return tuple(mean_part(text, _scores(config, runs, columns, name), NEAR) for text, name in names.items())


def _last_not_read(config: PlantedConfig, runs: Runs, columns: Sequence[str]) -> tuple[Part, ...]:
    return (
        share_part("the gain lasts", _scores(config, runs, columns, "top"), _MOST),
        share_part("the transition ends elsewhere", _scores(config, runs, columns, "transition off"), _MOST),
    )


def _both_ends_read(config: PlantedConfig, runs: Runs, columns: Sequence[str]) -> tuple[Part, ...]:
    return (
        mean_part("onset", _scores(config, runs, columns, "onset", SAME_INPUT), NEAR),
        mean_part("end", _scores(config, runs, columns, "end", SAME_INPUT), NEAR),
    )


def _of_few_prompts(config: PlantedConfig, runs: Runs) -> Finding:
    return Finding(
        id="P17",
        statement=f"{_SAME_LAYERS} and there are few prompts, biased CKA shows a gain in fewer of them than debiased "
        "CKA does (share of layers, debiased - biased)",
        source="ours",
        parts=_missed_if_biased(config, runs, FEW),
        control=Control("all prompts", _missed_if_biased(config, runs, ALL)),
        shown="table",
        note="the margin is the same for both, though gains in biased CKA are smaller and those in debiased CKA "
        "noisier",
    )


def _missed_if_biased(config: PlantedConfig, runs: Runs, prompts: str) -> tuple[Part, ...]:
    debiased = _scores(config, runs, (SAME,), "hit", prompts=prompts)
    biased = _scores(config, runs, (SAME,), "hit", measure="CKA", prompts=prompts)
    return (mean_part("", debiased - biased, Bound(">", 0)),)


# ---- all layers trained ----


def _of_all_layers(config: PlantedConfig, runs: Runs) -> list[Finding]:
    shuffled = in_order(runs, np.random.default_rng(0).permutation(config.n_layers))
    hidden, n_shared = _too_similar_to_gain(config, runs)
    return [
        Finding(
            id="P14",
            statement="if all layers were trained with learning rates that fall from block to block, more layers are "
            "called shared than with one rate (difference; debiased CKA)",
            source="ours",
            parts=(mean_part("", _more_shared(config, runs, ALL_DECAYED), Bound(">", 0)),),
            control=Control(
                "E with twice the steps instead", (mean_part("", _more_shared(config, runs, LONGER), Bound(">", 0)),)
            ),
            shown="table",
            note="partly arithmetic: a block with 1/128 of the rate can hardly differ from the base",
        ),
        Finding(
            id="P15",
            statement="if all layers were trained with one rate, layer groups still call a layer or more shared (share "
            "of seeds; debiased CKA)",
            source="ours",
            parts=_any_shared(config, runs),
            control=Control("layers in one random order", _any_shared(config, shuffled)),
            shown="table",
            note=f"in {hidden} of these {n_shared} layers, the base is so similar to the controls that no gain above "
            f"{config.gain_margin:g} could show",
        ),
        Finding(
            id="P16",
            statement="doubling E's steps does not move the end of the shared layers by more than a layer (share of "
            "seeds; debiased CKA)",
            source="ours",
            parts=_hardly_moved(config, runs, LONGER),
            control=Control("learning rates that fall from block to block", _hardly_moved(config, runs, ALL_DECAYED)),
            shown="table",
        ),
    ]


def _more_shared(config: PlantedConfig, runs: Runs, column: str) -> Float[np.ndarray, " seed"]:
    """Return how many more layers are called shared than if all layers were trained with one rate."""
    return _scores(config, runs, (column,), "shared layers") - _scores(config, runs, (EVERYWHERE,), "shared layers")


def _any_shared(config: PlantedConfig, runs: Runs) -> tuple[Part, ...]:
    n_shared = _scores(config, runs, (EVERYWHERE,), "shared layers")
    return (share_part("", np.where(np.isfinite(n_shared), n_shared >= 1, np.nan), _MOST),)


def _hardly_moved(config: PlantedConfig, runs: Runs, column: str) -> tuple[Part, ...]:
    moved = np.abs(_more_shared(config, runs, column))
    return (share_part("", np.where(np.isfinite(moved), moved <= 1, np.nan), _MOST),)


def _too_similar_to_gain(config: PlantedConfig, runs: Runs) -> tuple[int, int]:
    """Return in how many of the layers called shared, with all layers trained, no gain could show, and their number."""
    curve = place(RESIDUAL, _DEBIASED)
    hidden = 0
    total = 0
    for run, n_shared in zip(runs, _scores(config, runs, (EVERYWHERE,), "shared layers"), strict=True):
        if not np.isfinite(n_shared):
            continue
        (reading,) = run.of(EVERYWHERE)
        base = reading.base[curve][: int(n_shared)]
        hidden += int((base >= 1 - config.gain_margin).sum())
        total += len(base)
    return hidden, total


def _scores(
    config: PlantedConfig,
    runs: Runs,
    columns: Sequence[str],
    name: str,
    view: str = RESIDUAL,
    measure: str = _DEBIASED,
    prompts: str = ALL,
) -> Float[np.ndarray, " seed"]:
    """Return a score of one view and measure, mean over the trios of these columns."""
    at = place(view, measure, prompts)
    return np.mean([read_scores(runs, column, name, config.gain_margin, at) for column in columns], axis=0)
