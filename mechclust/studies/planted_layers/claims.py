"""The claims of the study of planted layers, with bounds written before the confirmatory seeds were run.

Each is the same function of the seeds' curves, applied to the measured data and to null draws in which it is false:
layers in random order, two measures or conditions exchanged at random, or a measure that does find the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mechclust.report.claims import Claim, claim
from mechclust.report.draws import one_of
from mechclust.report.findings import Finding, Parts
from mechclust.report.verdicts import Bound
from mechclust.studies.planted_layers.config import (
    ALL,
    NONE,
    ORDER,
    RATES,
    ROUNDED,
    STEPS,
    TRAINED,
    Pair,
    PlantedConfig,
    noisy,
)
from mechclust.studies.planted_layers.measure import ALL as ALL_PROMPTS
from mechclust.studies.planted_layers.measure import CONTRIBUTION, FEW, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.results import ROWS, Row, SeedResults, chance_of, place_of, scores_of

Found = Sequence[SeedResults]
NEAR = Bound("<=", 0.5)
FOUND = Bound(">=", 0.8)
_MEASURE = "debiased CKA"


def claims_of(config: PlantedConfig, found: Found) -> list[Claim]:
    """P1 to P10, and the checks K1 and K2."""
    findings = [finding.judged(found, tested=config.test_claims) for finding in _findings(config, found[0])]
    return [*findings, *_checks(config, found)]


def _findings(config: PlantedConfig, first: SeedResults) -> list[Finding[Found]]:
    """The findings."""
    main = TRAINED if config.model is None else noisy(config.noise[-1])
    how = "trained" if config.model is None else f"given noise of {config.noise[-1]:g} of their norm"
    residual, contribution, same = (Row(view, _MEASURE) for view in (RESIDUAL, CONTRIBUTION, SAME_INPUT))
    biased = Row(RESIDUAL, "CKA")

    def of(column: str, row: Row, name: str, prompts: str = ALL_PROMPTS) -> Callable[[Found], np.ndarray]:
        return lambda found: _scores(config, found, column, row, name, prompts)

    def one(values: Callable[[Found], np.ndarray], bound: Bound) -> Callable[[Found], Parts]:
        return lambda found: [("", values(found).tolist(), bound)]

    def both(column: str, row: Row, *asked: tuple[str, str, Bound]) -> Callable[[Found], Parts]:
        return lambda found: [(what, of(column, row, name)(found).tolist(), bound) for what, name, bound in asked]

    def less(a: Callable[[Found], np.ndarray], b: Callable[[Found], np.ndarray]) -> Callable[[Found], np.ndarray]:
        return lambda found: a(found) - b(found)

    random_order = "the layers of every curve in random order"
    return [
        Finding(
            "P1",
            f"debiased CKA of the residual stream finds the first of the layers that were {how} (error in layers)",
            "ours",
            one(of(main, residual, "onset"), NEAR),
            _shuffled,
            random_order,
            chance=_chance(first, main, 0),
        ),
        Finding(
            "P2",
            f"debiased CKA of the residual stream is off by a layer or more for the last of the layers that were {how} "
            "(error in layers); some layer is called in four of five models",
            "ours",
            both(main, residual, ("error", "end", Bound(">=", 1)), ("share of models", "found", FOUND)),
            one_of(_ending, lambda found, draw: _lasting(found, draw, 1 - FOUND.value)),
            "curves below the threshold above the last changed layer, or in all layers of a fifth of the models",
            chance=_chance(first, main, 1),
            planted=_lasting,
            planted_what="curves above the threshold from the first changed layer to the last layer of the model",
            note="where no layer is called, the error is that of a random layer, so the share is a part of its own",
        ),
        Finding(
            "P3",
            f"with fewer prompts than dimensions, biased CKA misses more of the layers that were {how} than debiased "
            "CKA does (share called, debiased - biased; residual stream)",
            "ours",
            one(less(of(main, residual, "hit", FEW), of(main, biased, "hit", FEW)), Bound(">", 0)),
            lambda found, draw: _exchanged(found, biased, residual, draw),
            "both measures exchanged at random, seed by seed",
            chance="0",
        ),
        Finding(
            "P4",
            f"debiased CKA of what each block adds finds both ends of the layers that were {how} (errors in layers)",
            "ours",
            both(main, contribution, ("onset", "onset", NEAR), ("end", "end", NEAR)),
            _shuffled,
            random_order,
            chance=f"onset {_chance(first, main, 0)}, end {_chance(first, main, 1)}",
        ),
        Finding(
            "P5",
            f"what each block adds separates layers that were {how} from others better than the residual stream does "
            "(area under the ROC curve, difference; debiased CKA)",
            "ours",
            one(less(of(main, contribution, "auc"), of(main, residual, "auc")), Bound(">", 0)),
            lambda found, draw: _exchanged(found, contribution, residual, draw),
            "both exchanged at random, seed by seed",
            chance="0",
        ),
        Finding(
            "P6",
            f"debiased CKA of what each block adds to the same input calls four in five of the layers that were {how}, "
            "and finds the last of them",
            "ours",
            both(main, same, ("share called", "hit", Bound(">=", 0.8)), ("end", "end", NEAR)),
            _shuffled,
            random_order,
            note="that it calls no other layer holds by construction",
        ),
        Finding(
            "P7",
            "with learning rates that fall from block to block, debiased CKA of the residual stream calls some layers "
            "changed and others not, more often than with another order of the data (share of models)",
            "ours",
            one(less(of(RATES, residual, "partial"), of(ORDER, residual, "partial")), Bound(">", 0)),
            lambda found, draw: _exchanged_pairs(found, RATES, ORDER, draw),
            "both models exchanged at random, seed by seed",
            chance="0",
        ),
        Finding(
            "P8",
            "twice the steps do not count as a change: at most one layer in ten is called (debiased CKA, residual)",
            "ours",
            one(of(STEPS, residual, "false"), Bound("<=", 0.1)),
            lambda found, draw: _replaced(found, STEPS, main, draw),
            f"instead, a model some of whose layers were {how}, in random order",
        ),
        Finding(
            "P9",
            "weights rounded to bfloat16 do not count as a change: at most one layer in twenty is called (debiased "
            "CKA, residual)",
            "ours",
            one(of(ROUNDED, residual, "false"), Bound("<=", 0.05)),
            lambda found, draw: _replaced(found, ROUNDED, main, draw),
            f"instead, a model some of whose layers were {how}, in random order",
        ),
        Finding(
            "P10",
            "if all layers were changed, nine in ten are called (debiased CKA, residual)",
            "ours",
            one(of(ALL, residual, "hit"), Bound(">=", 0.9)),
            lambda found, draw: _replaced(found, ALL, main, draw),
            f"instead, a model of which only some layers were {how}, in random order",
        ),
    ]


def _checks(config: PlantedConfig, found: Found) -> list[Claim]:
    main = TRAINED if config.model is None else noisy(config.noise[-1])
    still = [max(float(np.abs(m.curve(pair, row)).max()) for row in ROWS if _known(m, pair, row)) for m in found
             for pair in m.of(NONE)]  # fmt: skip
    return [
        claim("K1", "a model and itself differ in no layer (largest value of any measure)", "definition", still,
              Bound("<=", 0), kind="check", tested=config.test_claims),
        claim("K2", "patching restores none of the loss below the first changed layer, and all of it from the last on "
              "(largest deviation)", "definition", [_patching_error(m, main) for m in found], Bound("<=", 1e-3),
              kind="check", tested=config.test_claims),
    ]  # fmt: skip


def _known(m: SeedResults, pair: Pair, row: Row) -> bool:
    return bool(np.isfinite(m.curve(pair, row)).all())


def _patching_error(m: SeedResults, column: str) -> float:
    worst = 0.0
    for pair in m.of(column):
        assert pair.truth is not None
        (a, b), restored = pair.truth, m.restored[pair.name]
        worst = max(worst, *np.abs(restored[: a - 1]), *np.abs(restored[b - 1 :] - 1))
    return float(worst)


def _scores(
    config: PlantedConfig, found: Found, column: str, row: Row, name: str, prompts: str = ALL_PROMPTS
) -> np.ndarray:
    """``[seed]``; empty if there is no such column."""
    if not found[0].of(column):
        return np.empty(0)
    return scores_of(config, found, column, row, prompts)[name]


def _chance(m: SeedResults, column: str, end: int) -> str:
    return f"{chance_of(column, ('onset', 'end')[end], m):.2f}, a random layer"


# ---- null draws ----


def _shuffled(found: Found, draw: np.random.Generator) -> Found:
    """Curves whose layers are in random order, each with its threshold."""
    new = []
    for m in found:
        curves = dict(m.curves)
        for pair in m.pairs:
            order, bars = draw.permutation(m.n_layers), m.thresholds[pair.null]
            called = np.where(m.curves[pair.name] > bars, 2.0, 0.0)  # for these draws only the calls matter
            curves[pair.name] = called[..., order]
        new.append(replace(m, curves=curves, thresholds={k: np.ones_like(bars) for k, bars in m.thresholds.items()}))
    return new


def _exchanged(found: Found, one: Row, other: Row, draw: np.random.Generator) -> Found:
    """Two rows of the table exchanged in half of the seeds."""
    new = []
    for m in found:
        if draw.random() < 0.5:
            places = place_of(one), place_of(other)
            curves = {name: _swapped(curve, *places) for name, curve in m.curves.items()}
            thresholds = {null: _swapped(bars, *places) for null, bars in m.thresholds.items()}
            m = replace(m, curves=curves, thresholds=thresholds)
        new.append(m)
    return new


def _swapped(values: np.ndarray, one: tuple[int, int], other: tuple[int, int]) -> np.ndarray:
    new = values.copy()
    new[:, one[0], one[1]], new[:, other[0], other[1]] = values[:, other[0], other[1]], values[:, one[0], one[1]]
    return new


def _exchanged_pairs(found: Found, one: str, other: str, draw: np.random.Generator) -> Found:
    """Two columns of one pair each exchanged in half of the seeds."""
    new = []
    for m in found:
        if draw.random() < 0.5:
            (a,), (b,) = m.of(one), m.of(other)
            m = replace(m, curves={**m.curves, a.name: m.curves[b.name], b.name: m.curves[a.name]})
        new.append(m)
    return new


def _replaced(found: Found, column: str, by: str, draw: np.random.Generator) -> Found:
    """The curves of a column's pair replaced by those of a planted pair, with layers in random order."""
    mixed, new = _shuffled(found, draw), []
    for m in mixed:
        (pair,), others = m.of(column), m.of(by)
        chosen = others[int(draw.integers(len(others)))]
        new.append(replace(m, curves={**m.curves, pair.name: m.curves[chosen.name]}))
    return new


def _ending(found: Found, draw: np.random.Generator) -> Found:
    """Curves that fall below the threshold above the last changed layer."""
    new = []
    for m in found:
        curves = {name: curve.copy() for name, curve in m.curves.items()}
        for pair in m.pairs:
            if pair.truth is not None:
                above = slice(pair.truth[1], None)
                bars = m.thresholds[pair.null][..., above]
                curves[pair.name][..., above] = bars * draw.random(bars.shape)
        new.append(replace(m, curves=curves))
    return new


def _lasting(found: Found, draw: np.random.Generator, missed: float = 0.0) -> Found:
    """Curves above the threshold from the first changed layer on; below it in all layers of this share of the pairs."""
    new = []
    for m in found:
        curves = dict(m.curves)
        for pair in m.pairs:
            if pair.truth is not None:
                changed = np.arange(1, m.n_layers + 1) >= pair.truth[0]
                bars = np.ones_like(m.thresholds[pair.null])
                curves[pair.name] = np.where(changed & (draw.random() >= missed), 2.0, 0.0) * bars
        new.append(replace(m, curves=curves, thresholds={k: np.ones_like(bars) for k, bars in m.thresholds.items()}))
    return new
