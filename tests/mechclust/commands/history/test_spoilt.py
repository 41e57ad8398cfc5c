"""Each kind of wrong checkpoint, spoilt on disk: it is found, it is named, and nothing else is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from mechclust import measure_history
from tasks import InputError
from tests.mechclust.commands.history.walk import STEPS, UNUSED, loads

PLACE = 1  # of the one that is spoilt, checkpoint-20


@pytest.fixture
def spoil(series, walk, write_step, quick, walked, tmp_path):
    """``spoil(weights, change)`` measures the series with other weights in ``checkpoint-20``, or other files.

    What was measured of the clean ones is there already.
    """
    name = f"checkpoint-{STEPS[PLACE]}"

    def measure(weights=walk[PLACE], change=lambda folder: None):
        spoilt = write_step(tmp_path / name, weights)
        change(spoilt)
        clean = [series / f"checkpoint-{step}" for step in STEPS if step != STEPS[PLACE]]
        shutil.copytree(walked[1], tmp_path / "out")
        config = replace(quick, checkpoints=(*clean, spoilt), probes=("cka",))
        return measure_history(series, config, tmp_path / "out")

    return measure


def configured(**changes):
    """A change of ``config.json``."""

    def change(folder):
        given = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(given | changes))

    return change


def named(result):
    return [(finding.kind, finding.checkpoints) for finding in result.findings]


def test_the_clean_series(walked):
    assert walked[0].findings == []
    assert walked[0].headline.startswith("All 5 checkpoints pass integrity checks.")
    reading = walked[0].readings[0]
    assert (reading.what, reading.where, reading.value) == ("Integrity", "5 checkpoints", "no fault found")
    assert reading.verdict.endswith("one configuration.")


def test_weights_of_the_last_one(spoil, walk):
    assert named(spoil(walk[-1])) == [("last", (PLACE,))]


def test_weights_of_another_one(spoil, walk):
    result = spoil(walk[0])
    assert named(result) == [("equal", (0, PLACE))]
    assert result.findings[0].text == "'checkpoint-10' and 'checkpoint-20' have the same weights."
    (first,) = (each for each in result.readings if each.what.startswith("CKA with the first checkpoint"))
    assert (first.value, first.verdict) == ("not given", "The checkpoints to compare with have findings.")


def test_another_tokenizer(spoil):
    def change(folder):
        given = json.loads((folder / "tokenizer.json").read_text())
        words = given["model"]["vocab"]
        words["w0"], words["w1"] = words["w1"], words["w0"]
        (folder / "tokenizer.json").write_text(json.dumps(given))

    result = spoil(change=change)
    assert named(result) == [("tokenizer", (PLACE,))]
    # Its prompts are read with the last one's tokenizer all the same.
    assert result.findings[0].text == "'checkpoint-20' has another tokenizer than the last."


def test_a_damaged_tokenizer_is_found_before_its_checkpoint_is_loaded(spoil):
    def change(folder):
        (folder / "tokenizer.json").write_text("{")

    with loads() as found, pytest.raises(InputError) as refused:
        spoil(change=change)
    assert found == []
    assert str(refused.value).startswith("checkpoint 'checkpoint-20': cannot load a model from the directory")
    assert str(refused.value).endswith("or save it, again, or leave this checkpoint out")


def test_another_configuration(spoil):
    result = spoil(change=configured(layer_norm_epsilon=0.01))
    assert named(result) == [("config", (PLACE,))]
    said = "'checkpoint-20' has another configuration (layer_norm_epsilon '0.01', not '1e-05')."
    assert result.findings[0].text == said


def test_hidden_states_of_the_last_one(spoil, walk):
    """Its own weights at positions that no prompt reaches, the last one's everywhere else."""
    positions = "transformer.wpe.weight"
    joined = torch.cat([walk[-1][positions][:UNUSED], walk[PLACE][positions][UNUSED:]])
    result = spoil(walk[-1] | {positions: joined})
    assert named(result) == [("states", (PLACE,))]
    text = "'checkpoint-20' has the hidden states of the last checkpoint, with other weights."
    assert result.findings[0].text == text


def test_configurations_that_differ_in_nothing_that_matters(spoil):
    assert spoil(change=configured(_name_or_path="elsewhere", use_cache=False)).findings == []
