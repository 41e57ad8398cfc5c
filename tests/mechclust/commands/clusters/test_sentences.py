"""What is said of numbers that are given: right in every case, each with chance and random weights."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from mechclust.commands.clusters.follow import Followed
from mechclust.commands.clusters.readings import LabelVerdict, label_verdict, read_label
from mechclust.commands.clusters.sentences import agreements, details
from mechclust.commands.clusters.sentences import conclusion as concluded

LAYERS = range(4)
LOW, HIGH = [0.01, 0.02, 0.01, 0.0], [0.4, 0.9, 0.6, 0.3]
NONE, SOME = [0.9, 0.7, 0.8, 0.5], [0.4, 0.001, 0.001, 0.2]


def _kind(name):
    return "label" if name in ("task", "topic") else "feature"


def followed(alike=(), p=0.001, untrained=np.nan, **means):
    """Candidates with their mean agreement, the same at every layer but for layer 2, which has more by .02."""
    rows = [
        {"layer": k, "name": name.replace("_", " "), "kind": _kind(name), "n_values": 3, "ami": m + 0.02 * (k == 2)}
        for k in LAYERS
        for name, m in means.items()
    ]
    table = pd.DataFrame(rows, columns=["layer", "name", "kind", "n_values", "ami"])
    table = table.assign(p_corrected=p, untrained=untrained, untrained_high=untrained)
    names = sorted({row["name"] for row in rows})
    near = {(a, b): 0.95 if {a, b} == set(alike) else 0.1 for a in names for b in names}
    return Followed(table, near)


def a_table(ari=LOW, p=NONE, given=None, given_p=NONE, accuracy=None, linear_p=NONE, fresh=None):
    columns = {"layer": list(LAYERS), "label": "task", "ari": ari, "null_low": -0.05, "null_high": 0.06, "p_value": p}
    if given is not None:
        columns |= {"given_ari": given, "given_null_low": -0.03, "given_null_high": 0.04, "given_p": given_p}
    if accuracy is not None:
        columns |= {"accuracy": accuracy, "accuracy_low": np.array(accuracy) - 0.05, "linear_p": linear_p}
        columns |= {"linear_null_low": 0.28, "linear_null_high": 0.39}
    names = {"ari": "untrained", "given": "untrained_given", "linear": "untrained_accuracy"}
    for key, values in (fresh or {}).items():
        columns |= {names[key]: values, f"{names[key]}_high": values}
    return pd.DataFrame(columns)


def conclusion(table, found, given, asked=(1000, 1000), told=None, **further):
    """Of the task's table, and those of further labels."""
    readings = {label: read_label(rows, asked) for label, rows in {"task": table, **further}.items()}
    return concluded(readings, found, given, told)


class TestConclusion:
    def test_another_thing_is_followed_and_the_task_is_under_it(self):
        table = a_table(
            given=HIGH,
            given_p=SOME,
            accuracy=[0.3, 0.5, 0.8, 0.7],
            linear_p=[0.5, 0.01, 0.01, 0.01],
            fresh={"ari": LOW, "given": [0.0] * 4, "linear": [0.35, 0.34, 0.33, 0.32]},
        )
        first, second = conclusion(table, followed(last_word=0.84, task=-0.02), "last word")
        assert first == (
            "The clusters of the hidden states follow the prompts' last word (adjusted mutual information 0.85 on "
            "average over layers 1-3, 0.86 at layer 2; chance 0; not compared with random weights), not the task "
            "(adjusted Rand index at most 0.020, at layer 1, chance -0.050 to 0.060)."
        )
        assert second == (
            "The task is still present: given the prompts' last word, its index is 0.900 at layer 1 (chance "
            "-0.030 to 0.040; p = 0.001; random weights 0.000), and a linear classifier reads it with accuracy 0.80 "
            "at layer 2 (chance 0.28 to 0.39; p = 0.01; random weights 0.33, at most 0.35 (layer 0))."
        )

    def test_what_parts_the_prompts_alike_is_told_together(self):
        found = followed(alike=("last token", "last word"), last_word=0.84, last_token=0.6)
        first, _ = conclusion(a_table(accuracy=LOW), found, None)
        assert "follow the prompts' last word (or the prompts' last token, nearly the same in these prompts) (" in first

    def test_a_further_label_is_followed_in_part_and_the_task_less(self):
        first, _ = conclusion(a_table(HIGH, SOME, accuracy=LOW), followed(topic=0.3, task=0.2), "topic")
        assert first == (
            "The clusters of the hidden states follow the label 'topic' in part (adjusted mutual information 0.31 on "
            "average over layers 1-3, 0.32 at layer 2; chance 0; not compared with random weights), and the task less "
            "(adjusted Rand index at most 0.900, at layer 1, chance -0.050 to 0.060; above chance at layers 1-2 of "
            "0-3; not compared with random weights)."
        )

    def test_the_task_is_followed(self):
        table = a_table(HIGH, SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4, fresh={"ari": LOW, "linear": [0.4] * 4})
        first, second = conclusion(table, followed(task=0.8, length=0.1), None)
        assert first == (
            "The clusters of the hidden states follow the task, more than random weights do (adjusted Rand index at "
            "most 0.900, at layer 1, chance -0.050 to 0.060; above chance at layers 1-2 of 0-3; random weights at most "
            "0.020, at layer 1)."
        )
        assert second == (
            "A linear classifier reads the task with accuracy 0.90 at layer 0 (chance 0.28 to 0.39; p = 0.01; random "
            "weights 0.40)."
        )

    def test_random_weights_reach_the_same_index(self):
        table = a_table(HIGH, SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4, fresh={"ari": [0.9, 0.1, 0.1, 0.1]})
        first, _ = conclusion(table, followed(task=0.8), None)
        assert "agree with the task no more than random weights do (" in first
        assert "random weights at most 0.900, at layer 0" in first
        assert "follow the task" not in first
        only_a_little, _ = conclusion(table, followed(task=0.05), None)
        assert "agree with the task no more than random weights do (" in only_a_little
        less, _ = conclusion(table, followed(last_word=0.8, task=0.2), None)
        assert "and the task less, no more than random weights (" in less

    def test_random_weights_reach_the_same_accuracy(self):
        table = a_table(HIGH, SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4, fresh={"linear": [0.88] * 4})
        for options in ({}, {"told": "last word"}):
            _, second = conclusion(table, followed(task=0.8), None, **options)
            assert second.endswith("; random weights 0.88), no more than random weights.")

    def test_a_feature_is_compared_with_random_weights(self):
        table = a_table(fresh={"ari": LOW})
        first, _ = conclusion(table, followed(last_word=0.84, untrained=0.46), None)
        assert "follow the prompts' last word, more than random weights do (" in first
        assert "; random weights 0.46 on average)" in first
        first, _ = conclusion(table, followed(last_word=0.84, untrained=0.84), None)
        assert "agree with the prompts' last word no more than random weights do (" in first

    def test_without_random_weights_it_is_said(self):
        table = a_table(HIGH, SOME, given=HIGH, given_p=SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4)
        for means, given in (({"task": 0.8}, None), ({"last_word": 0.8}, "last word"), ({"task": 0.05}, None)):
            for sentence in conclusion(table, followed(**means), given):
                assert "not compared with random weights)" in sentence
        assert "This was not compared with random weights." in details(table, "task", None, 0, (1000, 1000))

    def test_a_further_label_that_random_weights_show_as_much(self):
        topic = a_table(HIGH, SOME, fresh={"ari": [0.95] * 4})
        first, _ = conclusion(a_table(accuracy=LOW), followed(topic=0.8), None, topic=topic)
        assert "agree with the label 'topic' no more than random weights do (" in first
        topic = a_table(HIGH, SOME, fresh={"ari": LOW})
        first, _ = conclusion(a_table(accuracy=LOW), followed(topic=0.8), None, topic=topic)
        assert "follow the label 'topic', more than random weights do (" in first

    def test_nothing_anywhere(self):
        table = a_table(given=LOW, accuracy=[0.3, 0.35, 0.3, 0.3], fresh={"linear": [0.3] * 4})
        found = followed(p=0.6, length=0.03, task=0.01, first_word=0.02)
        first, second = conclusion(table, found, "length")
        assert first == (
            "The clusters of the hidden states are not shown to follow the task (adjusted Rand index at most 0.020, "
            "at layer 1, chance -0.050 to 0.060), nor any of the 2 other labels and surface features looked at "
            "(highest: the prompts' length, adjusted mutual information 0.04 on average over layers 1-3, 0.05 at layer "
            "2; chance 0)."
        )
        assert second == (
            "Nor do other measures show the task: given the prompts' length, its index is at most 0.020 "
            "at layer 1 (chance -0.030 to 0.040; not above chance), and a linear classifier reads it with accuracy at "
            "most 0.35 at layer 1 (chance 0.28 to 0.39; not above chance; random weights 0.30)."
        )

    def test_nothing_else_to_follow(self):
        first, _ = conclusion(a_table(accuracy=LOW), followed(p=0.6, task=0.01), None)
        assert first == (
            "The clusters of the hidden states are not shown to follow the task (adjusted Rand index at most 0.020, at "
            "layer 1, chance -0.050 to 0.060)."
        )
        first, _ = conclusion(a_table(accuracy=LOW), followed(p=0.6, task=0.01, length=0.0), None)
        assert "), nor the prompts' length (adjusted mutual information" in first

    def test_a_little_of_the_task(self):
        found = followed(task=0.05, length=0.03)
        first, _ = conclusion(a_table(HIGH, SOME, accuracy=LOW), found, None)
        assert first.startswith(
            "The clusters of the hidden states agree a little with the task (adjusted Rand index at most 0.900, at "
            "layer 1, chance -0.050 to 0.060; above chance at layers 1-2 of 0-3; not compared with random weights), "
            "and do not follow the prompts' length"
        )

    def test_only_a_linear_classifier(self):
        table = a_table(
            given=LOW,
            accuracy=[0.3, 0.5, 0.8, 0.7],
            linear_p=[0.01] * 4,
            fresh={"given": LOW, "linear": [0.3, 0.4, 0.35, 0.3]},
        )
        _, second = conclusion(table, followed(length=0.6), "length")
        assert second == (
            "The task is still present: a linear classifier reads it with accuracy 0.80 at layer 2 (chance 0.28 "
            "to 0.39; p = 0.01; random weights 0.35, at most 0.40 (layer 1)), while given the prompts' length, its "
            "index is at most 0.020 at layer 1 (chance -0.030 to 0.040; not above chance; random weights 0.020)."
        )

    def test_a_classifier_that_random_weights_allow_too(self):
        """.80 with a lower end of .75, and .76 somewhere in an untrained model: wording is enough."""
        table = a_table(accuracy=[0.3, 0.5, 0.8, 0.7], linear_p=[0.01] * 4, fresh={"linear": [0.3, 0.76, 0.35, 0.3]})
        _, second = conclusion(table, followed(length=0.6), None)
        assert second == (
            "Other measures show the task no more than random weights do, for which the wording is enough: a "
            "linear classifier reads it with accuracy 0.80 at layer 2 (chance 0.28 to 0.39; p = 0.01; random weights "
            "0.35, at most 0.76 (layer 1))."
        )
        table["untrained_accuracy_high"] = [0.3, 0.74, 0.35, 0.3]
        assert conclusion(table, followed(length=0.6), None)[1].startswith("The task is still present")

    def test_what_is_followed_as_much_is_not_called_the_same(self):
        first, _ = conclusion(a_table(HIGH, SOME, accuracy=LOW), followed(task=0.5, last_word=0.5), None)
        assert first.startswith(
            "The clusters of the hidden states follow the task and, as much, the prompts' last word (adjusted Rand"
        )

    def test_too_few_relabellings_are_no_absence(self):
        """.8 against chance of at most .39 at one of four layers, with 60 shuffles: open."""
        options = {"accuracy": [0.3, 0.3, 0.8, 0.3], "linear_p": [0.5, 0.5, 1 / 61, 0.5]}
        _, second = conclusion(a_table(**options), followed(length=0.6), None, asked=(1000, 60))
        assert second == (
            "Whether other measures show the task is open, because there were too few relabellings to tell: a linear "
            "classifier reads it with accuracy 0.80 at layer 2 (chance 0.28 to 0.39; p = 0.016 for that layer alone)."
        )
        table = a_table(**options).assign(linear_p_corrected=[0.9, 0.9, 1 / 61, 0.9])  # against the highest of all
        _, second = conclusion(table, followed(length=0.6), None, asked=(1000, 60))
        assert second.startswith("The task is still present: a linear classifier")

    def test_no_better_than_random_weights_within_chance(self):
        table = a_table(given=HIGH, given_p=SOME, fresh={"given": [0.0, 0.88, 0.0, 0.0]})
        _, second = conclusion(table, followed(length=0.6), "length")
        assert second.startswith("Other measures show the task no more than random weights do")

    def test_the_layer_named_is_above_chance(self):
        table = a_table(given=[0.95, 0.9, 0.1, 0.1], given_p=[0.4, 0.001, 0.001, 0.2])
        _, second = conclusion(table, followed(length=0.6), "length")
        assert "its index is 0.900 at layer 1" in second

    def test_what_is_followed_tells_the_task(self):
        table = a_table(HIGH, SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4)
        _, second = conclusion(table, followed(last_word=0.9, task=0.6), None, told="last word")
        assert second == (
            "In these prompts the prompts' last word determines the task, so the two cannot be separated; a linear "
            "classifier reads the task with accuracy 0.90 at layer 0 (chance 0.28 to 0.39; p = 0.01; not compared with "
            "random weights)."
        )

    def test_what_was_asked_for_is_said_where_the_task_is_followed(self):
        table = a_table(HIGH, SOME, given=LOW, accuracy=[0.9] * 4, linear_p=[0.01] * 4)
        _, second = conclusion(table, followed(task=0.8, length=0.1), "length")
        assert second == (
            "Given the prompts' length, its index is at most 0.020 at layer 1 (chance -0.030 to 0.040; not above "
            "chance), and a linear classifier reads the task with accuracy 0.90 at layer 0 (chance 0.28 to 0.39; "
            "p = 0.01; not compared with random weights)."
        )

    def test_a_label_of_the_file_is_not_taken_for_the_feature_of_its_name(self):
        found = followed(topic=0.8)
        assert "follow the label 'topic' (" in conclusion(a_table(accuracy=LOW), found, None)[0]

    def test_no_index_and_no_classifier(self):
        nowhere = [math.nan] * 4
        first, second = conclusion(a_table(nowhere, nowhere), followed(), None)
        assert first == "The clusters of the hidden states could not be compared with the task; the notes say why."
        assert second == "No other measure of the task could be taken; the notes say why."


def said(ari=LOW, p=NONE, label="task", given=None, n_untrained=1, asked=(1000, 1000), **options):
    return details(a_table(ari, p, **options), label, given, n_untrained, asked)


class TestVerdict:
    @pytest.mark.parametrize(
        ("lower_end", "random_weights", "above_chance", "too_few", "expected"),
        [
            (0.8, 0.2, True, False, LabelVerdict.MORE),
            (0.8, 0.8, True, False, LabelVerdict.NO_MORE),
            (0.8, 0.9, True, False, LabelVerdict.NO_MORE),
            (0.8, None, True, False, LabelVerdict.NOT_COMPARED),
            (0.8, 0.2, False, False, LabelVerdict.NOT_SHOWN),
            (0.8, None, False, True, LabelVerdict.TOO_FEW),
            (math.nan, 0.2, True, False, LabelVerdict.UNDEFINED),
        ],
    )
    def test_of_value_chance_and_random_weights(self, lower_end, random_weights, above_chance, too_few, expected):
        assert label_verdict(lower_end, random_weights, above_chance=above_chance, too_few=too_few) == expected

    def test_the_interval_counts(self):
        """The index is .9, and half the width of its chance range .055."""
        for untrained, expected in ((0.84, LabelVerdict.MORE), (0.85, LabelVerdict.NO_MORE)):
            table = a_table(HIGH, SOME, fresh={"ari": [untrained] * 4})
            assert read_label(table, (1000, 1000)).verdicts == {"clusters": expected}

    def test_labels_that_could_not_be_tested(self):
        """Too few distinct relabellings: no p, no chance range, and nothing is said of chance."""
        none = [math.nan] * 4
        table = a_table(HIGH, none).assign(null_low=math.nan, null_high=math.nan)
        assert read_label(table, (1000, 1000)).verdicts == {"clusters": LabelVerdict.TOO_FEW}
        first, _ = conclusion(table, followed(p=0.6, task=0.5), None)
        assert "not shown to follow the task (adjusted Rand index at most 0.900, at layer 1; not tested)" in first
        (sentence,) = details(table, "task", None, 0, (1000, 1000))
        assert "no layer was tested against chance" in sentence
        assert "nan" not in first + sentence


class TestDetails:
    def test_layers_above_chance_corrected_for_their_number(self):
        """.02 and .03 are above chance at a layer alone; of four layers, .03 is not."""
        fresh = {"ari": [0.1, 0.2, 0.3, 0.25]}
        first, second = said([0.01, 0.9, 0.5, 0.1], [0.4, 0.001, 0.02, 0.2], fresh=fresh)
        assert first == (
            "By 'task', hidden states cluster above chance at layers 1-2 of 0-3 (p of at most 0.05, corrected for the "
            "4 layers looked at); the highest adjusted Rand index is 0.900, at layer 1 (chance: -0.050 to 0.060; p = "
            "0.001)."
        )
        assert second == (
            "An untrained model of the same shape gives 0.200 at that layer and at most 0.300, at layer 2; the "
            "verdict: more than random weights."
        )
        (first, _) = said([0.01, 0.9, 0.5, 0.1], [0.4, 0.001, 0.03, 0.2])
        assert "above chance at layer 1 of 0-3" in first
        (first, *_) = said([0.2, 0.9, 0.5, 0.1], 4 * [0.001])
        assert "above chance at every layer (" in first

    def test_the_embedding_alone(self):
        *_, last = said([0.8, 0.9, 0.5, 0.1], [0.001, 0.001, 0.4, 0.2])
        assert last == (
            "Layer 0, the embedding, is one of them (index 0.800): there the words themselves (with their places, "
            "where the model adds these first) tell the classes of 'task' apart, before context is read."
        )

    def test_no_better_than_untrained(self):
        fresh = {"ari": [0.1, 0.2, 0.3, 0.25]}
        _, second = said([0.0, 0.29, 0.1, 0.1], [0.9, 0.001, 0.3, 0.2], n_untrained=2, fresh=fresh)
        assert second == (
            "2 untrained models of the same shape give, on average, 0.200 at that layer and at most 0.300, at layer 2; "
            "the verdict: no more than random weights."
        )

    def test_nothing_above_chance(self):
        """.02 at one of four layers is what chance gives in one of thirteen experiments."""
        (first,) = said([-0.0001, 0.03, 0.05, 0.01], [0.9, 0.3, 0.02, 0.5])
        assert first == (
            "By 'task', no layer is shown to cluster above chance: the highest adjusted Rand index is 0.050, at layer "
            "2 (chance: -0.050 to 0.060; p = 0.02), and the smallest p, corrected for the 4 layers looked at, is 0.08."
        )
        (first,) = said([-0.0001, -0.03, -0.05, -0.01], [0.9] * 4)
        assert "-0.000" not in first

    def test_given_and_linear(self):
        found = said(
            given="the prompts' length",
            accuracy=[0.3, 0.5, 0.8, 0.7],
            linear_p=[0.5, 0.01, 0.01, 0.01],
            label="topic",
            fresh={"given": [0.0] * 4, "linear": [0.3] * 4},
            **{},
        )
        assert found[1] == (
            "Of 'topic', a linear classifier reads the classes above chance at layers 1-3 of 0-3 (p of at most 0.05, "
            "corrected for the 4 layers looked at); the highest accuracy is 0.80, at layer 2 (chance: 0.28 to 0.39; "
            "p = 0.01)."
        )
        assert found[2] == (
            "An untrained model of the same shape gives 0.30 at that layer; the verdict: more than random weights."
        )

    def test_too_few_relabellings_to_tell(self):
        *_, last = said([0.9, 0.1, 0.1, 0.1], [0.05, 0.3, 0.2, 0.5], asked=(19, 1000))
        assert last == (
            "19 relabellings are too few to tell for 4 layers: no p can be below 0.05; give --n-permutations 1000."
        )
        *_, last = said(accuracy=[0.9, 0.3, 0.3, 0.3], linear_p=[0.05, 0.3, 0.2, 0.5], asked=(1000, 19))
        assert last.endswith("give --n-shuffles 1000.")

    def test_an_index_that_is_nowhere(self):
        nowhere = [math.nan] * 4
        assert said(nowhere, nowhere) == ["By 'task', no layer has an index; the notes say why."]
        (first, _) = said([math.nan, 0.9, 0.1, 0.1], [math.nan, 0.001, 0.3, 0.2])
        assert "above chance at layer 1 of 1-3 (p of at most 0.05, corrected for the 3 layers looked at)" in first

    def test_everything_compared_in_order(self):
        assert agreements(followed(length=0.1, last_word=0.84)) == (
            "Agreement of the clusters with labels and surface features (adjusted mutual information, mean over layers "
            "1-3; chance 0): last word 0.85, length 0.11."
        )
