"""The order of a series, from the names of its checkpoints. No weights are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechclust import HistoryConfig
from mechclust.commands.history.series import find_series
from tasks import InputError


@pytest.fixture
def found(tmp_path):
    """The names and steps of folders with these names, given in this order."""

    def find(*names):
        for name in names:
            (tmp_path / name).mkdir()
        config = HistoryConfig(tmp_path / "prompts.jsonl", checkpoints=tuple(tmp_path / name for name in names))
        return [(checkpoint.name, checkpoint.step) for checkpoint in find_series("gpt2", config)]

    return find


def test_steps_are_numbers(found):
    assert found("checkpoint-100", "checkpoint-1000", "checkpoint-50") == [
        ("checkpoint-50", 50),
        ("checkpoint-100", 100),
        ("checkpoint-1000", 1000),
    ]


@pytest.mark.parametrize("last", ["checkpoint-final", "last", "main"])
def test_the_finished_model_is_the_last(found, last):
    assert found("step20", last, "step3") == [("step3", 3), ("step20", 20), (last, None)]


def test_a_step_is_told_from_other_numbers(found):
    names = ("step1000-tokens4B", "step2000-tokens3B", "epoch=1-step=3000.v2", "v1.5-checkpoint_4000", "epoch0-5000")
    assert found(*reversed(names)) == list(zip(names, (1000, 2000, 3000, 4000, 5000), strict=True))


def test_words_that_hold_a_word_for_steps(found):
    assert [step for _, step in found("writer2-200", "writer2-100")] == [100, 200]


def test_fractions_are_no_steps(found):
    names = ("v1.0", "v1.1", "epoch-0.5")
    assert found(*names) == [(name, None) for name in names]


def test_a_last_name_may_have_a_fraction(found):
    assert found("qwen2.5-final", "checkpoint-100") == [("checkpoint-100", 100), ("qwen2.5-final", None)]


def test_names_without_any_number_are_in_the_given_order(found):
    assert found("late", "early", "final") == [("late", None), ("early", None), ("final", None)]


@pytest.mark.parametrize("names", [("checkpoint-100", "best", "checkpoint-50"), ("step1", "step2", "final", "best")])
def test_a_name_without_a_step_beside_others(found, names):
    with pytest.raises(InputError, match="no step in the name 'best'; leave this checkpoint out, or rename it"):
        found(*names)


def test_a_step_that_is_no_whole_number(found):
    with pytest.raises(InputError, match=r"the step 0\.5 of 'step-0\.5' is no whole number; leave"):
        found("step-0.5", "step-1.0", "step-1.25")


def test_a_folder_given_as_a_dot_has_its_name(tmp_path, monkeypatch):
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}").mkdir()
    monkeypatch.chdir(tmp_path / "checkpoint-2")
    config = HistoryConfig(tmp_path / "prompts.jsonl", checkpoints=(Path(), Path("../checkpoint-1")))
    assert [checkpoint.name for checkpoint in find_series("gpt2", config)] == ["checkpoint-1", "checkpoint-2"]
