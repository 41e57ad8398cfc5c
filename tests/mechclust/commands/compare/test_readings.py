"""Conclusions from results made up by hand: where change begins, who stands out, and what cannot be decided."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from mechclust.commands.compare.readings import naming_rule
from tests.mechclust.commands.compare.cases import found

nan = np.nan
TASKS = ["sentence", "word", "sum", "list"]


def around(change, spread=0.05, without=()):
    """Change with both ends of its interval; ``(layer, task)`` in ``without`` have none."""
    change = np.array(change, dtype=float)
    low, high = change - spread, change + spread
    for place in without:
        low[place] = high[place] = nan
    return change, low, high


def rows(result, what):
    """Where and value of the readings of a kind."""
    return [(reading.where, reading.value) for reading in result.readings if reading.what == what]


@pytest.fixture
def only_sentence():
    """Only one task changed, and it has no interval at layer 0, where its last tokens are three."""
    changes = around([[0.184, 0, 0, 0], [0.2, 0, 0, 0], [0.3, 0, 0, 0]], spread=0.005, without=[(0, 0)])
    return found(*changes, tasks=TASKS)


class TestOneIntervalIsMissing:
    def test_the_task_stands_out(self, only_sentence):
        table = only_sentence.summary().set_index("task")
        assert table["stands_out"].to_dict() == {"sentence": True, "word": False, "sum": False, "list": False}
        assert table.loc["sentence", ["change", "low", "high"]].tolist() == pytest.approx([0.25, 0.245, 0.255])
        assert set(table["layers"]) == {"1-2"}  # the same for every task, and for change and interval
        assert table["no_interval_layers"].tolist() == ["0", "", "", ""]
        assert only_sentence.headline == "Layers that changed: 1-2 of 0-2. Tasks that stand out: sentence."
        assert rows(only_sentence, "Stands out") == [("layers 1-2", "sentence 0.25 (0.24 to 0.26)")]
        others = "Most changed task that does not stand out"
        assert rows(only_sentence, others) == [("layers 1-2", "word 0.00 (0.00 to 0.01)")]

    def test_its_cause_is_told(self, only_sentence):
        (reading,) = (reading for reading in only_sentence.readings if reading.what == "No interval")
        assert (reading.where, reading.value) == ("layer 0", "sentence (1 - CKA at most 0.18)")
        assert reading.verdict.startswith("30 prompts: too few, or too alike")
        assert reading.verdict.endswith("It is not known whether they changed or stand out.")

    def test_where_it_is_open_it_is_missing(self, only_sentence):
        table = only_sentence.to_dataframe().set_index(["task", "layer"])
        assert table.loc[("sentence", 0), ["changed", "stands_out"]].isna().all()
        assert table.loc[("sentence", 1), "stands_out"] is True
        assert table.loc[("word", 1), "stands_out"] is False
        assert only_sentence.by_layer()["no_interval"].tolist() == [1, 0, 0]

    def test_where_it_is_the_only_change(self):
        """At layer 0 alone: nothing can be said of it, and that is said."""
        changes = around([[0.184, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], spread=0.005, without=[(0, 0)])
        result = found(*changes, tasks=TASKS)
        assert result.headline == (
            "No layer is known to have changed: the 95% interval of 1 - CKA reaches down to the tolerance of 0.01, "
            "where there is one."
        )
        assert rows(result, "No interval") == [("layer 0", "sentence (1 - CKA at most 0.18)")]

    def test_no_interval_anywhere(self):
        without = [(i, 0) for i in range(3)]
        changes = around([[0.184, 0, 0, 0], [0.2, 0, 0, 0], [0.3, 0, 0, 0]], spread=0.005, without=without)
        result = found(*changes, tasks=TASKS, n=[6, 30, 30, 30])
        row = result.summary().iloc[0]
        assert (row["task"], row["change"], row["layers"]) == ("sentence", pytest.approx(0.228), "0-2")
        assert (row["largest"], row["at_layer"], row["no_interval_layers"]) == (pytest.approx(0.3), 2, "0-2")
        assert row[["low", "high", "stands_out"]].isna().all()
        assert rows(result, "Stands out") == [("layers 0-2", "no task")]
        assert rows(result, "Least changed task") == [("layers 0-2", "list 0.00 (0.00 to 0.01)")]
        assert rows(result, "Not compared") == [("layers 0-2", "sentence")]
        (reading,) = (reading for reading in result.readings if reading.what == "No interval")
        assert (reading.where, reading.value) == ("layers 0-2", "sentence (1 - CKA at most 0.30)")
        assert reading.verdict.startswith("6 prompts: too few")

    def test_tasks_with_the_same_lack_share_a_reading(self):
        changes = around([[0.1, 0.2, 0.3], [0.1, 0.1, 0.1]], without=[(0, 0), (0, 1)])
        result = found(*changes)
        assert rows(result, "No interval") == [("layer 0", "a and b (1 - CKA at most 0.20)")]

    def test_two_tasks_without_one_in_common(self):
        result = found(*around([[0.1, 0.2], [0.1, 0.2]], without=[(0, 0), (1, 1)]))
        assert result.summary()["stands_out"].isna().all()
        assert rows(result, "Stands out") == [("no layer", "unknown: no layer has intervals of two tasks")]
        assert result.headline.endswith("Tasks that stand out: unknown.")

    @pytest.mark.parametrize(
        ("change", "without", "together", "layers"),
        [
            (0.3, [(0, 0), (0, 1), (1, 0), (1, 1)], [[0, 0, 0], [0.3, 0.295, 0.305]], "1"),
            (0.3, [(0, 0), (0, 1), (1, 0), (1, 1)], None, "none is known to"),
            (0.0, [], None, "none"),
        ],
    )
    def test_the_residual_stream(self, change, without, together, layers):
        result = found(*around([[0, 0], [change, change]], 0.005, without), together=together)
        result = replace(result, blocks=result.cka)
        assert rows(result, "Layers after which the residual stream differs") == [("", layers)]


class TestWhereChangeBegins:
    def test_the_first_layer_by_depth_not_the_largest(self):
        changes = around([[0, 0], [0, 0], [0.2, 0], [0.4, 0.1], [0.6, 0.2]], spread=0.005)
        result = found(*changes)
        assert result.summary()["begins_at"].tolist() == [2, 3]
        assert rows(result, "Change begins") == [("layer 2", "a"), ("layer 3", "b")]
        assert result.readings[0].verdict.endswith("whose 95% interval of 1 - CKA lies above 0.01.")
        assert result.headline.startswith("Layers that changed: 2-4 of 0-4.")
        (layers,) = (reading for reading in result.readings if reading.what.startswith("Layers that changed"))
        assert layers.value == "2-4"
        assert "Later layers are computed from earlier ones and inherit their change" in layers.verdict
        assert rows(result, "Largest mean 1 - CKA over tasks") == [("layer 4", "0.40")]
        assert rows(result, "Least mean 1 - CKA over tasks") == [("layer 0", "0.00")]

    def test_it_may_begin_before_where_there_is_no_interval(self):
        changes = around([[0.5, 0], [0.005, 0], [0.2, 0]], spread=0.005, without=[(0, 0), (1, 0)])
        result = found(*changes)
        assert rows(result, "Change may begin") == [("layer 0", "a")]  # at layer 1 it is too small

    def test_all_prompts_together(self):
        """No task changed by itself, but their places among one another did."""
        together = [[0, 0, 0], [0.639, 0.5, 0.7], [0.1, 0.005, 0.2]]
        result = found(*around(np.zeros((3, 2)), spread=0.005), together=together)
        table = result.to_dataframe().set_index(["task", "layer"])
        assert table.loc["(all)", "changed"].tolist() == [False, True, False]
        assert table.loc["(all)", "stands_out"].isna().all()  # it is no task
        assert rows(result, "Change begins") == [("layer 1", "all prompts together")]
        assert rows(result, "Layers that changed for at least one task") == [("", "none")]
        together[1] = [0.639, nan, nan]
        table = found(*around(np.zeros((3, 2))), together=together).to_dataframe()
        assert table[table["task"] == "(all)"]["changed"].isna().tolist() == [False, True, False]

    def test_many_tasks_are_not_all_named(self):
        result = found(*around(np.full((2, 8), 0.5)))
        assert rows(result, "Change begins") == [("layer 0", "a, b, c, d, e, f and 2 others")]


class TestUndefined:
    """CKA that is NaN is neither a change nor none."""

    def test_everywhere(self):
        result = found(*around(np.full((3, 2), nan)))
        assert "undefined at every layer" in result.headline
        assert "No layer changed" not in " ".join(result.sentences)
        assert rows(result, "Layers that changed for at least one task") == [("", "none is known to have")]

    def test_at_some_layers(self):
        result = found(*around([[nan, nan], [nan, 0], [0, 0]], spread=0.005))
        assert rows(result, "No CKA") == [("layer 0", "a and b"), ("layer 1", "a")]
        assert result.headline.startswith("No layer is known to have changed")

    def test_only_all_prompts_together_are_known_to_have_changed(self):
        together = [[0, 0, 0], [0.6, 0.5, 0.7], [0.6, 0.5, 0.7]]
        result = found(*around(np.full((3, 2), nan)), together=together)
        assert rows(result, "Change begins") == [("layer 1", "all prompts together")]
        assert rows(result, "Layers that changed for at least one task") == [("", "none is known to have")]


class TestLayers:
    def test_by_depth(self):
        assert found(*around([[0.1, 0], [0.5, 0], [0.3, 0]])).by_layer()["layer"].tolist() == [0, 1, 2]

    def test_means_over_other_tasks_are_not_compared(self):
        """At layer 0 only the task that changed most has a CKA: that layer's mean is not the largest."""
        result = found(*around([[0.8, nan, nan], [0.6, 0.1, 0.1], [0.9, 0.1, 0.1]]))
        assert result.by_layer()["tasks"].tolist() == [1, 3, 3]
        assert rows(result, "Largest mean 1 - CKA over tasks") == [("layer 2", "0.37")]
        assert rows(result, "Least mean 1 - CKA over tasks") == [("layer 1", "0.27")]


def test_what_rounds_to_zero_has_no_sign():
    result = found(*around([[-1e-5, -4e-5], [-2e-5, 0.5], [-3e-5, 0.5]], spread=3e-5))
    said = " ".join([*result.sentences, naming_rule(result), *result.caveats, result._repr_html_()])
    assert not re.search(r"-0\.0+\b", said)
    assert rows(result, "Least mean 1 - CKA over tasks") == [("layer 0", "0.00")]


def test_models_of_one_name_are_told_apart_by_their_folders():
    result = found(*around([[0.5, 0.1]]))
    assert result.title == "What tuning changed: tuned against base"
    alike = replace(result, base="runs/old/model", tuned="runs/new/model")
    assert alike.title == "What tuning changed: runs/new/model against runs/old/model"


def test_why_there_is_no_cka():
    changes = around([[nan, nan], [0.5, 0.1]])
    assert "No CKA, layer 0: a and b. 30 prompts: too few, or too alike" in " ".join(found(*changes).sentences)


def test_the_rule_says_over_which_layers(only_sentence):
    rule = naming_rule(only_sentence)
    assert "over the layers at which every compared task has an interval (layers 1-2)" in rule
