"""The findings P1 to P8, P10, P18 and P19 on planted layers with their controls, and the checks P9, K1 and K2.

Their bounds were written before the confirmatory seeds were run: 10 to 19 for the first, on which P18 and P19 were
noticed, and 30 to 39 for these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Int

from mechclust.evidence import Bound, Finding, check_part
from mechclust.evidence.compared import compared
from mechclust.evidence.parts import paired_share_part
from mechclust.evidence.random_order import random_order
from mechclust.studies.planted_layers.config import (
    ALL,
    NONE,
    ORDER,
    RATES,
    ROUNDED,
    TWICE_STEPS,
    PlantedConfig,
    main_column,
)
from mechclust.studies.planted_layers.measure import ALL as ALL_PROMPTS
from mechclust.studies.planted_layers.measure import DEBIASED, FEW
from mechclust.studies.planted_layers.results import RISE, ROWS, BySeed, Row, SeedResults, chance_of, scores_of
from mechclust.studies.planted_layers.rows import CONTRIBUTION, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.score import score_curves

NEAR = Bound("<=", 0.5)  # error in layers
_OFTEN = Bound(">=", 0.8)
_SEPARATES = Bound(">=", 0.9)  # an area under the ROC curve
_LARGER = Bound(">", 0)
_SMALL_SHARE = 0.3  # Wilson's interval of ten models without a called layer is 0 to .28: no lower bound could hold
_BY_CONSTRUCTION = "layers below planted noise are identical by construction, and the noise is far above its null"
_NOT_TUNED = "a given model is not tuned"
_CANNOT_WRITE = "the hooks of this model cannot write"
_NOT_ROUNDED = "its weights are bfloat16 already"
_STREAM = Row(RESIDUAL, DEBIASED)
_DISTANCE = Row(RESIDUAL, "distance")
_ADDED = Row(CONTRIBUTION, DEBIASED)
_ADDED_TO_SAME = Row(SAME_INPUT, DEBIASED)
_DISTANCE_ADDED_TO_SAME = Row(SAME_INPUT, "distance")
_STREAM_RISE = Row(RISE, DEBIASED)

Runs = Sequence[SeedResults]

_finding = partial(compared, source="ours")


@dataclass(frozen=True)
class _Pairs:
    """Pairs of models whose curves are scored against the layers that were planted in the main column.

    Attributes:
        runs: the seeds.
        planted: the main column.
        measured_on: the column whose curves are scored: the main one or, as the control, one without planted layers.
    """

    runs: Runs
    planted: str
    measured_on: str

    def scores(self, name: str, row: Row = _STREAM, prompts: str = ALL_PROMPTS) -> BySeed:
        """Return a score of ``score.score``, mean over the planted spans of layers.

        A pair in which no layer is called has the error of a layer drawn at random.
        """
        return scores_of(self.runs, self.planted, row, prompts, measured_on=self.measured_on)[name]


def findings_of(config: PlantedConfig, runs: Runs) -> list[Finding]:
    """Return P1 to P8, P10, P18 and P19, and the checks P9, K1 and K2."""
    main = main_column(config)
    planted = _Pairs(runs, main, main)
    unplanted = _Pairs(runs, main, ORDER)
    findings = [
        *_of_the_stream(config, planted, unplanted),
        _of_the_rise(config, planted, unplanted),
        *_of_what_blocks_add(config, planted, unplanted),
        *_of_the_same_input(config, planted, unplanted),
        *_of_all_layers(config, runs),
        *_checks(config, runs),
    ]
    findings = [replace(finding, not_tested=_why_not_tested(config, runs, finding.id)) for finding in findings]
    if config.model is None:
        return findings
    return [replace(finding, control=None) if finding.id in ("P7", "P8") else finding for finding in findings]


def _why_not_tested(config: PlantedConfig, runs: Runs, id: str) -> str:
    """Return why a finding cannot be tested, or ``""`` if it can."""
    if id == "P9" and not any(map(_changed_by_rounding, runs)):
        return _NOT_ROUNDED
    if config.model is None:
        return ""
    if id in ("P1", "P10"):
        return _BY_CONSTRUCTION
    if id in ("P6", "P19", "K2") and _hooks_cannot_write(config, runs):
        return _CANNOT_WRITE
    return _NOT_TUNED if id in ("P7", "P8") else ""


def _hooks_cannot_write(config: PlantedConfig, runs: Runs) -> bool:
    """Return whether no block was given the same input, and so nothing was patched either."""
    curves = [run.curve(pair, _ADDED_TO_SAME) for run in runs for pair in run.of(main_column(config))]
    return bool(np.isnan(curves).all())


def _how(config: PlantedConfig) -> str:
    return "trained" if config.model is None else f"given noise of {config.noise[-1]:g} of their norm"


def _unplanted_name(config: PlantedConfig) -> str:
    if config.model is None:
        return "two tunings that differ in the order of the data"
    return f"two draws of noise of {config.null_noise:g} in all layers"


def _chance_error(planted: _Pairs, name: str) -> str:
    return f"{chance_of(planted.planted, name, planted.runs[0]):.2f}"


# ---- the residual stream ----


def _of_the_stream(config: PlantedConfig, planted: _Pairs, unplanted: _Pairs) -> list[Finding]:
    how = _how(config)
    control = _unplanted_name(config)
    return [
        _finding(
            "P1",
            f"the residual stream finds the first of the layers that were {how} (error in layers; debiased CKA)",
            {"": NEAR},
            [planted.scores("onset")],
            control,
            [unplanted.scores("onset")],
            note=f"a layer drawn at random has the error {_chance_error(planted, 'onset')}",
        ),
        _finding(
            "P2",
            f"whichever layers were {how}, the model's last layer is called changed (share of models; debiased CKA, "
            "residual stream)",
            {"": _OFTEN},
            [planted.scores("top")],
            control,
            [unplanted.scores("top")],
            shares=[""],
            shown="headline",
        ),
        _finding(
            "P3",
            f"with few prompts, biased CKA calls fewer of the layers that were {how} than debiased CKA does (share "
            "called, debiased - biased; residual stream)",
            {"": _LARGER},
            [_missed_if_biased(planted, FEW)],
            f"{planted.runs[0].n} prompts per task",
            [_missed_if_biased(planted, ALL_PROMPTS)],
            shown="table",
        ),
    ]


def _missed_if_biased(pairs: _Pairs, prompts: str) -> BySeed:
    return pairs.scores("hit", _STREAM, prompts) - pairs.scores("hit", Row(RESIDUAL, "CKA"), prompts)


def _of_the_rise(config: PlantedConfig, planted: _Pairs, unplanted: _Pairs) -> Finding:
    return _finding(
        "P18",
        f"the rise of the stream's change from block to block tells the layers that were {_how(config)} from others, "
        "shows most of them, and the first (debiased CKA)",
        {"area under the ROC curve": _SEPARATES, "share called": _OFTEN, "onset": NEAR},
        _found_by_rise(planted),
        _unplanted_name(config),
        _found_by_rise(unplanted),
        shares=["share called"],
        shown="headline",
    )


def _found_by_rise(pairs: _Pairs) -> list[BySeed]:
    return [pairs.scores(name, _STREAM_RISE) for name in ("auc", "hit", "onset")]


# ---- contributions of blocks ----


def _of_what_blocks_add(config: PlantedConfig, planted: _Pairs, unplanted: _Pairs) -> list[Finding]:
    how = _how(config)
    control = _unplanted_name(config)
    return [
        _finding(
            "P4",
            f"what each block adds finds both ends of the layers that were {how} (errors in layers; debiased CKA)",
            {"onset": NEAR, "end": NEAR},
            _both_ends(planted),
            control,
            _both_ends(unplanted),
            shown="table",
            note=f"a layer drawn at random has the errors {_chance_error(planted, 'onset')} (onset) and "
            f"{_chance_error(planted, 'end')} (end)",
        ),
        _finding(
            "P5",
            f"what each block adds separates the layers that were {how} from others better than the residual stream "
            "does (difference of the area under the ROC curve; debiased CKA)",
            {"": _LARGER},
            [_better_separated(planted)],
            control,
            [_better_separated(unplanted)],
        ),
    ]


def _both_ends(pairs: _Pairs) -> list[BySeed]:
    return [pairs.scores("onset", _ADDED), pairs.scores("end", _ADDED)]


def _better_separated(pairs: _Pairs) -> BySeed:
    return pairs.scores("auc", _ADDED) - pairs.scores("auc", _STREAM)


def _of_the_same_input(config: PlantedConfig, planted: _Pairs, unplanted: _Pairs) -> list[Finding]:
    how = _how(config)
    control = _unplanted_name(config)
    return [
        _finding(
            "P6",
            f"what each block adds to the same input shows most of the layers that were {how}, and the last of them "
            "(debiased CKA)",
            {"share called": _OFTEN, "end": NEAR},
            _called_to_the_end(planted, _ADDED_TO_SAME),
            control,
            _called_to_the_end(unplanted, _ADDED_TO_SAME),
            shares=["share called"],
            note="that it calls no other layer holds by construction",
        ),
        _finding(
            "P19",
            f"the distance between what each block adds to the same input shows most of the layers that were {how}, "
            "and the last of them",
            {"share called": _OFTEN, "end": NEAR},
            _called_to_the_end(planted, _DISTANCE_ADDED_TO_SAME),
            control,
            _called_to_the_end(unplanted, _DISTANCE_ADDED_TO_SAME),
            shares=["share called"],
            shown="headline",
            note="that it calls no other layer holds by construction",
        ),
    ]


def _called_to_the_end(pairs: _Pairs, row: Row) -> list[BySeed]:
    return [pairs.scores("hit", row), pairs.scores("end", row)]


# ---- changes in all layers, or in none ----


def _of_all_layers(config: PlantedConfig, runs: Runs) -> list[Finding]:
    """Return P7, P8 and P10, on pairs without a truth: their share of false calls counts all layers."""
    shuffled = random_order(runs[0].n_layers)
    tuned = _scores_of_one(runs, ALL, "false")
    return [
        _finding(
            "P7",
            "if learning rates shrink from each block to the one below, the layers called changed are an upper group "
            "only more often than with one rate (difference of shares of models tuned in all layers; debiased CKA, "
            "residual stream)",
            {"": _LARGER},
            [_more_upper_calls(runs)],
            "layers in one random order",
            [_more_upper_calls(runs, shuffled)],
            make_part={"": paired_share_part},
        ),
        _finding(
            "P8",
            "a model tuned for twice the steps is not called changed against one tuned for the usual steps (share of "
            "layers called; debiased CKA, residual stream)",
            {"": Bound("<=", _SMALL_SHARE)},
            [_scores_of_one(runs, TWICE_STEPS, "false")],
            "a base and its tuned model",
            [tuned],
            shares=[""],
            shown="table",
            note="their data came in different orders, as in the pairs of the null",
        ),
        _finding(
            "P10",
            "if all layers were changed with one learning rate, most are called (share of layers; debiased CKA, "
            "residual stream)",
            {"": Bound(">=", 1 - _SMALL_SHARE)},
            [tuned],
            _unplanted_name(config),
            [_scores_of_one(runs, ORDER, "false")],
            shares=[""],
        ),
    ]


def _more_upper_calls(runs: Runs, order: Int[np.ndarray, "layer"] | None = None) -> BySeed:
    """Return how much more often upper layers alone are called with falling rates, with the layers in this order."""
    falling = _scores_of_one(runs, RATES, "upper", order)
    uniform = _scores_of_one(runs, ALL, "upper", order)
    return falling - uniform if len(falling) else falling  # a given model has no falling rates


def _scores_of_one(runs: Runs, column: str, name: str, order: Int[np.ndarray, "layer"] | None = None) -> BySeed:
    """Return a score of a column of one pair, without a truth. It is empty if there is no such pair."""
    pairs = runs[0].of(column)
    if not pairs:
        return np.empty(0)
    (pair,) = pairs
    layers = np.arange(runs[0].n_layers) if order is None else order
    curves = np.stack([run.curve(pair, _STREAM)[layers] for run in runs])
    thresholds = np.stack([run.threshold(pair, _STREAM)[layers] for run in runs])
    return score_curves(curves, thresholds, None)[name]


# ---- checks ----


def _checks(config: PlantedConfig, runs: Runs) -> list[Finding]:
    check = partial(Finding, kind="check")
    return [
        check(
            id="P9",
            statement="rounding the weights to bfloat16 calls no layer changed (largest value relative to the "
            f"threshold, which is {config.margin:g} times the largest of noise of about its size; debiased CKA, "
            "residual stream)",
            source="ours",
            parts=(check_part("", [_rounding(run) for run in runs], Bound("<=", 1)),),
            note="rounding moves weights by a relative norm of about .0017, and the noise of each model of the null "
            f"by {config.null_noise:g}",
        ),
        check(
            id="K1",
            statement="a model and itself differ in no layer (largest value of any measure)",
            source="definition",
            parts=(check_part("", [_largest_difference(run) for run in runs], Bound("<=", 0)),),
        ),
        check(
            id="K2",
            statement="patching restores none of the loss below the first changed layer, and all of it from the last "
            "on (largest deviation)",
            source="definition",
            parts=(check_part("", [_patching_error(run, main_column(config)) for run in runs], Bound("<=", 1e-3)),),
        ),
    ]


def _rounding(run: SeedResults) -> float:
    """Return the largest change by rounding, relative to the threshold of its layer."""
    (pair,) = run.of(ROUNDED)
    curve = run.curve(pair, _STREAM)
    threshold = run.threshold(pair, _STREAM)
    # NaN fails the check: a value is undefined, or the threshold is 0 and there is a change
    relative = curve / np.where(threshold > 0, threshold, np.nan)
    return float(np.max(np.where(curve <= 0, 0.0, relative)))


def _changed_by_rounding(run: SeedResults) -> bool:
    """Return whether the residual stream differs at all."""
    (pair,) = run.of(ROUNDED)
    return bool(run.curve(pair, _DISTANCE).any())


def _largest_difference(run: SeedResults) -> float:
    """Return the largest value of any measure between a model and itself, leaving out undefined curves.

    NaN if all are undefined.
    """
    (pair,) = run.of(NONE)
    curves = [np.abs(run.curve(pair, row)) for row in ROWS]
    return max((float(curve.max()) for curve in curves if np.isfinite(curve).all()), default=math.nan)


def _patching_error(run: SeedResults, column: str) -> float:
    """Return how far the restored share is from 0 below the changed layers, or from 1 from the last of them on."""
    errors = [0.0]
    for pair in run.of(column):
        assert pair.truth is not None
        first, last = pair.truth
        restored = run.restored[pair.name]
        errors += np.abs(restored[: first - 1]).tolist()
        errors += np.abs(restored[last - 1 :] - 1).tolist()
    return float(np.max(errors))
