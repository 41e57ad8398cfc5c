"""Conclusions of runs that were never made: headline, readings, and caveats."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from mechclust.mossa.gaps_and_spreads import upper_half_gap
from mechclust.mossa.task_bootstrap import task_bootstrap_interval
from tests.faults.hostile import HOSTILE
from tests.mechclust.commands.mossa.made import made_result

pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="module")
def result():
    return made_result(learnt=("aqua", "creak"))


@pytest.fixture(scope="module")
def few():
    return made_result({"a": ["x", "y", "z"]}, held_out=())


def reading(result, what):
    """The reading of a kind."""
    (reading,) = [each for each in result.readings if each.what == what]
    return reading


def values(result):
    return {each.what: each.value for each in result.readings}


def swapped(result):
    """The run with base and tuned in each other's place."""
    of_task = {
        task: {**of, "tuned.cka": of["base.cka"], "base.cka": of["tuned.cka"]} for task, of in result.of_task.items()
    }
    return replace(result, of_task=of_task)


class TestHeadline:
    def test_says_layers_direction_and_what_was_learnt(self, result):
        gap = upper_half_gap(result.curves().seen)
        assert result.headline == (
            f"Layers: {result.groups.groups}. Tuned is nearer to the controls than pre (upper half {gap:.2f}). "
            "Learnt: 2 of 11 tasks."
        )
        assert f"Tuned is farther from the controls than pre (upper half {-gap:.2f})" in swapped(result).headline

    def test_names_no_groups_that_tasks_do_not_agree_on(self, result):
        n_layers = len(result.layers)
        unclear = replace(result.groups, shared_end=(2, n_layers))
        shown = copy(result)
        vars(shown)["groups"] = unclear
        assert shown.headline.startswith("No layer group is clear. ")

    def test_of_few_tasks_names_no_groups(self, few):
        assert few.headline.startswith("No layer groups are named. Tuned is not clearly nearer to ")
        without_interval = made_result({"a": ["v", "w", "x", "y", "z"]}, held_out=())
        assert without_interval.headline.startswith("No layer group is clear. Tuned is not clearly nearer to ")

    def test_without_answers(self):
        assert made_result(n_answers=0).headline.endswith("Learning was not measured.")

    def test_is_short(self, result, few):
        for each in (result, few, swapped(result), made_result(n_answers=0)):
            assert len(each.headline.split()) <= 25
            assert each.sentences == [each.headline, *map(str, each.readings)]


class TestLearnt:
    def test_comes_first(self, result):
        first, form_only, not_learnt, seen, held_out = result.readings[:5]
        assert (first.what, first.value) == ("Tasks learnt by their own controls", "2 of 11")
        assert first.verdict == (
            "Right answers are more probable or more often exact than with pre, and told apart from other prompts' "
            "better than at random and than by pre (95% intervals over prompts and pairs)."
        )
        named = "gsm8k, creak_explain, ecqa_explain, sensemaking_explain, ecqa, sensemaking"
        assert form_only.value == f"{named} and 2 others"
        assert (not_learnt.what, not_learnt.value) == ("Not learnt", "qasc")
        assert not_learnt.verdict == (
            "The control is not clearly better than pre. CKA with a control that learnt nothing means little."
        )
        assert (seen.what, seen.value) == (
            "Seen tasks learnt by the tuned model", "2 of 9 (exact answers 21%, pre 10%)",
        )  # fmt: skip
        assert (held_out.what, held_out.value) == (
            "Held-out tasks learnt without their examples", "0 of 2 (exact answers 10%, pre 10%)",
        )  # fmt: skip

    def test_nothing(self):
        assert values(made_result(learnt=()))["Tasks learnt by their own controls"] == "0 of 11"

    def test_without_answers_nothing_is_called_learnt(self):
        first, second, *_ = made_result(n_answers=0).readings
        assert (first.value, first.verdict) == ("unknown", "Answers were not measured.")
        assert second.what.startswith("Layer groups")

    def test_what_the_base_can_do_is_not_called_unable(self, result):
        """Base and control tell answers apart equally well; the control's only became more probable."""
        of_task = {task: {**of} for task, of in result.of_task.items()}
        control = of_task["aqua"]["control.answers"]
        easy = {"margin": control["margin"], "loss": control["loss"] + 1}
        of_task["aqua"]["base.answers"] = replace(control, values={**control.values, **easy})
        shown = replace(result, of_task=of_task)
        assert shown.states()["aqua"] == "form only"
        assert reading(shown, "Only the form of the answers learnt").verdict == (
            "They became more probable or more often exact, but right ones are not clearly told apart better than at "
            "random and than by pre."
        )

    def test_too_few_different_answers_leave_it_open(self):
        result = made_result(n_answers=3)  # one pair
        first, *_ = result.readings
        assert (first.value, first.verdict) == ("unknown", "Too few scored prompts have different answers.")
        assert any(note.startswith("Fewer than two pairs of scored prompts have different") for note in result.caveats)


class TestLayers:
    def test_groups_have_intervals(self, result):
        groups = reading(result, "Layer groups of 9 seen tasks")
        assert groups.value == str(result.groups)
        assert groups.value.count("end at") == 2

    def test_no_groups_of_few_tasks(self, few):
        groups = reading(few, "Layer groups")
        assert groups.value == "not named, 3 seen tasks"
        assert groups.verdict == "Medians over tasks and their spread need at least 4 seen tasks."

    def test_no_groups_where_similarity_is_undefined(self, result):
        of_task = {}
        for task, of in result.of_task.items():
            cka = of["tuned.cka"]["debiased_cka"].clone()
            cka[2] = np.nan
            tuned = replace(of["tuned.cka"], values={**of["tuned.cka"].values, "debiased_cka": cka})
            of_task[task] = {**of, "tuned.cka": tuned}
        groups = reading(replace(result, of_task=of_task), "Layer groups")
        assert (groups.value, groups.where) == ("not named", "layer 3")

    def test_difference_has_an_interval_and_its_largest_layer(self, result):
        curves = result.curves().seen
        value, (low, high) = task_bootstrap_interval(curves, upper_half_gap)
        gain = reading(result, "Tuned - pre")
        assert gain.value == f"{value:.2f} (95% over tasks {low:.2f} to {high:.2f})"
        assert gain.verdict == "Tuned is nearer to the controls than pre: difference of medians over 9 seen tasks."
        place = int(np.abs(curves.gap).argmax())
        largest = reading(result, "Tuned - pre, largest in size")
        assert (largest.where, largest.value) == (f"layer {place + 1}", f"{curves.gap[place]:.2f}")

    def test_a_tuned_model_that_went_away_is_farther(self, result):
        gain = reading(swapped(result), "Tuned - pre")
        assert gain.value.startswith("-0.2")
        assert gain.verdict.startswith("Tuned is farther from the controls than pre")
        less = reading(swapped(result), "Tuned is less similar to the controls than pre")
        assert less.verdict == "Tuned changed there, but not as the controls did."
        five = swapped(made_result({"a": ["v", "w", "x", "y", "z"]}, held_out=()))
        less = reading(five, "Tuned is less similar to the controls than pre")
        assert less.verdict.endswith("as the controls did. Without an interval, this may be chance.")


class TestTasks:
    def test_clusters_and_extremes_are_those_of_the_tables(self, result):
        shown = values(result)
        for row in result.tables["clusters"].itertuples():
            assert shown[f"Cluster {row.cluster}"] == (
                f"tuned - pre {row.gain:.2f} ({row.gain_least:.2f} to {row.gain_most:.2f}, {row.tasks} tasks), largest "
                f"at layer {row.at_layer}"
            )
        tasks = result.tables["tasks"]
        seen = tasks[~tasks["held_out"]]
        for which, place in (("most", 0), ("least", -1)):
            row = seen.iloc[place]
            expected = f"{row['task']} {row['gain']:.2f} (no interval), largest at layer {row['at_layer']}"
            assert shown[f"Seen task that gains {which}"] == expected

    def test_held_out_tasks_with_and_without_their_examples(self, result):
        curves = result.curves().unseen
        with_examples = replace(curves, tuned=result.values("all-tasks")[result.is_held_out])
        assert reading(result, "Held out: gsm8k_work and qasc").value == (
            f"tuned - pre {upper_half_gap(curves):.2f} ({curves.gain.min():.2f} to {curves.gain.max():.2f}) if tuned "
            f"without them, and {upper_half_gap(with_examples):.2f} if tuned on them too"
        )

    def test_held_out_tasks_without_similarity_are_unknown(self, result):
        of_task = {task: {**of} for task, of in result.of_task.items()}
        for task in ("gsm8k_work", "qasc"):
            tuned = of_task[task]["tuned.cka"]
            undefined = {"debiased_cka": tuned["debiased_cka"] * np.nan}
            of_task[task]["tuned.cka"] = replace(tuned, values={**tuned.values, **undefined})
        found = reading(replace(result, of_task=of_task), "Held out: gsm8k_work and qasc")
        assert (found.value, found.verdict) == ("unknown", "Similarity with the controls is undefined.")

    def test_without_held_out_tasks(self, few):
        nothing = "Nothing is known about tasks that the model was not tuned on."
        none = reading(few, "Held-out tasks")
        assert (none.value, none.verdict) == ("none", nothing)
        unmeasured = replace(few, unmeasured=["v", "w"])
        named = reading(unmeasured, "Held out and not measured")
        assert (named.value, named.verdict) == ("v and w", f"{nothing} The notes say why.")
        assert "Held-out tasks" not in values(unmeasured)

    def test_long_and_acting_names_are_cut_and_harmless(self):
        names = [HOSTILE[name] for name in ("long", "clears the screen", "newline", "script")]
        sentences = made_result({"a": names}, held_out=()).sentences
        assert all(len(sentence) < 2_000 for sentence in sentences)
        assert "\x1b" not in "".join(sentences)
        assert "\n" not in "".join(sentences)


def test_caveats_say_what_the_numbers_depend_on():
    caveats = " ".join(made_result().caveats)
    assert "n is 200 prompts for the task that has the fewest, d = 640" in caveats
    assert "n is below 10 d" in caveats
    assert "dimensions, which end the transition, are of all tasks together and the same in every draw" in caveats
    assert "Tasks with a ceiling, whose controls were trained twice: aqua, gsm8k and creak_explain." in caveats
    assert "Clusters are those of 'clusters.toml'." in caveats
    assert "tuned the base with one adapter for all tasks" in caveats
    assert "by bootstrap (of correlations over tasks, Fisher's)" in caveats
    given = made_result()
    given = replace(given, config=replace(given.config, experimental="tuned", controls=("aqua=control",)))
    assert "tuned the given model of many tasks, a control the given model of one task." in " ".join(given.caveats)
    many = " ".join(made_result(ceilings=0, n=6400).caveats)
    assert "n is below 10 d" not in many
    assert "there is no ceiling" in many
