"""The findings on real checkpoints, on measurements made by hand."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from tests.real.data import INSTRUCTIONS
from tests.real.findings import findings
from tests.real.fresh_prompts import ENDINGS, INPUTS, WORDINGS, fresh_rows

LAYERS = 31
WORD = np.where(np.arange(LAYERS) < 5, 0.0, 0.8)  # by layer
ACCURACY = np.linspace(0.1, 0.9, LAYERS)


def clusters(shift):
    """Return one run over layers: the best layer is neither the first nor the last."""
    raw = np.zeros(LAYERS)
    raw[12] = 0.3 + shift
    given = np.zeros(LAYERS)
    given[20] = 0.2 + shift
    return {"raw": raw, "given": given, "word": WORD + shift, "accuracy": ACCURACY + shift}


def chat(shift):
    return {"raw": np.linspace(0.0, 0.3, LAYERS) + shift, "accuracy": ACCURACY + shift}


def untrained(shift):
    flat = np.zeros(LAYERS) + shift
    return {"raw": flat, "given": flat, "word": flat, "accuracy": 0.3 + np.linspace(0.2, 0.0, LAYERS) + shift}


def measured(**changes):
    """Return what ``run.py`` gathers, such that every finding holds."""
    masked = {"right": [1.0] * 95 + [0.0] * 5, "untrained": [1.0] * 5 + [0.0] * 95, "commonest": 0.2}
    cka = [np.concatenate([[1.0], np.linspace(0.95, 0.3, 12) + shift]) for shift in (0.0, 0.02, 0.01)]
    topics = {"attention": [1.5, 1.6, 1.4], "chance": [1.2, 1.1, 1.0], "untrained": [0.9, 0.8, 0.7], "source": "texts"}
    found = {
        "checks": {"a": {"failed": 0, "equal": True}, "b": {"failed": 0, "equal": True}},
        "fingerprint": 1e-6,
        "series": [("last", (2,))],
        "masked": {"rxnfp-pretrained": masked, "rxnmapper": masked, "antiberty": masked},
        "capitals": [1.0] * 20,
        "nats": [3.0, 3.1, 2.9],
        "nats_uniform": 12.5,
        "paraphrases": [1.0] * 20,
        "reactions": {
            "real": True,
            "source": "reactions",
            "chance": 0.01,
            "ari": {
                "untrained": [[np.nan, 0.0, 0.01], [np.nan, 0.012, 0.0]],
                "rxnfp-pretrained": [[np.nan, 0.08, 0.0], [np.nan, 0.0, 0.082]],
                "rxnfp-tuned": [[np.nan, 0.2, 0.254], [np.nan, 0.256, 0.2]],
            },
            "cka": cka,
            "cka_untrained": [curve[::-1] for curve in cka],
        },
        "antibodies": [[0.1, 0.6], [0.61, 0.1], [0.62, 0.1]],
        "antibodies_untrained": [[0.0, 0.01], [0.02, 0.0]],
        "antibodies_chance": 0.03,
        "topics": {"Gemma 3": topics, "MiniLM": topics},
        "smollm2": [clusters(0.0), clusters(0.01), clusters(0.02)],
        "smollm2_untrained": [untrained(0.0), untrained(0.01), untrained(0.02)],
        "chat": [chat(0.0), chat(0.01), chat(0.02)],
        "chat_untrained": [untrained(0.0), untrained(0.01), untrained(0.02)],
        "smollm2_controls": {"null_high": 0.01, "given_null_high": 0.01},
    }
    fresh = {key: value for key, value in found.items() if key.startswith(("smollm2", "chat"))}
    return {**found, "fresh": fresh, **changes}


def judged(**changes):
    return {finding.id: finding for finding in findings(measured(**changes))}


@pytest.fixture(scope="module")
def ideal():
    return judged()


def test_hold_on_such_measurements_and_not_on_their_controls(ideal):
    assert {id for id, finding in ideal.items() if finding.verdict != "holds"} == set()
    held = {id for id, finding in ideal.items() if finding.control and finding.control.verdict == "holds"}
    assert held == set()
    assert {id for id, finding in ideal.items() if finding.control is None} == {
        "R1", "R2", "R21", "R6", "R7", "R8", "R12",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("id", "part", "value", "control"),
    [
        ("R3", 0, 0.95, 0.05),
        ("R9", 0, 0.011, 0.255),  # the best layer of each seed
        ("R10", 0, 0.081, 0.011),
        ("R12", 0, 0.174, None),
        ("R13", 0, 0.31, 1.0),  # layer 0 is left out: the last one of the control, which is upside down
        ("R13", 1, 0.96, 0.3 + 0.65 / 11 + 0.01),
        ("R13", 2, -1.0, 1.0),
        ("R14", 0, 0.61, 0.015),
        ("R15", 0, 0.31, 0.01),
        ("R16", 1, 0.4, -0.3),
        ("R16", 2, 0.7, 0.0),
        ("R18", 0, 0.81, 0.01),
        ("R18", 1, 0.81, 0.01),
        ("R19", 0, 0.21, 0.01),
        ("R20", 0, 0.91, 0.31),
        ("R20", 1, 0.1 + 0.8 * 5 / 30 + 0.01, 0.5 - 0.2 * 5 / 30 + 0.01),
        ("R22", 0, 1.0, None),
        ("R22", 1, 0.3 * 29 / 30, 0.0),
        ("R23", 0, 0.91, 0.31),
        ("R20", 2, 0.91 - 0.52, 0.31 - 0.52),  # the best layer of all models with random weights
    ],
)
def test_values_are_those_of_the_right_layers(ideal, id, part, value, control):
    finding = ideal[id]
    assert finding.parts[part].measured == pytest.approx(value)
    if control is not None:
        assert finding.control.parts[part].measured == pytest.approx(control)


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"checks": {"a": {"failed": 1, "equal": True}}}, {"R1"}),
        ({"series": [("last", (1,))]}, {"R21"}),
        ({"nats": [5.0, 5.1, 4.9]}, {"R7"}),
        ({"smollm2": [untrained(0.0), untrained(0.01), untrained(0.02)]}, {"R15", "R18", "R19", "R20"}),
        ({"antibodies": [[0.1, 0.2], [0.1, 0.21], [0.22, 0.1]]}, {"R14"}),
    ],
)
def test_do_not_hold_on_measurements_that_contradict_them(changes, failing):
    assert {id for id, finding in judged(**changes).items() if finding.verdict == "does not hold"} == failing


def test_what_random_weights_show_too_is_not_specific():
    found = judged(smollm2_untrained=[clusters(0.0), clusters(0.01), clusters(0.02)])
    assert {id for id, finding in found.items() if finding.verdict == "not specific"} == {"R15", "R18", "R19"}


def test_fresh_prompts_are_judged_by_the_same_rules(ideal):
    flat = [untrained(0.0), untrained(0.01), untrained(0.02)]
    fresh = {**measured()["fresh"], "smollm2": flat, "chat": flat}
    verdicts = {id: finding.verdict for id, finding in judged(fresh=fresh).items()}
    assert {verdicts[id] for id in ("R18", "R19", "R20", "R22", "R23")} == {"holds"}
    assert {verdicts[id] for id in ("R24", "R25", "R26", "R27", "R28")} == {"does not hold"}
    assert {ideal[id].verdict for id in ("R24", "R25", "R26", "R27", "R28")} == {"holds"}


def test_fresh_prompts_are_new_and_balanced():
    known = [json.loads(line) for line in INSTRUCTIONS.read_text().splitlines()]
    rows = fresh_rows()
    assert len(rows) == len({row["prompt"] for row in rows}) == len(known)
    assert {row["task"] for row in rows} == {row["task"] for row in known}
    assert not {row["input"] for row in rows} & {row["input"] for row in known}
    for task in WORDINGS:
        of_task = [row for row in rows if row["task"] == task]
        words = Counter(row["prompt"].split()[-1] for row in of_task)
        assert {word: n for word, n in words.items() if word.endswith(":")} == dict.fromkeys(ENDINGS[:4], 5), task
        assert {row["input"] for row in of_task} == set(INPUTS), task


def test_generated_reactions_test_nothing():
    reactions = measured()["reactions"] | {"real": False}
    found = judged(reactions=reactions)
    assert {id for id, finding in found.items() if finding.verdict == "not tested"} == {f"R{i}" for i in range(9, 14)}
