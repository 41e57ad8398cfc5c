"""P1 to P10, P18, P19, K1 and K2 on curves made by hand, where each holds, fails, or holds on its control too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.studies import get_study
from mechclust.studies.planted_layers.config import (
    ALL,
    NONE,
    NULLS,
    ORDER,
    RATES,
    ROUNDED,
    TRAINED,
    TWICE_STEPS,
    pairs_of,
)
from mechclust.studies.planted_layers.findings import findings_of
from mechclust.studies.planted_layers.measure import MEASURES
from mechclust.studies.planted_layers.results import (
    PROMPTS,
    ROW_VIEWS,
    Row,
    SeedResults,
    chance_of,
    scores_of,
)

PAPER = get_study("planted-layers").preset("paper")
L = 8
SEEDS = 20  # with fewer, a share that is 1 in all of them may be below .8
RESIDUAL = ROW_VIEWS.index("residual")
FEW, BIASED = PROMPTS.index("few"), MEASURES.index("CKA")
LAYERS = np.arange(1, L + 1)
RISING = 0.001 * LAYERS


def from_to(first, last):
    """Return a curve that is above the threshold of .5 in these layers, and below it elsewhere."""
    return RISING + ((first <= LAYERS) & (last >= LAYERS))


def planted(seed, span, *, stays):
    """Return the curves of a pair with planted layers; two of the seeds begin a layer late, one ends a layer late."""
    first = span[0] + (seed < 2)
    last = min(L, span[1] + (seed == 3))
    curve = np.empty((len(PROMPTS), len(ROW_VIEWS), len(MEASURES), L))
    curve[:] = from_to(first, last)
    if stays:
        curve[:, RESIDUAL] = from_to(first, L)
    curve[FEW, RESIDUAL, BIASED] = 0
    return curve


def measured(seed, config=PAPER, *, stays=True, others=None):
    """Return a seed on which every finding holds.

    Args:
        seed: of the run; seeds differ.
        config: of the run.
        stays: whether the residual stream stays changed above the planted layers.
        others: by column, a curve by layer.
    """
    curves = {}
    restored = {}
    pairs = [pair for pair in pairs_of(config, L) if pair.column not in NULLS]
    flat = {
        ALL: from_to(2 if seed < 5 else 1, L),
        RATES: from_to(1 if seed == 4 else 6, L),
        TWICE_STEPS: from_to(3, 3) if seed < 10 else RISING,
        ROUNDED: np.where(LAYERS == 2, 0.25, 0.0),
        ORDER: RISING,
        **(others or {}),
    }
    for pair in pairs:
        if pair.truth not in (None, (1, L)):
            curves[pair.name] = planted(seed, pair.truth, stays=stays)
        else:
            shape = (len(PROMPTS), len(ROW_VIEWS), len(MEASURES), L)
            curves[pair.name] = np.broadcast_to(flat.get(pair.column, 0.0 * LAYERS), shape)
        if pair.truth is not None:
            restored[pair.name] = (pair.truth[0] <= LAYERS).astype(float)
    bars = np.full((len(PROMPTS), len(ROW_VIEWS), len(MEASURES), L), 0.5)
    return SeedResults(tuple(pairs), curves, dict.fromkeys(NULLS, bars), restored, n=640)


def judged(config=PAPER, **changes):
    runs = [measured(seed, config, **changes) for seed in range(SEEDS)]
    return {finding.id: finding for finding in findings_of(config, runs)}


@pytest.fixture(scope="module")
def ideal():
    return judged()


def test_hold_on_such_curves_and_not_on_their_controls(ideal):
    assert list(ideal) == [*("P1", "P2", "P3", "P18", "P4", "P5", "P6", "P19", "P7", "P8", "P10"), "P9", "K1", "K2"]
    assert {id for id, finding in ideal.items() if finding.verdict != "holds"} == set()
    findings = [finding for finding in ideal.values() if finding.kind == "finding"]
    assert {finding.id for finding in findings if finding.control is None} == set()
    assert {finding.id for finding in findings if finding.control.verdict == "holds"} == set()


@pytest.mark.parametrize(
    ("id", "part", "value", "control"),
    [
        ("P1", 0, 2 / 20, 2.0 + 1 / 3),  # a random layer is 2.75, 2 and 2.25 layers off 2, 4 and 6
        ("P2", 0, 1.0, 0.0),
        ("P3", 0, 1 - 2 / 20 / 2, 0.0),  # a layer late, half of the span is missed
        ("P4", 0, 2 / 20, 2.0 + 1 / 3),
        ("P4", 1, 1 / 20, 2.0 + 1 / 3),
        ("P6", 0, 1 - 2 / 20 / 2, 0.0),
        ("P6", 1, 1 / 20, 2.0 + 1 / 3),
        ("P18", 0, (17 + 2 * 3 / 4 + 5 / 6) / 20, 0.5),  # a layer late; one called above the span
        ("P18", 1, 1 - 2 / 20 / 2, 0.0),
        ("P18", 2, 2 / 20, 2.0 + 1 / 3),
        ("P19", 0, 1 - 2 / 20 / 2, 0.0),
        ("P19", 1, 1 / 20, 2.0 + 1 / 3),
        ("P7", 0, 19 / 20 - 5 / 20, 0.0),  # in five models with one rate, layer 1 is not called
        ("P8", 0, 10 / 20 / 8, 1 - 5 / 20 / 8),
        ("P10", 0, 1 - 5 / 20 / 8, 0.0),
        ("P9", 0, 0.5, None),
    ],
)
def test_values(ideal, id, part, value, control):
    finding = ideal[id]
    assert finding.parts[part].measured == pytest.approx(value)
    if control is not None:
        assert finding.control.parts[part].measured == pytest.approx(control)


def test_what_blocks_add_separates_better_than_a_stream_that_stays_changed(ideal):
    values = ideal["P5"].parts[0].values
    missed = [
        5 / 6,
        3 / 6,
        1 / 6,
    ]  # of the other layers, those above the plant are as large in the stream: ties, or more
    assert values[10] == pytest.approx(np.mean(missed))
    assert values[0] < values[10]
    assert set(ideal["P5"].control.parts[0].values) == {0.0}


def test_do_not_hold_on_curves_that_contradict_them():
    found = judged(stays=False)
    assert {id for id, finding in found.items() if finding.verdict != "holds"} == {"P2", "P5"}


@pytest.mark.parametrize(
    ("view", "measure", "id"), [("rise of residual", "debiased CKA", "P18"), ("same input", "distance", "P19")]
)
def test_is_about_one_row(view, measure, id):
    config = replace(PAPER, n_control_spans=0)
    runs = [measured(seed, config) for seed in range(SEEDS)]
    for run in runs:
        for pair in run.of(TRAINED):
            run.curves[pair.name][:, ROW_VIEWS.index(view), MEASURES.index(measure)] = 0
    found = findings_of(config, runs)
    assert [finding.id for finding in found if finding.verdict != "holds"] == [id]


def test_a_given_model_is_not_tuned_and_what_holds_by_construction_is_not_tested():
    given = replace(PAPER, model="somewhere", prompts="prompts.jsonl")
    found = judged(given)
    not_tested = {id: finding.not_tested for id, finding in found.items() if finding.verdict == "not tested"}
    assert set(not_tested) == {"P1", "P7", "P8", "P10"}
    assert "identical by construction" in not_tested["P1"]
    assert found["P4"].control.name == "two draws of noise of 0.002 in all layers"
    assert found["P7"].control is None


def test_what_needs_hooks_that_write_is_not_tested_on_a_read_only_model():
    given = replace(PAPER, model="somewhere", prompts="prompts.jsonl")
    runs = [measured(seed, given) for seed in range(SEEDS)]
    for run in runs:
        for curve in run.curves.values():
            if curve.flags.writeable:
                curve[:, ROW_VIEWS.index("same input")] = np.nan
    runs = [replace(run, restored={name: np.full(L, np.nan) for name in run.restored}) for run in runs]
    found = {finding.id: finding for finding in findings_of(given, runs)}
    for id in ("P6", "P19", "K2"):
        assert found[id].verdict_text == "– not tested: the hooks of this model cannot write"
    assert found["P2"].verdict == "holds"


def test_rounding_is_judged_by_the_largest_value_relative_to_the_threshold():
    assert "threshold, which is 3 times the largest" in judged(replace(PAPER, margin=3.0))["P9"].statement
    for values, worst in ((0.25, 0.5), (np.where(LAYERS == 7, 0.6, 0.1), 1.2), (-0.1, 0.0)):
        found = judged(others={ROUNDED: values + 0.0 * LAYERS})["P9"]
        assert found.measured == pytest.approx(worst)
        assert found.verdict == ("holds" if worst <= 1 else "does not hold")


def test_rounding_that_is_undefined_does_not_hold_and_without_any_is_not_tested():
    assert judged(others={ROUNDED: np.full(L, np.nan)})["P9"].verdict == "does not hold"
    assert judged(others={ROUNDED: np.where(LAYERS == 3, np.nan, 0.1)})["P9"].verdict == "does not hold"
    unchanged = judged(others={ROUNDED: np.zeros(L)})["P9"]
    assert unchanged.verdict_text == "– not tested: its weights are bfloat16 already"


def test_a_model_and_itself_of_which_nothing_is_defined_do_not_pass():
    assert judged(others={NONE: np.full(L, np.nan)})["K1"].verdict == "does not hold"


def test_patching_is_wrong_by_its_largest_deviation_below_or_above():
    """From the last planted layer on, all of the loss is restored; what happens within the plant is not judged."""
    run = measured(5)
    for pair in run.of(TRAINED):
        first, last = pair.truth
        for layer, share, error in ((first - 1, 0.2, 0.2), (first, 0.5, 0.0), (last, 0.7, 0.3), (last + 1, 1.4, 0.4)):
            changed = run.restored[pair.name].copy()
            changed[layer - 1] = share
            one = replace(run, restored={**run.restored, pair.name: changed})
            (k2,) = [finding for finding in findings_of(PAPER, [one]) if finding.id == "K2"]
            assert k2.parts[0].measured == pytest.approx(error)


def test_what_is_not_called_at_all_is_not_misplaced():
    runs = [measured(seed) for seed in range(SEEDS)]
    missed = [
        replace(run, curves={name: 0 * curve if "trained" in name else curve for name, curve in run.curves.items()})
        for run in runs
    ]
    assert {finding.id: finding.verdict for finding in findings_of(PAPER, missed)}["P2"] == "does not hold"
    ends = scores_of(missed, TRAINED, Row("residual", "debiased CKA"))["end"]
    assert ends == pytest.approx(chance_of(TRAINED, "end", missed[0]))


def test_scores_are_per_seed_and_mean_over_plants():
    runs = [measured(10), measured(11, stays=False)]
    row = Row("residual", "debiased CKA")
    assert scores_of(runs, TRAINED, row)["end"].tolist() == [(5 + 3 + 1) / 3, 0]
    runs = [measured(seed, others={ORDER: from_to(4, 6)}) for seed in range(2)]
    control = scores_of(runs, TRAINED, row, measured_on=ORDER)
    assert control["onset"].tolist() == [(2 + 0 + 2) / 3] * 2
    assert control["end"].tolist() == [(3 + 1 + 1) / 3] * 2
    assert control["hit"].tolist() == [(0 + 1 + 0.5) / 3] * 2
