"""The findings P1 to P8 and P10 on planted layers with their controls, and the checks P9, K1 and K2.

Their bounds were written before the confirmatory seeds were run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from mechclust.evidence import Bound, Control, Finding, Part, check_part, mean_part, share_part
from mechclust.studies.planted_layers.config import (
    ALL,
    NONE,
    ORDER,
    RATES,
    ROUNDED,
    STEPS,
    PlantedConfig,
    main_column,
)
from mechclust.studies.planted_layers.measure import ALL as ALL_PROMPTS
from mechclust.studies.planted_layers.measure import CONTRIBUTION, FEW, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.results import ROWS, Row, SeedResults, chance_of, score, scores_of

TOO_SMALL = "this size of the study cannot test it"
NEAR = Bound("<=", 0.5)
_OFTEN = Bound(">=", 0.8)
_SMALL_SHARE = 0.3  # Wilson's interval of ten models without a called layer is 0 to .28: no lower bound could hold
_BY_CONSTRUCTION = "layers below planted noise are identical by construction, and the noise is far above its null"
_MEASURE = "debiased CKA"
_STREAM = Row(RESIDUAL, _MEASURE)
_ADDED = Row(CONTRIBUTION, _MEASURE)
_ADDED_TO_SAME = Row(SAME_INPUT, _MEASURE)

Runs = Sequence[SeedResults]


@dataclass(frozen=True)
class _Scored:
    """Curves of pairs of models, scored against the layers that were planted in the main column.

    Attributes:
        config: of the run.
        runs: of its seeds.
        measured_on: the column whose curves are scored: the main one; or, as the control, one without planted layers.
    """

    config: PlantedConfig
    runs: Runs
    measured_on: str

    def scores(self, row: Row, prompts: str = ALL_PROMPTS) -> Mapping[str, Float[np.ndarray, " seed"]]:
        """Return each seed's scores, by their names in ``results.score``, as means over the planted spans of layers.

        A pair in which no layer is called has the error of a layer drawn at random.
        """
        column = main_column(self.config)
        return scores_of(self.config, self.runs, column, row, prompts, measured_on=self.measured_on)


def findings_of(config: PlantedConfig, runs: Runs) -> list[Finding]:
    """Return P1 to P8 and P10, and the checks P9, K1 and K2."""
    planted = _Scored(config, runs, main_column(config))
    unplanted = _Scored(config, runs, ORDER)
    findings = [
        *_of_the_stream(planted, unplanted),
        *_of_what_blocks_add(planted, unplanted),
        *_of_all_layers(config, runs),
        *_checks(config, runs),
    ]
    return [replace(finding, not_tested=_why_not_tested(config, finding.id)) for finding in findings]


def _why_not_tested(config: PlantedConfig, id: str) -> str:
    """Return why a finding cannot be tested; ``""`` if it can."""
    if not config.test_findings:
        return TOO_SMALL
    if config.model is None:
        return ""
    if id in ("P1", "P10"):
        return _BY_CONSTRUCTION
    return "a given model is not tuned" if id in ("P7", "P8") else ""


def _how(config: PlantedConfig) -> str:
    return "trained" if config.model is None else f"given noise of {config.noise[-1]:g} of their norm"


def _unplanted_name(config: PlantedConfig) -> str:
    if config.model is None:
        return "two tunings that differ in the order of the data"
    return f"two draws of noise of {config.null_noise:g} in all layers"


def _chance_error(planted: _Scored, name: str) -> str:
    return f"{chance_of(main_column(planted.config), name, planted.runs[0]):.2f}"


# ---- the residual stream ----


def _of_the_stream(planted: _Scored, unplanted: _Scored) -> list[Finding]:
    how = _how(planted.config)
    control = _unplanted_name(planted.config)
    return [
        Finding(
            id="P1",
            statement=f"the residual stream finds the first of the layers that were {how} (error in layers; debiased "
            "CKA)",
            source="ours",
            parts=_first_found(planted),
            control=Control(control, _first_found(unplanted)),
            note=f"a layer drawn at random has the error {_chance_error(planted, 'onset')}",
        ),
        Finding(
            id="P2",
            statement=f"whichever layers were {how}, the model's last layer is called changed (share of models; "
            "debiased CKA, residual stream)",
            source="ours",
            parts=_top_called(planted),
            control=Control(control, _top_called(unplanted)),
            shown="headline",
        ),
        Finding(
            id="P3",
            statement=f"with few prompts, biased CKA calls fewer of the layers that were {how} than debiased CKA does "
            "(share called, debiased - biased; residual stream)",
            source="ours",
            parts=_missed_if_biased(planted, FEW),
            control=Control(f"{planted.runs[0].n} prompts per task", _missed_if_biased(planted, ALL_PROMPTS)),
            shown="table",
        ),
    ]


def _first_found(pairs: _Scored) -> tuple[Part, ...]:
    return (mean_part("", pairs.scores(_STREAM)["onset"], NEAR),)


def _top_called(pairs: _Scored) -> tuple[Part, ...]:
    return (share_part("", pairs.scores(_STREAM)["top"], _OFTEN),)


def _missed_if_biased(pairs: _Scored, prompts: str) -> tuple[Part, ...]:
    debiased = pairs.scores(_STREAM, prompts)["hit"]
    biased = pairs.scores(Row(RESIDUAL, "CKA"), prompts)["hit"]
    return (mean_part("", debiased - biased, Bound(">", 0)),)


# ---- what blocks add ----


def _of_what_blocks_add(planted: _Scored, unplanted: _Scored) -> list[Finding]:
    how = _how(planted.config)
    control = _unplanted_name(planted.config)
    return [
        Finding(
            id="P4",
            statement=f"what each block adds finds both ends of the layers that were {how} (errors in layers; debiased "
            "CKA)",
            source="ours",
            parts=_both_ends(planted),
            control=Control(control, _both_ends(unplanted)),
            shown="table",
            note=f"a layer drawn at random has the errors {_chance_error(planted, 'onset')} (onset) and "
            f"{_chance_error(planted, 'end')} (end)",
        ),
        Finding(
            id="P5",
            statement=f"what each block adds separates the layers that were {how} from others better than the residual "
            "stream does (difference of the area under the ROC curve; debiased CKA)",
            source="ours",
            parts=_better_separated(planted),
            control=Control(control, _better_separated(unplanted)),
            shown="headline",
        ),
        Finding(
            id="P6",
            statement=f"what each block adds to the same input shows most of the layers that were {how}, and the last "
            "of them (debiased CKA)",
            source="ours",
            parts=_called_to_the_end(planted),
            control=Control(control, _called_to_the_end(unplanted)),
            shown="headline",
            note="that it calls no other layer holds by construction",
        ),
    ]


def _both_ends(pairs: _Scored) -> tuple[Part, ...]:
    scores = pairs.scores(_ADDED)
    return (mean_part("onset", scores["onset"], NEAR), mean_part("end", scores["end"], NEAR))


def _better_separated(pairs: _Scored) -> tuple[Part, ...]:
    difference = pairs.scores(_ADDED)["auc"] - pairs.scores(_STREAM)["auc"]
    return (mean_part("", difference, Bound(">", 0)),)


def _called_to_the_end(pairs: _Scored) -> tuple[Part, ...]:
    scores = pairs.scores(_ADDED_TO_SAME)
    return (share_part("share called", scores["hit"], _OFTEN), mean_part("end", scores["end"], NEAR))


# ---- changes in all layers, or in none ----


def _of_all_layers(config: PlantedConfig, runs: Runs) -> list[Finding]:
    n = runs[0].n_layers
    shuffled = np.random.default_rng(0).permutation(n)
    small_share = Bound("<=", _SMALL_SHARE)
    large_share = Bound(">=", 1 - _SMALL_SHARE)
    return [
        Finding(
            id="P7",
            statement="if learning rates shrink from each block to the one below, the layers called changed are an "
            "upper group only more often than with one rate (difference of shares of models tuned in all layers; "
            "debiased CKA, residual stream)",
            source="ours",
            parts=_more_upper_calls(runs, np.arange(n)),
            control=_if_tuned(config, "layers in one random order", _more_upper_calls(runs, shuffled)),
        ),
        Finding(
            id="P8",
            statement="a model tuned for twice the steps is not called changed against one tuned for the usual steps "
            "(share of layers called; debiased CKA, residual stream)",
            source="ours",
            parts=_called(runs, STEPS, small_share),
            control=_if_tuned(config, "a base and its tuned model", _called(runs, ALL, small_share)),
            shown="table",
            note="their data came in different orders, as in the pairs of the null",
        ),
        Finding(
            id="P10",
            statement="if all layers were changed with one learning rate, most are called (share of layers; debiased "
            "CKA, residual stream)",
            source="ours",
            parts=_called(runs, ALL, large_share),
            control=Control(_unplanted_name(config), _called(runs, ORDER, large_share)),
        ),
    ]


def _if_tuned(config: PlantedConfig, name: str, parts: tuple[Part, ...]) -> Control | None:
    """Return a control that only models tuned by the study have."""
    return Control(name, parts) if config.model is None else None


def _called(runs: Runs, column: str, bound: Bound) -> tuple[Part, ...]:
    """Judge the share of all layers that are called changed: without a truth, all of them count as false calls."""
    return (share_part("", _scores_of_one(runs, column, "false"), bound),)


def _more_upper_calls(runs: Runs, order: Int[np.ndarray, " layer"]) -> tuple[Part, ...]:
    """Judge how much more often upper layers alone are called with falling rates, with the layers in this order."""
    falling = _scores_of_one(runs, RATES, "upper", order)
    uniform = _scores_of_one(runs, ALL, "upper", order)
    difference = falling - uniform if len(falling) else np.empty(0)  # a given model has no falling rates
    return (mean_part("", difference, Bound(">", 0)),)


def _scores_of_one(
    runs: Runs, column: str, name: str, order: Int[np.ndarray, " layer"] | None = None
) -> Float[np.ndarray, " seed"]:
    """Return a score of a column of one pair, without a truth; empty if there is no such pair."""
    pairs = runs[0].of(column)
    if not pairs:
        return np.empty(0)
    (pair,) = pairs
    layers = np.arange(runs[0].n_layers) if order is None else order
    curves = np.stack([run.curve(pair, _STREAM)[layers] for run in runs])
    thresholds = np.stack([run.threshold(pair, _STREAM)[layers] for run in runs])
    return score(curves, thresholds, None)[name]


# ---- checks ----


def _checks(config: PlantedConfig, runs: Runs) -> list[Finding]:
    return [
        Finding(
            id="P9",
            kind="check",
            statement="rounding the weights to bfloat16 changes no layer more than noise of about its size does "
            "(largest value relative to the threshold; debiased CKA, residual stream)",
            source="ours",
            parts=(check_part("", [_rounding(run) for run in runs], Bound("<=", 1)),),
            note="rounding moves weights by a relative norm of about .0017, and the noise of each model of the null "
            f"by {config.null_noise:g}",
        ),
        Finding(
            id="K1",
            kind="check",
            statement="a model and itself differ in no layer (largest value of any measure)",
            source="definition",
            parts=(check_part("", [_largest_difference(run) for run in runs], Bound("<=", 0)),),
        ),
        Finding(
            id="K2",
            kind="check",
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
    relative = curve / np.where(
        threshold > 0, threshold, np.nan
    )  # NaN fails the check: a change where the threshold is 0
    return float(np.max(np.where(curve > 0, relative, 0.0)))


def _largest_difference(run: SeedResults) -> float:
    """Return the largest value of any measure between a model and itself; undefined curves are left out."""
    (pair,) = run.of(NONE)
    curves = [np.abs(run.curve(pair, row)) for row in ROWS]
    return max(float(curve.max()) for curve in curves if np.isfinite(curve).all())


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
