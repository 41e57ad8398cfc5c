"""The findings of the study of planted layers, with bounds written before the confirmatory seeds were run.

Each is the same function of the seeds' curves, applied to the measured data, to draws in which it is false just outside
its bound (or two measures or conditions are exchanged at random), and to draws in which it is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mechclust.report.findings import Finding, finding
from mechclust.report.draws import one_of
from mechclust.report.findings import Finding, Parts
from mechclust.evidence.bounds import Bound
from mechclust.studies.planted_layers.config import (
    ALL,
    NONE,
    RATES,
    ROUNDED,
    STEPS,
    Pair,
    PlantedConfig,
    main_column,
)
from mechclust.studies.planted_layers.measure import ALL as ALL_PROMPTS
from mechclust.studies.planted_layers.measure import CONTRIBUTION, FEW, RESIDUAL, SAME_INPUT
from mechclust.studies.planted_layers.results import ROW_VIEWS, ROWS, Row, SeedResults, chance_of, place_of, scores_of

Found = Sequence[SeedResults]
NEAR = Bound("<=", 0.5)
OFTEN = Bound(">=", 0.8)
_HALF, _FEW, _JUST = 0.51, 0.05, 0.01  # shares of the models in draws
_CLUSTERED = 0.3  # with ten seeds, no bound nearer to 0 can be told from one model in which all layers are called
_MEASURE = "debiased CKA"


def findings_of(config: PlantedConfig, found: Found) -> list[Finding]:
    """P1 to P8 and P10, and the checks P9, K1 and K2."""
    findings = []
    for finding in _findings(config, found[0]):
        why_not = ""
        if config.model is not None and finding.id in ("P1", "P10"):
            why_not = "layers below planted noise are identical by construction, and the noise is far above its null"
        findings.append(finding.judged(found, tested=config.test_findings and not why_not, why_not=why_not))
    return [*findings, *_checks(config, found)]


def _findings(config: PlantedConfig, first: SeedResults) -> list[Finding[Found]]:
    """The findings."""
    main = main_column(config)
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
        def of(found: Found) -> np.ndarray:
            one, other = a(found), b(found)
            return one - other if len(one) and len(other) else np.empty(0)  # a given model lacks trained columns

        return of

    late, long = _calls(late=_HALF, lasting=True), _calls(late=_FEW, lasting=True)
    ends = [_calls(late=_HALF, beyond=_FEW), _calls(late=_FEW, beyond=_HALF)]
    exact = _calls(late=_FEW, beyond=_FEW)
    off = f"a layer late in {_HALF:.0%} of the models"
    nearly = f"exact but for a layer in {_FEW:.0%} of the models"
    return [
        Finding(
            "P1",
            f"debiased CKA of the residual stream finds the first of the layers that were {how} (error in layers)",
            "ours",
            one(of(main, residual, "onset"), NEAR),
            late,
            f"calls that begin {off}",
            chance=_chance(first, main, 0),
            planted=long,
            planted_what=nearly,
        ),
        Finding(
            "P2",
            f"debiased CKA of the residual stream does not find the last of the layers that were {how}: the last layer "
            "called is the last of the model (share of models)",
            "ours",
            one(of(main, residual, "top"), OFTEN),
            _calls(late=_FEW, lasting=True, ending=1 - OFTEN.value + _JUST),
            f"calls that end with the change in {1 - OFTEN.value:.0%} of the models",
            planted=_calls(late=_FEW, lasting=True, ending=_FEW),
            planted_what=f"calls that do so in {_FEW:.0%}",
            shares=True,
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
            planted=_biased_misses,
            planted_what="calls of biased CKA that lack half of the layers",
        ),
        Finding(
            "P4",
            f"debiased CKA of what each block adds finds both ends of the layers that were {how} (errors in layers)",
            "ours",
            both(main, contribution, ("onset", "onset", NEAR), ("end", "end", NEAR)),
            one_of(*ends),
            f"calls that begin or end {off}",
            chance=f"onset {_chance(first, main, 0)}, end {_chance(first, main, 1)}",
            planted=exact,
            planted_what=nearly,
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
            planted=_only_residual_lasts,
            planted_what="contributions that change in the changed layers only, a residual stream that stays changed",
        ),
        Finding(
            "P6",
            f"debiased CKA of what each block adds to the same input calls four in five of the layers that were {how}, "
            "and finds the last of them",
            "ours",
            both(main, same, ("share called", "hit", OFTEN), ("end", "end", NEAR)),
            one_of(_calls(beyond=_HALF), _calls(missed=1 - OFTEN.value + _JUST)),
            f"calls that end {off}, or lack the first changed layers, a fifth of all",
            shares=("share called",),
            note="that it calls no other layer holds by construction",
            planted=_calls(late=_FEW, beyond=_FEW),
            planted_what=nearly,
        ),
        Finding(
            "P7",
            "with learning rates that fall from block to block, debiased CKA of the residual stream calls upper layers "
            "only, from some layer to the last, more often than with one rate (share of models tuned in all layers)",
            "ours",
            one(less(of(RATES, residual, "upper"), of(ALL, residual, "upper")), Bound(">", 0)),
            lambda found, draw: _exchanged_pairs(found, RATES, ALL, draw),
            "both models exchanged at random, seed by seed",
            chance="0",
            planted=lambda found, draw: _called(found, draw, {RATES: _from_a_layer, ALL: _all_but(_FEW)}),
            planted_what="calls from a random layer on with falling rates, and of nearly all layers with one",
        ),
        Finding(
            "P8",
            "twice the steps do not count as a change: at most three layers in ten are called (debiased CKA, residual)",
            "ours",
            one(of(STEPS, residual, "false"), Bound("<=", _CLUSTERED)),
            lambda found, draw: _called(found, draw, {STEPS: _all_or_none(_CLUSTERED + _JUST)}),
            f"all layers called in {_CLUSTERED:.0%} of the models, none in the others",
            planted=lambda found, draw: _called(found, draw, {STEPS: _all_but(1 - _FEW)}),
            planted_what=f"{_FEW:.0%} of the layers called",
            shares=True,
            note="another order of the data for both, as for the pairs of the null",
        ),
        Finding(
            "P10",
            "if all layers were changed with one learning rate, seven in ten are called (debiased CKA, residual)",
            "ours",
            one(of(ALL, residual, "hit"), Bound(">=", 1 - _CLUSTERED)),
            lambda found, draw: _called(found, draw, {ALL: _all_or_none(1 - _CLUSTERED - _JUST)}),
            f"none called in {_CLUSTERED:.0%} of the models, all layers in the others",
            planted=lambda found, draw: _called(found, draw, {ALL: _all_but(_FEW)}),
            planted_what=f"{_FEW:.0%} of the layers not called",
            shares=True,
        ),
    ]


def _checks(config: PlantedConfig, found: Found) -> list[Finding]:
    main = main_column(config)
    still = [max(float(np.abs(m.curve(pair, row)).max()) for row in ROWS if _known(m, pair, row)) for m in found
             for pair in m.of(NONE)]  # fmt: skip
    return [
        finding("P9", "rounding the weights to bfloat16 changes no layer more than noise of about its size does (largest "
              "value relative to the threshold; debiased CKA, residual)", "ours", [_rounding(m) for m in found],
              Bound("<=", 1), kind="check", tested=config.test_findings,
              note="rounding moves weights by a relative norm of about .0017, and the noise of each model of the null "
              f"by {config.null_noise:g}"),
        finding("K1", "a model and itself differ in no layer (largest value of any measure)", "definition", still,
              Bound("<=", 0), kind="check", tested=config.test_findings),
        finding("K2", "patching restores none of the loss below the first changed layer, and all of it from the last on "
              "(largest deviation)", "definition", [_patching_error(m, main) for m in found], Bound("<=", 1e-3),
              kind="check", tested=config.test_findings),
    ]  # fmt: skip


def _rounding(m: SeedResults) -> float:
    (pair,), row = m.of(ROUNDED), Row(RESIDUAL, _MEASURE)
    curve, bar = m.curve(pair, row), m.bar(pair, row, ALL_PROMPTS, 0.0)
    return float(np.max(np.where(curve > 0, curve / np.where(bar > 0, bar, np.nan), 0.0)))


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


def _calls(
    *, late: float = 0.0, beyond: float = 0.0, missed: float = 0.0, lasting: bool = False, ending: float = 0.0
) -> Callable[[Found, np.random.Generator], Found]:
    """Calls by every measure that are right but for these shares of the models.

    Args:
        late: they begin a layer late.
        beyond: they end a layer late.
        missed: of the changed layers, the share not called, among the first.
        lasting: they go on to the last layer of the model.
        ending: nevertheless, they end with the change.
    """

    def drawn(found: Found, draw: np.random.Generator) -> Found:
        def of(pair: Pair, n: int) -> np.ndarray:
            assert pair.truth is not None
            (a, b), layers = pair.truth, np.arange(1, n + 1)
            width = b - a + 1
            first = a + (draw.random() < late) + (draw.random() < missed * width)
            last = n if lasting and draw.random() >= ending else min(n, b + (draw.random() < beyond))
            return (layers >= first) & (layers <= last)

        ended = [pair.column for pair in found[0].pairs if pair.truth not in (None, (1, found[0].n_layers))]
        columns = dict.fromkeys(ended)  # a set's order changes from process to process, and the draws with it
        return _called(found, draw, {column: lambda pair, n, draw: of(pair, n) for column in columns})

    return drawn


_Caller = Callable[[Pair, int, np.random.Generator], np.ndarray]


def _called(found: Found, draw: np.random.Generator, callers: Mapping[str, _Caller]) -> Found:
    """The curves of these columns, 2 where a layer is called and 0 elsewhere, by all measures; thresholds of 1."""
    new = []
    for m in found:
        curves = {pair.name: np.where(m.curves[pair.name] > m.thresholds[pair.null], 2.0, 0.0) for pair in m.pairs}
        for column, caller in callers.items():
            for pair in m.of(column):
                called = np.where(caller(pair, m.n_layers, draw), 2.0, 0.0)
                curves[pair.name] = np.broadcast_to(called, curves[pair.name].shape).copy()
        new.append(replace(m, curves=curves, thresholds={k: np.ones_like(bars) for k, bars in m.thresholds.items()}))
    return new


def _all_or_none(share: float) -> _Caller:
    """All layers called in this share of the models, none in the others."""
    return lambda pair, n, draw: np.full(n, draw.random() < share)


def _all_but(share: float) -> _Caller:
    """Every layer called but for this share of them."""
    return lambda pair, n, draw: draw.random(n) >= share


def _from_a_layer(pair: Pair, n: int, draw: np.random.Generator) -> np.ndarray:
    """Called from a random layer on, not the first."""
    return np.arange(1, n + 1) >= draw.integers(2, n + 1)


def _biased_misses(found: Found, draw: np.random.Generator) -> Found:
    """Calls that last, of which biased CKA lacks half."""
    new = []
    for m in _calls(lasting=True)(found, draw):
        curves, (view, measure) = dict(m.curves), place_of(Row(RESIDUAL, "CKA"))
        for name, curve in curves.items():
            curve[:, view, measure] *= draw.random(m.n_layers) < 0.5
            curves[name] = curve
        new.append(replace(m, curves=curves))
    return new


def _only_residual_lasts(found: Found, draw: np.random.Generator) -> Found:
    """The residual stream stays changed up to the last layer, and contributions change in the changed layers only."""
    view = ROW_VIEWS.index(RESIDUAL)
    ending, lasting = _calls(late=_FEW, beyond=_FEW)(found, draw), _calls(late=_FEW, lasting=True)(found, draw)
    for short, long in zip(ending, lasting, strict=True):
        for name, curve in short.curves.items():
            curve[:, view] = long.curves[name][:, view]
    return ending
