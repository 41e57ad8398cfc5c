"""The findings P11 to P17 on MOSSA's readings with their controls, and the check K3.

Their bounds were written before any trio of models was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Finding, check_part
from mechclust.evidence.compared import compared
from mechclust.evidence.random_order import random_order
from mechclust.mossa.layer_groups import LEAST_FOR_GROUPS
from mechclust.studies.planted_layers.config import PlantedConfig
from mechclust.studies.planted_layers.findings import NEAR
from mechclust.studies.planted_layers.measure import ALL, DEBIASED, FEW
from mechclust.studies.planted_layers.reading import (
    SeedReadings,
    curve_place,
    in_order,
    least_learnt,
    no_gain_below,
    read_scores,
    reading_chance,
)
from mechclust.studies.planted_layers.rows import RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.trios import ALL_DECAYED, CROSSED, EVERYWHERE, LONGER, SAME

_LEAST_LEARNT = 0.1  # share of correct answers above both the base and chance
_OF_GROUPS = ("P11", "P12", "P14", "P15", "P16")  # these read layer groups
_MOST_SEEDS = Bound(">=", 0.7)  # a share of ten seeds. With ten of ten, Wilson's interval begins at .72
_SAME_LAYERS = "if E and its controls were trained in the same layers"
_DIFFERENT_LAYERS = "E and its controls trained in different layers"

Runs = Sequence[SeedReadings]
_Seeds = Float[np.ndarray, "seed"]
_Scores = Mapping[str, Float[np.ndarray, "seed prompts view measure"]]

_finding = partial(compared, source="ours", shown="table")


def control_findings_of(config: PlantedConfig, runs: Runs) -> list[Finding]:
    """Return P11 to P17, and the check K3. Without trios, there are none."""
    if not runs or not runs[0].readings:
        return []
    not_tested = _learnt_too_little(runs)
    findings = [
        *_of_same_layers(config, runs),
        *_of_all_layers(config, runs),
        _of_few_prompts(_scores(config, runs, (SAME,))),
    ]
    below = Finding(
        id="K3",
        kind="check",
        statement="below the first layer by which both E and its controls have changed, E is not more similar to its "
        "controls than the base is (largest gain by any measure)",
        source="definition",
        parts=(check_part("", no_gain_below(runs), Bound("<=", 1e-9)),),
    )
    few_tasks = _too_few_tasks(config)
    judged = []
    for finding in findings:
        why_not = not_tested or (few_tasks if finding.id in _OF_GROUPS else "")
        judged.append(replace(finding, not_tested=why_not))
    return [*judged, below]


def _too_few_tasks(config: PlantedConfig) -> str:
    """Return why layer groups cannot be tested, or ``""`` if there are enough tasks."""
    if config.n_measured >= LEAST_FOR_GROUPS:
        return ""
    return f"{config.n_measured} tasks; layer groups need {LEAST_FOR_GROUPS}"


def _learnt_too_little(runs: Runs) -> str:
    """Return why too little was learnt for a comparison, or ``""`` if all learnt enough."""
    gain, model = least_learnt(runs)
    if np.isnan(gain):
        return "the base knows every measured skill"
    if not gain < _LEAST_LEARNT:
        return ""
    return (
        f"a model learnt too little: {model}, {gain:.2f} more correct answers than the base or than without the "
        f"skill, where {_LEAST_LEARNT:g} are required"
    )


def _scores(config: PlantedConfig, runs: Runs, columns: Sequence[str]) -> _Scores:
    """Return every score, mean over these columns."""
    by_column = [read_scores(runs, column, config.gain_margin) for column in columns]
    return {name: np.mean([scores[name] for scores in by_column], axis=0) for name in by_column[0]}


def _one(scores: _Scores, name: str, view: str = RESIDUAL, measure: str = DEBIASED, prompts: str = ALL) -> _Seeds:
    """Return a score of one view and measure."""
    return scores[name][:, *curve_place(view, measure, prompts)]


# ---- E and its controls trained in one span of layers ----


def _of_same_layers(config: PlantedConfig, runs: Runs) -> list[Finding]:
    onset = f"{reading_chance(runs[0].of(SAME), 'onset'):.2f}"
    end = f"{reading_chance(runs[0].of(SAME), 'end'):.2f}"
    same = _scores(config, runs, (SAME,))
    crossed = _scores(config, runs, CROSSED)
    lasts = {"the gain lasts": _MOST_SEEDS, "the transition ends elsewhere": _MOST_SEEDS}
    findings = [
        _finding(
            "P11",
            f"{_SAME_LAYERS}, E's gain over the base begins at the first of them, and the shared layers end there "
            "(errors in layers; debiased CKA, residual stream)",
            {"first layer with a gain": NEAR, "crossing": NEAR, "first layer that is not shared": NEAR},
            _first_read(same),
            _DIFFERENT_LAYERS,
            _first_read(crossed),
            note=f"a gain is above {config.gain_margin:g}, as in layer groups; crossing: the layer from which it is "
            f"above 0, with at most one exception; a random layer: {onset}",
        ),
        _finding(
            "P12",
            f"{_SAME_LAYERS}, nothing marks the last of them: the gain lasts to the last layer of the model, and the "
            "transition ends a layer or more off (shares of trios; debiased CKA, residual stream)",
            lasts,
            _last_not_read(same),
            _DIFFERENT_LAYERS,
            _last_not_read(crossed),
            shares=list(lasts),
        ),
        _finding(
            "P13",
            f"{_SAME_LAYERS}, the gain in what each block adds to the base's stream finds both ends (errors in layers; "
            "debiased CKA)",
            {"onset": NEAR, "end": NEAR},
            _both_ends_read(same),
            _DIFFERENT_LAYERS,
            _both_ends_read(crossed),
            note=f"that no other layer has a gain holds by construction; a random layer: onset {onset}, end {end}",
        ),
    ]
    has_crossed = bool(runs[0].of(CROSSED[0]))
    return findings if has_crossed else [_without_control(finding) for finding in findings]


def _without_control(finding: Finding) -> Finding:
    note = "no control: E and its controls were trained in the same layers only"
    return replace(finding, control=None, note=f"{finding.note}; {note}" if finding.note else note)


def _first_read(scores: _Scores) -> list[_Seeds]:
    return [_one(scores, "onset"), _one(scores, "crossing"), _one(scores, "shared")]


def _last_not_read(scores: _Scores) -> list[_Seeds]:
    return [_one(scores, "top"), _one(scores, "transition off")]


def _both_ends_read(scores: _Scores) -> list[_Seeds]:
    return [_one(scores, "onset", SAME_INPUT), _one(scores, "end", SAME_INPUT)]


def _of_few_prompts(scores: _Scores) -> Finding:
    return _finding(
        "P17",
        f"{_SAME_LAYERS} and there are few prompts, biased CKA shows a gain in fewer of them than debiased CKA does "
        "(share of layers, debiased - biased)",
        {"": Bound(">", 0)},
        [_missed_if_biased(scores, FEW)],
        "all prompts",
        [_missed_if_biased(scores, ALL)],
        note="the margin is the same for both, though gains in biased CKA are smaller and those in debiased CKA "
        "noisier",
    )


def _missed_if_biased(scores: _Scores, prompts: str) -> _Seeds:
    return _one(scores, "hit", prompts=prompts) - _one(scores, "hit", measure="CKA", prompts=prompts)


# ---- all layers trained ----


def _of_all_layers(config: PlantedConfig, runs: Runs) -> list[Finding]:
    shuffled = in_order(runs, random_order(config.n_layers))
    hidden, n_shared = _too_similar_to_gain(config, runs)
    falling = _more_shared(config, runs, ALL_DECAYED)
    longer = _more_shared(config, runs, LONGER)
    lowest_rate = config.layer_decay ** (config.n_layers - 1)
    return [
        _finding(
            "P14",
            "if all layers were trained with learning rates that fall from block to block, more layers are called "
            "shared than with one rate (difference; debiased CKA)",
            {"": Bound(">", 0)},
            [falling],
            "E with twice the steps instead",
            [longer],
            note=f"partly arithmetic: the lowest block has {lowest_rate:.2g} of the rate and can hardly differ from "
            "the base",
        ),
        _finding(
            "P15",
            "if all layers were trained with one rate, layer groups still call a layer or more shared (share of seeds; "
            "debiased CKA)",
            {"": _MOST_SEEDS},
            [_at_least_one(_n_shared(config, runs, EVERYWHERE))],
            "layers in one random order",
            [_at_least_one(_n_shared(config, shuffled, EVERYWHERE))],
            shares=[""],
            note=f"in {hidden} of these {n_shared} layers, the base is so similar to the controls that no gain above "
            f"{config.gain_margin:g} could show",
        ),
        _finding(
            "P16",
            "doubling E's steps does not move the end of the shared layers by more than a layer (share of seeds; "
            "debiased CKA)",
            {"": _MOST_SEEDS},
            [_at_most_one(longer)],
            "learning rates that fall from block to block",
            [_at_most_one(falling)],
            shares=[""],
        ),
    ]


def _n_shared(config: PlantedConfig, runs: Runs, column: str) -> _Seeds:
    """Return how many layers are called shared."""
    return _one(_scores(config, runs, (column,)), "shared layers")


def _more_shared(config: PlantedConfig, runs: Runs, column: str) -> _Seeds:
    """Return how many more layers are called shared than if all layers were trained with one rate."""
    return _n_shared(config, runs, column) - _n_shared(config, runs, EVERYWHERE)


def _at_least_one(layers: _Seeds) -> _Seeds:
    return np.where(np.isfinite(layers), layers >= 1, np.nan)


def _at_most_one(layers: _Seeds) -> _Seeds:
    return np.where(np.isfinite(layers), np.abs(layers) <= 1, np.nan)


def _too_similar_to_gain(config: PlantedConfig, runs: Runs) -> tuple[int, int]:
    """Return how many of the layers called shared could not show a gain, with all layers trained, and their number."""
    hidden = 0
    total = 0
    for run, n_shared in zip(runs, _n_shared(config, runs, EVERYWHERE), strict=True):
        if not np.isfinite(n_shared):
            continue
        (reading,) = run.of(EVERYWHERE)
        base = reading.base[curve_place(RESIDUAL, DEBIASED)][: int(n_shared)]
        hidden += int((base >= 1 - config.gain_margin).sum())
        total += len(base)
    return hidden, total
