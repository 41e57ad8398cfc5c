"""P11 to P17 and K3 on readings made by hand, where each holds, fails, or holds on its control too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.studies import get_study
from mechclust.studies.planted_layers.alike import CONTROL_VIEWS
from mechclust.studies.planted_layers.control_findings import control_findings_of
from mechclust.studies.planted_layers.measure import SIMILARITY_MEASURES
from mechclust.studies.planted_layers.reading import (
    SeedReadings,
    TrioReading,
    in_order,
    no_gain_below,
)
from mechclust.studies.planted_layers.results import PROMPTS
from mechclust.studies.planted_layers.trios import (
    ABOVE,
    ALL_DECAYED,
    BELOW,
    DECAYED,
    EVERYWHERE,
    LONGER,
    SAME,
    trios_of,
)
from tasks import InputError

PAPER = get_study("planted-layers").preset("paper")
L = 8
LAYERS = np.arange(1, L + 1)
SHAPE = (len(PROMPTS), len(CONTROL_VIEWS), len(SIMILARITY_MEASURES), L)
BIASED = list(SIMILARITY_MEASURES).index("CKA")
SAME_INPUT = CONTROL_VIEWS.index("same input")
FIRST = {BELOW: L + 1, ABOVE: L + 1, EVERYWHERE: 2, LONGER: 2, DECAYED: 5, ALL_DECAYED: 5}


def measured(seed, *, first=None, same_input_ends=True, residual_ends=False, biased_misses=True, accuracy=0.9):
    """Return a seed on which every finding holds.

    Args:
        seed: of the run. In seed 0, the gain in the same layers begins a layer late; in seeds 0 to 2, that of E with
            twice the steps does.
        first: by column, the first layer with a gain.
        same_input_ends: whether the gain in what blocks add ends with the trained layers.
        residual_ends: whether that of the residual stream does.
        biased_misses: whether biased CKA shows no gain with few prompts.
        accuracy: of all tuned models on the skills that the base does not know.
    """
    begins = {**FIRST, **(first or {})}

    def reading(trio):
        start = begins.get(trio.column, trio.truth[0] + (seed == 0))
        start += trio.column == LONGER and seed < 3
        gain = np.where(start <= LAYERS, 0.1, -0.01 * (trio.shared == 1))
        tuned = 0.5 + np.broadcast_to(gain, SHAPE)
        dims = np.where(L <= LAYERS, 9.0, 1.0)
        if trio.column == SAME:
            above = trio.truth[1] < LAYERS
            if same_input_ends:
                tuned[:, SAME_INPUT, :, above] = 0.5
            if residual_ends:
                tuned[:, CONTROL_VIEWS.index("residual"), :, above] = 0.5
                dims = np.where(trio.truth[1] <= LAYERS, 9.0, 1.0)
            if biased_misses:
                tuned[PROMPTS.index("few"), :, BIASED] = 0.5
        return TrioReading(trio, np.full(SHAPE, 0.5), tuned, np.zeros(SHAPE), np.stack([dims] * len(PROMPTS)))

    models = {name for trio in trios_of(PAPER) for name in (trio.tuned, f"controls {trio.controls}")}
    learnt = {"copy-0": accuracy, "type-2": accuracy, "known": 0.95}
    accuracies = dict.fromkeys(models, learnt) | {"base": {"copy-0": 0.1, "type-2": 0.0, "known": 0.95}}
    chance = {"copy-0": 0.1, "type-2": 0.4, "known": 0.4}
    return SeedReadings(tuple(map(reading, trios_of(PAPER))), accuracies, chance)


def judged(**changes):
    runs = [measured(seed, **changes) for seed in range(10)]
    return {finding.id: finding for finding in control_findings_of(PAPER, runs)}


@pytest.fixture(scope="module")
def ideal():
    return judged()


def test_hold_on_such_readings_and_not_on_their_controls(ideal):
    assert list(ideal) == [*(f"P{i}" for i in range(11, 18)), "K3"]
    assert {id for id, finding in ideal.items() if finding.verdict != "holds"} == set()
    controls = {id: finding.control.verdict for id, finding in ideal.items() if finding.kind == "finding"}
    assert {id for id, verdict in controls.items() if verdict == "holds"} == set()


@pytest.mark.parametrize(
    ("id", "part", "value", "control"),
    [
        ("P11", 0, 1 / 10, (2.75 + 2.25) / 2),  # no gain: a random layer, off 2 and off 6
        ("P11", 1, 1 / 10, (2.75 + 2.25) / 2),
        ("P12", 0, 1.0, 0.0),
        ("P13", 1, 0.0, (2.25 + 2.75) / 2),  # off 3 and off 7
        ("P14", 0, 3.0, 3 / 10),
        ("P15", 0, 1.0, 0.0),
        ("P16", 0, 1.0, 0.0),
        ("P17", 0, 1 - 1 / 10 / 2, 0.0),
        ("K3", 0, 0.0, None),
    ],
)
def test_values(ideal, id, part, value, control):
    assert ideal[id].parts[part].measured == pytest.approx(value)
    if control is not None:
        assert ideal[id].control.parts[part].measured == pytest.approx(control)


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"first": {SAME: 5}}, {"P11", "P13", "K3"}),  # of layers 6-7 too early
        ({"residual_ends": True}, {"P11", "P12"}),  # a crossing is where a gain stays
        ({"first": {SAME: L + 1}}, {"P11", "P12", "P13", "P17"}),  # what is not found is not misplaced
        ({"same_input_ends": False}, {"P13"}),
        ({"first": {ALL_DECAYED: 2}}, {"P14", "P16"}),  # P16 holds on its control too
        ({"first": {EVERYWHERE: 1, LONGER: 1}}, {"P15"}),
        ({"first": {LONGER: 6}}, {"P14", "P16"}),  # P14 holds on its control too
        ({"biased_misses": False}, {"P17"}),
        ({"first": {BELOW: 3}}, {"K3"}),
    ],
)
def test_do_not_hold_on_readings_that_contradict_them(changes, broken):
    assert {id for id, finding in judged(**changes).items() if finding.verdict != "holds"} == broken


def test_what_the_controls_show_too_is_not_specific():
    found = judged(first={ALL_DECAYED: 2, BELOW: 2, ABOVE: 6})
    assert found["P16"].verdict == "not specific"
    assert found["P11"].verdict == "not specific"
    assert judged(first={LONGER: 6})["P14"].verdict == "not specific"


def test_are_not_tested_if_nothing_was_learnt():
    found = judged(accuracy=0.45)  # the format of type-2's answers was learnt, not which of them is right
    assert {finding.verdict for finding in found.values() if finding.kind == "finding"} == {"not tested"}
    assert found["K3"].verdict == "holds"
    assert "on type-2, 0.05 more correct answers than the base or than without the skill" in found["P11"].not_tested
    assert {finding.verdict for finding in judged(accuracy=0.55).values()} == {"holds"}


def test_are_not_tested_if_the_base_knows_every_skill():
    runs = [
        replace(measured(seed), accuracy={"base": {"a": 0.9}, "E": {"a": 1.0}}, chance={"a": 0.1}) for seed in (0, 1)
    ]
    found = {finding.id: finding for finding in control_findings_of(PAPER, runs)}
    assert {found[f"P{i}"].not_tested for i in range(11, 18)} == {"the base knows every measured skill"}


def test_layer_groups_are_not_tested_with_few_tasks():
    found = control_findings_of(replace(PAPER, n_measured=3), [measured(seed) for seed in range(10)])
    not_tested = {finding.id: finding.not_tested for finding in found if finding.verdict == "not tested"}
    assert not_tested == dict.fromkeys(("P11", "P12", "P14", "P15", "P16"), "3 tasks; layer groups need 4")
    with pytest.raises(InputError, match="n_measured is 1; expected at least 2"):
        replace(PAPER, n_measured=1)


def test_k3_does_not_hold_if_no_gain_below_is_defined():
    run = measured(1)
    undefined = [replace(reading, tuned=np.full(SHAPE, np.nan)) for reading in run.readings]
    assert no_gain_below([run, replace(run, readings=tuple(undefined))]) == pytest.approx([0.0, np.nan], nan_ok=True)
    whole = [reading for reading in run.of(SAME) if reading.trio.shared == 1]
    assert no_gain_below([replace(run, readings=tuple(whole))]) == [0.0]


def test_p14_says_which_rate_the_lowest_block_has(ideal):
    assert "the lowest block has 0.0078 of the rate" in ideal["P14"].note
    found = control_findings_of(replace(PAPER, layer_decay=0.9), [measured(seed) for seed in range(2)])
    (p14,) = [finding for finding in found if finding.id == "P14"]
    assert "the lowest block has 0.48 of the rate" in p14.note


def test_layers_in_another_order_take_all_that_was_measured_with_them():
    order = np.array([7, 0, 1, 2, 3, 4, 5, 6])
    (before,) = measured(1).of(EVERYWHERE)
    (after,) = in_order([measured(1)], order)[0].of(EVERYWHERE)
    assert after.gain[0, 0, 0].tolist() == before.gain[0, 0, 0, order].tolist()
    assert after.dims[0].tolist() == [9.0, *[1.0] * 7]
