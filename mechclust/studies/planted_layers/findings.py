"""The findings P1 to P8 and P10 of the study of planted layers with their controls, and the checks P9, K1 and K2.

Bounds were written before the confirmatory seeds were run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mechclust.evidence import Bound, Control, Finding, Part, check_part, mean_part, share_part
from mechclust.studies.planted_layers.config import ALL, NONE, RATES, ROUNDED, STEPS, Pair, PlantedConfig, main_column
from mechclust.studies.planted_layers.measure import ALL as ALL_PROMPTS
from mechclust.studies.planted_layers.measure import CONTRIBUTION, FEW, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.results import ROWS, Row, SeedResults, chance_of, scores_of

NEAR = Bound("<=", 0.5)
OFTEN = Bound(">=", 0.8)
SHUFFLED = "layers shuffled once for all seeds"
_ABOVE = Bound(">", 0)
_CLUSTERED = 0.3  # with ten seeds, no bound nearer to 0 can be told from one model in which all layers are called
_TOO_SMALL = "this size of the study cannot test it"
_IDENTICAL = "layers below planted noise are identical by construction, and the noise is far above its null"
_MEASURE = "debiased CKA"
_OF_RESIDUAL, _OF_CONTRIBUTION, _OF_SAME_INPUT = (Row(view, _MEASURE) for view in (RESIDUAL, CONTRIBUTION, SAME_INPUT))
_BIASED = Row(RESIDUAL, "CKA")

Found = Sequence[SeedResults]
Scores = Float[np.ndarray, "seed"]


def findings_of(config: PlantedConfig, found: Found) -> list[Finding]:
    """Return P1 to P8 and P10, and the checks P9, K1 and K2."""
    findings = [*_of_residual(config, found), *_of_blocks(config, found), *_of_all_layers(config, found)]
    if config.model is not None:
        identical = ("P1", "P10")
        findings = [replace(f, not_tested=_IDENTICAL) if f.id in identical else f for f in findings]
    findings = sorted(findings, key=lambda finding: int(finding.id[1:]))
    findings += _checks(config, found)
    if not config.test_findings:
        findings = [replace(finding, not_tested=_TOO_SMALL) for finding in findings]
    return findings


def _of_residual(config: PlantedConfig, found: Found) -> list[Finding]:
    """Return P1 to P3, about the residual stream."""
    main = main_column(config)
    how = _how(config)
    shuffled = shuffle_layers(found)
    return [
        Finding(
            id="P1",
            statement=f"debiased CKA of the residual stream finds the first of the layers that were {how} (error in "
            "layers)",
            source="ours",
            parts=(mean_part("", _scores(config, found, main, _OF_RESIDUAL, "onset"), NEAR),),
            control=Control(SHUFFLED, (mean_part("", _scores(config, shuffled, main, _OF_RESIDUAL, "onset"), NEAR),)),
            note=f"a random layer: {chance_of(main, 'onset', found[0]):.2f}",
        ),
        Finding(
            id="P2",
            statement="debiased CKA of the residual stream does not find the last of the layers that were "
            f"{how}: the last layer called is the last of the model (share of models)",
            source="ours",
            parts=(share_part("", _scores(config, found, main, _OF_RESIDUAL, "top"), OFTEN),),
            control=_if_measured(
                "twice the steps", share_part("", _scores(config, found, STEPS, _OF_RESIDUAL, "top"), OFTEN)
            ),
            shown="headline",
        ),
        Finding(
            id="P3",
            statement="with fewer prompts than dimensions, biased CKA misses more of the layers that were "
            f"{how} than debiased CKA does (share called, debiased - biased; residual stream)",
            source="ours",
            parts=_biased_misses(config, found, FEW),
            control=Control("all prompts", _biased_misses(config, found, ALL_PROMPTS)),
            shown="table",
        ),
    ]


def _of_blocks(config: PlantedConfig, found: Found) -> list[Finding]:
    """Return P4 to P6, about what each block adds."""
    main = main_column(config)
    how = _how(config)
    shuffled = shuffle_layers(found)
    chances = [chance_of(main, end, found[0]) for end in ("onset", "end")]
    return [
        Finding(
            id="P4",
            statement=f"debiased CKA of what each block adds finds both ends of the layers that were {how} (errors in "
            "layers)",
            source="ours",
            parts=_both_ends(config, found, main),
            control=Control(SHUFFLED, _both_ends(config, shuffled, main)),
            note=f"a random layer: onset {chances[0]:.2f}, end {chances[1]:.2f}",
        ),
        Finding(
            id="P5",
            statement=f"what each block adds separates layers that were {how} from others better than the residual "
            "stream does (area under the ROC curve, difference; debiased CKA)",
            source="ours",
            parts=_separates_better(config, found, main),
            control=Control(SHUFFLED, _separates_better(config, shuffled, main)),
            shown="headline",
        ),
        Finding(
            id="P6",
            statement="debiased CKA of what each block adds to the same input calls four in five of the layers that "
            f"were {how}, and finds the last of them",
            source="ours",
            parts=_on_same_input(config, found, main),
            control=Control(SHUFFLED, _on_same_input(config, shuffled, main)),
            shown="headline",
            note="that it calls no other layer holds by construction",
        ),
    ]


def _of_all_layers(config: PlantedConfig, found: Found) -> list[Finding]:
    """Return P7, P8 and P10: models of which no layers were singled out."""
    few, most = Bound("<=", _CLUSTERED), Bound(">=", 1 - _CLUSTERED)
    twice = _scores(config, found, STEPS, _OF_RESIDUAL, "false")
    every = _scores(config, found, ALL, _OF_RESIDUAL, "hit")
    upper = {column: _scores(config, found, column, _OF_RESIDUAL, "upper") for column in (RATES, ALL, STEPS)}
    return [
        Finding(
            id="P7",
            statement="with learning rates that fall from block to block, debiased CKA of the residual stream calls "
            "upper layers only, from some layer to the last, more often than with one rate (share of models tuned in "
            "all layers)",
            source="ours",
            parts=(mean_part("", _difference(upper[RATES], upper[ALL]), _ABOVE),),
            control=_if_measured(
                "twice the steps, instead of such rates",
                mean_part("", _difference(upper[STEPS], upper[ALL]), _ABOVE),
            ),
        ),
        Finding(
            id="P8",
            statement="twice the steps do not count as a change: at most three layers in ten are called (debiased CKA, "
            "residual)",
            source="ours",
            parts=(share_part("", twice, few),),
            control=_if_measured("all layers changed", share_part("", every, few)),
            note="another order of the data for both, as for the pairs of the null",
        ),
        Finding(
            id="P10",
            statement="if all layers were changed with one learning rate, seven in ten are called (debiased CKA, "
            "residual)",
            source="ours",
            parts=(share_part("", every, most),),
            control=_if_measured("twice the steps", share_part("", twice, most)),
        ),
    ]


def _checks(config: PlantedConfig, found: Found) -> list[Finding]:
    main = main_column(config)
    return [
        Finding(
            id="P9",
            kind="check",
            statement="rounding the weights to bfloat16 changes no layer more than noise of about its size does "
            "(largest value relative to the threshold; debiased CKA, residual)",
            source="ours",
            parts=(check_part("", [_rounding(seed) for seed in found], Bound("<=", 1)),),
            note="rounding moves weights by a relative norm of about .0017, and the noise of each model of the null "
            f"by {config.null_noise:g}",
        ),
        Finding(
            id="K1",
            kind="check",
            statement="a model and itself differ in no layer (largest value of any measure)",
            source="definition",
            parts=(check_part("", [_largest_of_itself(seed) for seed in found], Bound("<=", 0)),),
        ),
        Finding(
            id="K2",
            kind="check",
            statement="patching restores none of the loss below the first changed layer, and all of it from the last "
            "on (largest deviation)",
            source="definition",
            parts=(check_part("", [_patching_error(seed, main) for seed in found], Bound("<=", 1e-3)),),
        ),
    ]


# ---- what is measured ----


def _how(config: PlantedConfig) -> str:
    return "trained" if config.model is None else f"given noise of {config.noise[-1]:g} of their norm"


def _scores(
    config: PlantedConfig, found: Found, column: str, row: Row, name: str, prompts: str = ALL_PROMPTS
) -> Scores:
    """Return a score of every seed; nothing if there is no such column, as with a given model."""
    if not found[0].of(column):
        return np.empty(0)
    return scores_of(config, found, column, row, prompts)[name]


def _difference(one: Scores, other: Scores) -> Scores:
    return one - other if len(one) and len(other) else np.empty(0)


def _if_measured(name: str, part: Part) -> Control | None:
    return Control(name, (part,)) if part.values else None


def shuffle_layers(found: Found) -> list[SeedResults]:
    """Return the measurements with their layers in one random order, the same for all seeds and measures."""
    order = np.random.default_rng(0).permutation(found[0].n_layers)
    return [
        replace(
            seed,
            curves={name: curve[..., order] for name, curve in seed.curves.items()},
            thresholds={null: bars[..., order] for null, bars in seed.thresholds.items()},
        )
        for seed in found
    ]


def _biased_misses(config: PlantedConfig, found: Found, prompts: str) -> tuple[Part, ...]:
    main = main_column(config)
    debiased, biased = (_scores(config, found, main, row, "hit", prompts) for row in (_OF_RESIDUAL, _BIASED))
    return (mean_part("", debiased - biased, _ABOVE),)


def _both_ends(config: PlantedConfig, found: Found, column: str) -> tuple[Part, ...]:
    return tuple(
        mean_part(end, _scores(config, found, column, _OF_CONTRIBUTION, end), NEAR) for end in ("onset", "end")
    )


def _separates_better(config: PlantedConfig, found: Found, column: str) -> tuple[Part, ...]:
    areas = [_scores(config, found, column, row, "auc") for row in (_OF_CONTRIBUTION, _OF_RESIDUAL)]
    return (mean_part("", areas[0] - areas[1], _ABOVE),)


def _on_same_input(config: PlantedConfig, found: Found, column: str) -> tuple[Part, ...]:
    return (
        share_part("share called", _scores(config, found, column, _OF_SAME_INPUT, "hit"), OFTEN),
        mean_part("end", _scores(config, found, column, _OF_SAME_INPUT, "end"), NEAR),
    )


def _rounding(seed: SeedResults) -> float:
    """Return the largest value of the residual stream's curve after rounding, relative to its threshold."""
    (pair,) = seed.of(ROUNDED)
    curve = seed.curve(pair, _OF_RESIDUAL)
    bar = seed.bar(pair, _OF_RESIDUAL, ALL_PROMPTS, 0.0)
    return float(np.max(np.where(curve > 0, curve / np.where(bar > 0, bar, np.nan), 0.0)))


def _largest_of_itself(seed: SeedResults) -> float:
    """Return the largest value of any measure between a model and itself."""
    largest = 0.0
    for pair in seed.of(NONE):
        for row in ROWS:
            if _known(seed, pair, row):
                largest = max(largest, float(np.abs(seed.curve(pair, row)).max()))
    return largest


def _known(seed: SeedResults, pair: Pair, row: Row) -> bool:
    return bool(np.isfinite(seed.curve(pair, row)).all())


def _patching_error(seed: SeedResults, column: str) -> float:
    worst = 0.0
    for pair in seed.of(column):
        assert pair.truth is not None
        first, last = pair.truth
        restored = seed.restored[pair.name]
        worst = max(worst, *np.abs(restored[: first - 1]), *np.abs(restored[last - 1 :] - 1))
    return float(worst)
