"""Conclusions from numbers that are given: right in every case, each with chance and random weights."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mechclust.commands.clusters import ClustersConfig, ClustersResult
from mechclust.commands.clusters.follow import Followed
from mechclust.commands.clusters.measurements import ModelCurves
from mechclust.commands.clusters.verdicts import LabelVerdict, judge_label, label_verdict
from probes import ProbeResult

LAYERS = range(4)
LOW, HIGH = [0.01, 0.02, 0.01, 0.0], [0.4, 0.9, 0.6, 0.3]
NONE, SOME = [0.9, 0.7, 0.8, 0.5], [0.4, 0.001, 0.001, 0.2]
CLASSIFIER = {"accuracy": [0.3, 0.5, 0.8, 0.7], "linear_p": [0.5, 0.01, 0.01, 0.01]}


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


def a_table(
    ari=LOW, p=NONE, given=None, given_p=NONE, accuracy=None, linear_p=NONE, held_out=None, held_out_p=NONE, fresh=None
):
    columns = {"layer": list(LAYERS), "label": "task", "ari": ari, "null_low": -0.05, "null_high": 0.06, "p_value": p}
    if given is not None:
        columns |= {"given_ari": given, "given_null_low": -0.03, "given_null_high": 0.04, "given_p": given_p}
    if accuracy is not None:
        columns |= {"accuracy": accuracy, "accuracy_low": np.array(accuracy) - 0.05, "linear_p": linear_p}
        columns |= {"linear_null_low": 0.28, "linear_null_high": 0.39}
    if held_out is not None:
        columns |= {"nearest": 0.98, "held_out": held_out, "held_out_low": np.array(held_out) - 0.05}
        columns |= {"held_out_null_low": 0.1, "held_out_null_high": 0.3, "held_out_p": held_out_p}
    names = {"ari": "untrained", "given": "untrained_given", "linear": "untrained_accuracy"}
    names["held_out"] = "untrained_held_out"
    for key, values in (fresh or {}).items():
        columns |= {names[key]: values, f"{names[key]}_high": values}
    return pd.DataFrame(columns)


def concluded(table, agreement, given=None, *, counts=(1000, 1000), inseparable=False, **further):
    """The result with the measures of the task's table, and those of further labels."""
    tables = {"task": table, **further}
    values = {"ari": torch.zeros(1, len(tables))}
    coords = {"site": ["hook_embed"], "label": list(tables)}
    raw = ProbeResult("TaskClusterARI", values, {"ari": ("site", "label")}, coords, {"hook_embed": 0})
    config = ClustersConfig(Path("prompts.jsonl"), given="auto" if inseparable else "none")
    result = ClustersResult("tiny", config, ModelCurves(raw), [], agreement, given)
    vars(result)["judged"] = {label: judge_label(rows, counts) for label, rows in tables.items()}
    assert len(result.headline.split()) <= 25
    return result


def reading(result, what):
    """The only reading of a kind."""
    (found,) = (each for each in result.readings if each.what == what)
    return found


def of_task(ari=LOW, p=NONE, *, given=None, counts=(1000, 1000), **options):
    return concluded(a_table(ari, p, given=given, **options), followed(length=0.6), given and "length", counts=counts)


class TestHeadline:
    def test_another_thing_is_followed_and_the_task_is_under_it(self):
        table = a_table(
            given=HIGH,
            given_p=SOME,
            **CLASSIFIER,
            fresh={"ari": LOW, "given": [0.0] * 4, "linear": [0.35, 0.34, 0.33, 0.32]},
        )
        result = concluded(table, followed(last_word=0.84, task=-0.02, untrained=0.46), "last word")
        assert result.headline == (
            "The clusters follow the prompts' last word, more than random weights do. Other measures still show the "
            "task."
        )
        assert list(map(str, result.readings)) == [
            "Clusters follow, mean over layers 1-3: the prompts' last word (adjusted mutual information 0.85; 0.86 at "
            "layer 2), chance 0, random weights 0.46. More than random weights.",
            "Clusters by task, layer 1: adjusted Rand index 0.020, chance -0.050 to 0.060 (p = 0.7), random weights "
            "0.020. Not shown to be above chance. The smallest p, corrected for the number of layers (4), is 0.9.",
            "Clusters by task, given the prompts' last word, layer 1: adjusted Rand index 0.900, chance -0.030 to "
            "0.040 (p = 0.001), random weights 0.000. More than random weights. Above chance at layers 1-2 of 0-3.",
            "Linear classifier of task, layer 2: accuracy 0.80, chance 0.28 to 0.39 (p = 0.01), random weights 0.33, "
            "at most 0.35 at layer 0. More than random weights. Above chance at layers 1-3 of 0-3.",
            "Clusters agree with, mean over layers 1-3: last word 0.85 and task -0.01, chance 0. Adjusted mutual "
            "information.",
        ]

    def test_a_further_label_is_followed_in_part(self):
        result = concluded(a_table(HIGH, SOME, accuracy=LOW), followed(topic=0.3, task=0.2), "topic")
        assert result.headline.startswith("The clusters follow the label 'topic' in part (not compared with")
        assert "Above chance at layers 1-2 of 0-3." in reading(result, "Clusters by task").verdict

    def test_the_task_is_followed(self):
        table = a_table(HIGH, SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4, fresh={"ari": LOW, "linear": [0.4] * 4})
        result = concluded(table, followed(task=0.8, length=0.1))
        assert result.headline == "The clusters follow the task, more than random weights do."
        assert reading(result, "Clusters by task").random_weights == "0.020"
        assert reading(result, "Linear classifier of task").verdict.startswith("More than random weights.")

    @pytest.mark.parametrize(
        ("held_out_p", "random", "doubt"),
        [
            (SOME, 0.2, ""),
            (NONE, 0.2, " Nearest neighbours of another template do not show it."),
            (SOME, 0.9, " Nearest neighbours of another template show it no more than random weights do."),
            ([math.nan] * 4, 0.2, ""),
        ],
    )
    def test_the_task_is_followed_but_maybe_by_wording(self, held_out_p, random, doubt):
        """Too few templates for a p-value leave it open, which the headline does not say."""
        fresh = {"ari": LOW, "held_out": [random] * 4}
        table = a_table(HIGH, SOME, held_out=[0.3, 0.8, 0.8, 0.3], held_out_p=held_out_p, fresh=fresh)
        result = concluded(table, followed(task=0.8))
        assert result.headline == f"The clusters follow the task, more than random weights do.{doubt}"

    def test_neighbours_of_other_templates_show_a_task_that_is_not_followed(self):
        result = concluded(a_table(held_out=HIGH, held_out_p=SOME), followed(length=0.6))
        assert result.headline.endswith("Other measures still show the task.")

    def test_random_weights_reach_the_same_index(self):
        """They are not said to be followed then."""
        table = a_table(HIGH, SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4, fresh={"ari": [0.9, 0.1, 0.1, 0.1]})
        result = concluded(table, followed(task=0.8))
        assert result.headline == "The clusters agree with the task no more than random weights do."
        assert reading(result, "Clusters by task").random_weights == "0.100, at most 0.900 at layer 0"
        for agreement in (followed(task=0.05), followed(last_word=0.8, task=0.2)):
            result = concluded(table, agreement)
            assert "follow the task" not in result.headline
            assert reading(result, "Clusters by task").verdict.startswith("No more than random weights.")

    def test_random_weights_reach_the_same_accuracy(self):
        table = a_table(HIGH, SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4, fresh={"linear": [0.88] * 4})
        for agreement in (followed(task=0.8), followed(last_word=0.8)):
            classifier = reading(concluded(table, agreement), "Linear classifier of task")
            assert classifier.random_weights == "0.88"
            assert classifier.verdict.startswith("No more than random weights.")

    def test_a_feature_is_compared_with_random_weights(self):
        table = a_table(fresh={"ari": LOW})
        result = concluded(table, followed(last_word=0.84, untrained=0.84))
        assert result.headline.startswith("The clusters agree with the prompts' last word no more than random weights")
        assert reading(result, "Clusters follow").random_weights == "0.84"

    def test_without_random_weights_it_is_said(self):
        table = a_table(HIGH, SOME, given=HIGH, given_p=SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4)
        for means, given in (({"task": 0.8}, None), ({"last_word": 0.8}, "last word")):
            result = concluded(table, followed(**means), given)
            assert "(not compared with random weights)." in result.headline
            for each in result.readings[:-1]:
                assert each.random_weights == ""
                assert each.verdict.startswith("Above chance, not compared with random weights.")

    def test_a_further_label_that_random_weights_show_as_much(self):
        topic = a_table(HIGH, SOME, fresh={"ari": [0.95] * 4})
        result = concluded(a_table(accuracy=LOW), followed(topic=0.8), topic=topic)
        assert result.headline.startswith("The clusters agree with the label 'topic' no more than random weights do.")
        topic = a_table(HIGH, SOME, fresh={"ari": LOW})
        result = concluded(a_table(accuracy=LOW), followed(topic=0.8), topic=topic)
        assert result.headline.startswith("The clusters follow the label 'topic', more than random weights do.")
        assert reading(result, "Clusters by 'topic'").value == "adjusted Rand index 0.900"

    def test_nothing_anywhere(self):
        table = a_table(given=LOW, accuracy=[0.3, 0.35, 0.3, 0.3], fresh={"linear": [0.3] * 4})
        result = concluded(table, followed(p=0.6, length=0.03, task=0.01, first_word=0.02), "length")
        assert result.headline == (
            "The clusters follow no label or surface feature that was looked at. Other measures do not show the task."
        )
        assert reading(result, "Clusters follow").value == "no label or surface feature"
        assert reading(result, "Clusters agree with").value == "length 0.04, first word 0.03 and task 0.02"
        for each in result.readings[1:-1]:
            assert each.verdict.startswith("Not shown to be above chance. The smallest p")

    def test_weak_agreement_with_the_task_is_not_following(self):
        result = concluded(a_table([0.02, 0.06, 0.06, 0.02], SOME, accuracy=LOW), followed(task=0.05, length=0.03))
        assert result.headline.startswith("The clusters follow no label or surface feature")
        assert "Above chance at layers 1-2 of 0-3." in reading(result, "Clusters by task").verdict

    @pytest.mark.parametrize("others", [{}, {"last_word": 0.5}])
    def test_what_the_clusters_agree_with_most_could_not_be_tested(self, others):
        none = [math.nan] * 4
        agreement = replace(followed(task=0.9, untrained=0.2, **others), unshown={"task"}, untested={"task"})
        result = concluded(a_table(HIGH, none), agreement)
        assert result.headline.startswith("The clusters agree most with the task: open, too few relabellings to")
        most = reading(result, "Clusters agree most with")
        assert (most.value, most.random_weights) == (
            "the task (adjusted mutual information 0.91; 0.92 at layer 2)",
            "0.20",
        )
        followed_too = {each.value.split(" (")[0] for each in result.readings if each.what == "Clusters follow"}
        assert followed_too == ({"the prompts' last word"} if others else set())

    def test_what_they_agree_with_less_and_could_not_be_tested_is_not_named(self):
        agreement = replace(followed(last_word=0.8, task=0.5), unshown={"task"}, untested={"task"})
        assert concluded(a_table(), agreement).headline.startswith("The clusters follow the prompts' last word ")

    def test_one_layer_that_clusters_by_the_task(self):
        one = a_table([0.0, 0.0, 0.0, 1.0], [0.9, 0.9, 0.9, 0.01], fresh={"ari": LOW})
        result = concluded(one, followed(task=0.09, length=0.03))
        assert result.headline.startswith(
            "The clusters follow nothing on average over layers, but layer 3 the task (ARI 1"
        )

    def test_only_a_linear_classifier(self):
        table = a_table(given=LOW, **CLASSIFIER, fresh={"given": LOW, "linear": [0.3, 0.4, 0.35, 0.3]})
        result = concluded(table, followed(length=0.6), "length")
        assert result.headline.endswith("Other measures still show the task.")
        assert reading(result, "Linear classifier of task").random_weights == "0.35, at most 0.40 at layer 1"
        given = reading(result, "Clusters by task, given the prompts' length")
        assert (given.value, given.where) == ("adjusted Rand index 0.020", "layer 1")
        assert given.verdict.startswith("Not shown to be above chance.")

    def test_a_classifier_that_random_weights_allow_too(self):
        """.80 with a lower end of .75, and .76 somewhere in an untrained model: wording is enough."""
        for highest, expected in (
            (0.76, "Other measures show the task no more than random weights do."),
            (0.74, "Other measures still show the task."),
        ):
            table = a_table(**CLASSIFIER, fresh={"linear": [0.3, highest, 0.35, 0.3]})
            assert concluded(table, followed(length=0.6)).headline.endswith(expected)

    def test_too_few_relabellings_are_no_absence(self):
        """.8 against chance of at most .39 at one of four layers, with 60 shuffles: open."""
        options = {"accuracy": [0.3, 0.3, 0.8, 0.3], "linear_p": [0.5, 0.5, 1 / 61, 0.5]}
        result = concluded(a_table(**options), followed(length=0.6), counts=(1000, 60))
        assert result.headline.endswith("Whether other measures show the task is open.")
        classifier = reading(result, "Linear classifier of task")
        assert (classifier.value, classifier.chance) == ("accuracy 0.80", "0.28 to 0.39 (p = 0.016)")
        assert classifier.verdict.startswith("Open, too few relabellings to tell.")
        table = a_table(**options).assign(linear_p_corrected=[0.9, 0.9, 1 / 61, 0.9])  # against the highest of all
        result = concluded(table, followed(length=0.6), counts=(1000, 60))
        assert result.headline.endswith("Other measures still show the task.")

    def test_no_better_than_random_weights_within_chance(self):
        table = a_table(given=HIGH, given_p=SOME, fresh={"given": [0.0, 0.88, 0.0, 0.0]})
        result = concluded(table, followed(length=0.6), "length")
        assert result.headline.endswith("Other measures show the task no more than random weights do.")

    def test_what_is_followed_determines_the_task(self):
        table = a_table(HIGH, SOME, accuracy=[0.9] * 4, linear_p=[0.01] * 4)
        result = concluded(table, followed(last_word=0.9, task=0.6), inseparable=True)
        assert result.headline.endswith("The prompts' last word determines the task, so the two cannot be separated.")
        assert reading(result, "Linear classifier of task").value == "accuracy 0.90"

    def test_what_is_followed_determines_the_task_within_another_label(self):
        result = concluded(a_table(HIGH, SOME), followed(last_word=0.9, task=0.6), inseparable=True)
        within = replace(result, config=replace(result.config, within="input"))
        vars(within)["judged"] = result.judged
        assert within.headline.endswith(
            "The prompts' last word and 'input' together determine the task, so they cannot be separated."
        )

    def test_no_index_and_no_classifier(self):
        nowhere = [math.nan] * 4
        result = concluded(a_table(nowhere, nowhere), followed())
        assert result.headline == (
            "The clusters could not be compared with the task. No other measure of the task could be taken."
        )
        assert reading(result, "Clusters by task").value == "no index at any layer"


class TestWhatIsFollowed:
    def test_what_divides_the_prompts_alike_is_named_too(self):
        agreement = followed(alike=("last token", "last word"), last_word=0.84, last_token=0.6)
        verdict = reading(concluded(a_table(), agreement), "Clusters follow").verdict
        assert verdict.endswith("Nearly the same in these prompts: the prompts' last token.")

    def test_what_is_followed_as_much_is_not_called_the_same(self):
        result = concluded(a_table(HIGH, SOME, accuracy=LOW), followed(task=0.5, last_word=0.5))
        assert result.headline.startswith("The clusters follow the task ")
        verdict = reading(result, "Clusters follow").verdict
        assert verdict.endswith("As much: the prompts' last word.")
        assert "Nearly the same" not in verdict

    def test_a_label_of_the_file_is_not_taken_for_the_feature_of_its_name(self):
        assert "the label 'topic'" in concluded(a_table(accuracy=LOW), followed(topic=0.8)).headline

    def test_many_are_not_all_named(self):
        agreement = followed(**{f"f{i}": 0.5 - i / 100 for i in range(12)})
        assert reading(concluded(a_table(), agreement), "Clusters agree with").value.endswith(
            "f3 0.48, f4 0.47 and 7 others"
        )


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
            assert judge_label(table, (1000, 1000)).verdicts == {"clusters": expected}

    def test_what_lies_on_a_bound(self):
        """A corrected p of .05 is above chance, and a value at the end of the chance range is not below it."""
        table = a_table(ari=[-0.05, 0.0, -0.06, 0.0], accuracy=[0.9, 0.3, 0.3, 0.3], linear_p=[0.02] * 4)
        judged = judge_label(table.assign(linear_p_corrected=[0.05, 0.051, 0.9, 0.9]), (1000, 1000))
        assert (judged.linear.above, judged.clusters.below) == ([0], [2])

    @pytest.mark.parametrize(
        ("n", "p", "expected"),
        [
            (78, 1 / 79, LabelVerdict.TOO_FEW),
            (78, 2 / 79, LabelVerdict.NOT_SHOWN),  # more would not make it less
            (79, 1.4 / 80, LabelVerdict.NOT_SHOWN),  # enough for four layers
        ],
    )
    def test_relabellings_that_may_be_too_few(self, n, p, expected):
        assert judge_label(a_table(p=[p, 0.5, 0.5, 0.5]), (n, 1000)).verdicts == {"clusters": expected}

    def test_of_the_highest_of_all_layers_fewer_are_enough(self):
        table = a_table(accuracy=HIGH, linear_p=[1 / 61, 0.5, 0.5, 0.5]).assign(linear_p_corrected=0.9)
        assert judge_label(table, (1000, 60)).verdicts["linear"] == LabelVerdict.NOT_SHOWN

    def test_a_single_layer_is_named(self):
        assert judge_label(a_table(HIGH, SOME).loc[[1]], (1000, 1000)).clusters.where == "layer 1"

    def test_the_index_has_an_interval_of_its_own(self):
        """It counts in place of the chance range, and is in brackets."""
        for untrained, expected in ((0.69, LabelVerdict.MORE), (0.7, LabelVerdict.NO_MORE)):
            table = a_table(HIGH, SOME, fresh={"ari": [untrained] * 4}).assign(ari_low=0.7, ari_high=0.95)
            result = concluded(table, followed(task=0.6))
            assert result.verdicts["task"] == {"clusters": expected}
            assert reading(result, "Clusters by task").value == "adjusted Rand index 0.900 (0.700 to 0.950)"

    def test_labels_that_could_not_be_tested(self):
        """Too few distinct relabellings: no p, no chance range, and nothing is said of chance."""
        none = [math.nan] * 4
        table = a_table(HIGH, none).assign(null_low=math.nan, null_high=math.nan)
        result = concluded(table, followed(p=0.6, task=0.5))
        assert result.verdicts["task"] == {"clusters": LabelVerdict.TOO_FEW}
        clusters = reading(result, "Clusters by task")
        assert (clusters.value, clusters.chance) == ("adjusted Rand index 0.900", "")
        assert clusters.verdict.endswith("It was not tested, and the notes say why.")
        assert "nan" not in " ".join(result.sentences)


class TestReadingsOfALabel:
    @pytest.mark.parametrize(
        ("ari", "p", "where"),
        [
            ([0.01, 0.9, 0.5, 0.1], [0.4, 0.001, 0.02, 0.2], "layers 1-2 of 0-3"),
            ([0.01, 0.9, 0.5, 0.1], [0.4, 0.001, 0.03, 0.2], "layer 1 of 0-3"),  # corrected for four layers
            ([0.2, 0.9, 0.5, 0.1], [0.001] * 4, "every layer"),
            ([math.nan, 0.9, 0.1, 0.1], [math.nan, 0.001, 0.3, 0.2], "layer 1 of 1-3"),
        ],
    )
    def test_layers_above_chance_corrected_for_their_number(self, ari, p, where):
        fresh = {"ari": [0.1, 0.2, 0.3, 0.25]}
        clusters = reading(of_task(ari, p, fresh=fresh), "Clusters by task")
        assert (clusters.where, clusters.value) == ("layer 1", "adjusted Rand index 0.900")
        assert clusters.chance == "-0.050 to 0.060 (p = 0.001)"
        assert clusters.random_weights == "0.200, at most 0.300 at layer 2"
        assert clusters.verdict == f"More than random weights. Above chance at {where}."

    def test_the_layer_named_is_above_chance(self):
        given = reading(
            of_task(given=[0.95, 0.9, 0.1, 0.1], given_p=[0.4, 0.001, 0.001, 0.2]),
            "Clusters by task, given the prompts' length",
        )
        assert (given.where, given.value) == ("layer 1", "adjusted Rand index 0.900")

    def test_nothing_above_chance(self):
        """.02 at one of four layers is what chance gives in one of thirteen experiments."""
        clusters = reading(of_task([-0.0001, 0.03, 0.05, 0.01], [0.9, 0.3, 0.02, 0.5]), "Clusters by task")
        assert (clusters.where, clusters.chance) == ("layer 2", "-0.050 to 0.060 (p = 0.02)")
        assert clusters.verdict.endswith("The smallest p, corrected for the number of layers (4), is 0.08.")

    def test_below_chance(self):
        result = of_task([0.01, -0.2, -0.1, 0.01], accuracy=[0.3, 0.3, 0.3, 0.1])
        assert reading(result, "Clusters by task").verdict.endswith(" Below chance at layers 1-2.")
        assert reading(result, "Linear classifier of task").verdict.endswith(" Below chance at layer 3.")
        assert "Below chance" not in reading(of_task(), "Clusters by task").verdict

    def test_no_better_than_untrained(self):
        fresh = {"ari": [0.1, 0.2, 0.3, 0.25]}
        clusters = reading(of_task([0.0, 0.29, 0.1, 0.1], [0.9, 0.001, 0.3, 0.2], fresh=fresh), "Clusters by task")
        assert clusters.verdict.startswith("No more than random weights.")

    def test_too_few_relabellings_to_tell(self):
        result = of_task([0.9, 0.1, 0.1, 0.1], [0.05, 0.3, 0.2, 0.5], counts=(19, 1000))
        assert reading(result, "Clusters by task").verdict.endswith(
            "With 19 relabellings no p is below 0.05, too much for 4 layers: give --n-permutations 1000."
        )
        table = a_table(accuracy=[0.9, 0.3, 0.3, 0.3], linear_p=[1 / 16, 0.3, 0.2, 0.5])
        table = table.assign(linear_p_corrected=[1 / 16, 0.9, 0.9, 0.9])  # against the highest of all layers
        result = concluded(table, followed(length=0.6), counts=(1000, 15))
        assert reading(result, "Linear classifier of task").verdict.endswith(
            "With 15 relabellings no p is below 0.062: give --n-shuffles 100."
        )

    def test_what_rounds_to_zero_has_no_sign(self):
        result = of_task([-0.0001, -0.0002, -0.0003, -0.0001])
        assert not re.search(r"-0\.0+\b", reading(result, "Clusters by task").value)
