"""What is said of results made up by hand: where change begins, who stands out, and what cannot be told."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mechclust.commands.compare.report import rule, what_to_know
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


@pytest.fixture
def only_sentence():
    """Only one task changed, and it has no interval at layer 0, where its last tokens are three."""
    changes = around([[0.184, 0, 0, 0], [0.2, 0, 0, 0], [0.3, 0, 0, 0]], spread=0.005, without=[(0, 0)])
    return found(*changes, tasks=TASKS, distinct={("hook_embed", "sentence"): 3})


class TestOneIntervalIsMissing:
    def test_the_task_stands_out(self, only_sentence):
        table = only_sentence.summary().set_index("task")
        assert table["stands_out"].to_dict() == {"sentence": True, "word": False, "sum": False, "list": False}
        assert table.loc["sentence", ["change", "low", "high"]].tolist() == pytest.approx([0.25, 0.245, 0.255])
        assert set(table["layers"]) == {"1-2"}  # the same for every task, and for change and interval
        assert table["no_interval_layers"].tolist() == ["0", "", "", ""]
        assert only_sentence.sentences[2] == (
            "Over layers 1-2, sentence (0.25, 0.24 to 0.26) stands out (mean 1 - CKA and 95% over prompts), against at "
            "most 0.00 (word) for the others."
        )

    def test_its_cause_is_told(self, only_sentence):
        assert only_sentence.sentences[3] == (
            "No interval for sentence at layer 0: its prompts' hidden states take only 3 values there (1 - CKA there: "
            "0.18). Without one it cannot be told whether a task changed there, nor whether it stands out."
        )
        assert not any("too few" in note for note in [*only_sentence.sentences, *what_to_know(only_sentence)])

    def test_where_it_is_open_it_is_missing(self, only_sentence):
        table = only_sentence.to_dataframe().set_index(["task", "layer"])
        assert table.loc[("sentence", 0), ["changed", "stands_out"]].isna().all()
        assert table.loc[("sentence", 1), "stands_out"] is True
        assert table.loc[("word", 1), "stands_out"] is False
        assert only_sentence.by_layer()["no_interval"].tolist() == [1, 0, 0]

    def test_where_it_is_the_only_change(self):
        """At layer 0 alone: nothing can be said of it, and that is said."""
        changes = around([[0.184, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], spread=0.005, without=[(0, 0)])
        result = found(*changes, tasks=TASKS, distinct={("hook_embed", "sentence"): 3})
        assert result.sentences[0] == (
            "No layer is known to have changed: wherever there is one, the 95% interval of 1 - CKA reaches down "
            "to the tolerance of 0.01."
        )
        assert any(said.startswith("No interval for sentence at layer 0") for said in result.sentences)

    def test_no_interval_anywhere(self):
        without = [(i, 0) for i in range(3)]
        changes = around([[0.184, 0, 0, 0], [0.2, 0, 0, 0], [0.3, 0, 0, 0]], spread=0.005, without=without)
        result = found(*changes, tasks=TASKS, n=[6, 30, 30, 30])
        row = result.summary().iloc[0]
        assert (row["task"], row["change"], row["layers"]) == ("sentence", pytest.approx(0.228), "0-2")
        assert row[["low", "high", "stands_out"]].isna().all()
        assert result.sentences[1] == (
            "Over all layers, no task stands out of those that can be compared: mean 1 - CKA is 0.00 (list) to 0.00 "
            "(word; 95% over prompts 0.00 to 0.01)."
        )
        assert result.sentences[2] == (
            "Whether these stand out cannot be told, and they are not compared: sentence (no interval at layers 0-2; "
            "largest 1 - CKA 0.30, at layer 2)."
        )
        assert result.sentences[3].startswith(
            "No interval for sentence at layers 0-2: half of its 6 prompts are too few for one (1 - CKA there: at most "
            "0.30). Without"
        )

    def test_tasks_with_the_same_lack_share_a_sentence(self):
        changes = around([[0.1, 0.2, 0.3], [0.1, 0.1, 0.1]], without=[(0, 0), (0, 1)])
        distinct = {("hook_embed", "a"): 3, ("hook_embed", "b"): 5}
        assert (
            found(*changes, distinct=distinct)
            .sentences[3]
            .startswith(
                "No interval for a and b at layer 0: their prompts' hidden states take only 3 to 5 values there (1 - "
                "CKA there: at most 0.20, for b)."
            )
        )

    def test_two_tasks_without_one_in_common(self):
        result = found(*around([[0.1, 0.2], [0.1, 0.2]], without=[(0, 0), (1, 1)]))
        assert result.summary()["stands_out"].isna().all()
        assert result.sentences[2] == "No task can be compared with another: no layer has an interval for two tasks."


class TestWhereChangeBegins:
    def test_the_first_layer_by_depth_not_the_largest(self):
        changes = around([[0, 0], [0, 0], [0.2, 0], [0.4, 0.1], [0.6, 0.2]], spread=0.005)
        result = found(*changes)
        assert result.summary()["begins_at"].tolist() == [2, 3]
        assert result.sentences[0] == (
            "Change begins at layer 2 for a and at layer 3 for b: the first layer, by depth, where the 95% interval of "
            "1 - CKA lies above 0.01."
        )
        assert result.sentences[1] == (
            "Layers that changed for at least one task: 2-4 of 0-4; 1 - CKA is largest at layer 4 (0.40 on average "
            "over tasks), least at layer 0 (0.00). Later layers are computed from earlier ones and inherit their "
            "change: tuning need not have altered them, not even the one where it is largest."
        )

    def test_it_may_begin_before_where_there_is_no_interval(self):
        changes = around([[0.5, 0], [0.005, 0], [0.2, 0]], spread=0.005, without=[(0, 0), (1, 0)])
        result = found(*changes, distinct={("hook_embed", "a"): 2, ("blocks.0.hook_resid_post", "a"): 2})
        assert result.sentences[0].endswith(
            " For a it may begin at layer 0: there is a change there, but no interval."  # at layer 1 it is too small
        )

    def test_all_prompts_together(self):
        """No task changed by itself, but their places among one another did."""
        together = [[0, 0, 0], [0.639, 0.5, 0.7], [0.1, 0.005, 0.2]]
        result = found(*around(np.zeros((3, 2)), spread=0.005), together=together)
        table = result.to_dataframe().set_index(["task", "layer"])
        assert table.loc["(all)", "changed"].tolist() == [False, True, False]
        assert table.loc["(all)", "stands_out"].isna().all()  # it is no task
        assert result.sentences[:2] == [
            "Change begins at layer 1 for all prompts together: the first layer, by depth, where the 95% interval of "
            "1 - CKA lies above 0.01.",
            "No layer changed for any single task.",
        ]
        together[1] = [0.639, nan, nan]
        table = found(*around(np.zeros((3, 2))), together=together).to_dataframe()
        assert table[table["task"] == "(all)"]["changed"].isna().tolist() == [False, True, False]

    def test_many_tasks_are_not_all_named(self):
        result = found(*around(np.full((2, 8), 0.5)))
        assert result.sentences[0].startswith("Change begins at layer 0 for a, b, c, d, e, f and 2 others: the first")


class TestUndefined:
    """CKA that is NaN is neither a change nor none."""

    def test_everywhere(self):
        said = " ".join(found(*around(np.full((3, 2), nan))).sentences)
        assert "undefined at every layer" in said
        assert "No layer changed" not in said

    def test_at_some_layers(self):
        result = found(*around([[nan, nan], [nan, 0], [0, 0]], spread=0.005))
        said = " ".join(result.sentences)
        assert "CKA is undefined at layers 0-1 for a and at layer 0 for b" in said
        assert "No layer changed" not in said
        assert "No layer is known to have changed" in said

    def test_only_all_prompts_together_are_known_to_have_changed(self):
        together = [[0, 0, 0], [0.6, 0.5, 0.7], [0.6, 0.5, 0.7]]
        said = " ".join(found(*around(np.full((3, 2), nan)), together=together).sentences)
        assert "Change begins at layer 1 for all prompts together" in said
        assert "No layer is known to have changed for any single task." in said


class TestLayers:
    def test_by_depth(self):
        assert found(*around([[0.1, 0], [0.5, 0], [0.3, 0]])).by_layer()["layer"].tolist() == [0, 1, 2]

    def test_means_over_other_tasks_are_not_compared(self):
        """At layer 0 only the task that changed most has a CKA: that layer's mean is not the largest."""
        result = found(*around([[0.8, nan, nan], [0.6, 0.1, 0.1], [0.9, 0.1, 0.1]]))
        assert result.by_layer()["tasks"].tolist() == [1, 3, 3]
        assert "largest at layer 2 (0.37 on average over tasks), least at layer 1 (0.27)" in result.sentences[1]


def test_what_rounds_to_zero_has_no_sign():
    result = found(*around([[-1e-5, -4e-5], [-2e-5, 0.5], [-3e-5, 0.5]], spread=3e-5))
    said = " ".join([*result.sentences, rule(result), *what_to_know(result), result._repr_html_()])
    assert not re.search(r"-0\.0+\b", said)
    assert "least at layer 0 (0.00)" in said


def test_why_there_is_no_cka():
    changes = around([[nan, nan], [0.5, 0.1]])
    one = {("hook_embed", "a"): 1, ("hook_embed", "b"): 1}
    assert "Layer 0 has no CKA for a and b: the prompts' hidden states do not differ there" in " ".join(
        what_to_know(found(*changes, distinct=one))
    )
    two = {**one, ("hook_embed", "b"): 2}
    assert "take only 1 to 2 values there, or are all equally far apart" in " ".join(
        what_to_know(found(*changes, distinct=two))
    )


def test_the_rule_says_over_which_layers(only_sentence):
    assert "over the layers at which every compared task has an interval (layers 1-2)" in rule(only_sentence)
