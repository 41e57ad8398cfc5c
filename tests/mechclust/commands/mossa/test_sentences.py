"""What is said of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mechclust.commands.mossa.sentences import lead_of, notes_of
from mechclust.evidence import Bound, Control, Finding, Findings, mean_part
from mechclust.report.text import join
from tests.faults.hostile import HOSTILE
from tests.mechclust.commands.mossa.made import made_result


@pytest.fixture(scope="module")
def lead():
    return lead_of(made_result(learnt=("aqua", "creak")))


def one(sentences, opening):
    (found,) = [sentence for sentence in sentences if sentence.startswith(opening)]
    return found


def test_what_was_learnt_comes_first(lead):
    assert lead[0].startswith(
        "By its own control, 2 of 11 tasks were learnt (right answers are told apart from other prompts' better than "
        "at random and than by pre, by 95% intervals over pairs of prompts); of gsm8k, creak_explain, ecqa_explain, "
        "sensemaking_explain, ecqa, sensemaking and 2 others only the form of the answers."
    )
    assert lead[1] == "Not learnt: qasc; its control is no better than pre, and CKA with such a control means little."
    assert lead[2] == (
        "By the same measure, the tuned model learnt 2 of 9 seen tasks (exact answers 21%, pre 10%), and the model "
        "that was trained without them learnt none of 2 held-out tasks (exact answers 10%, pre 10%)."
    )


def test_nothing_learnt():
    assert lead_of(made_result(learnt=()))[0].startswith(
        "By its own control, none of 11 tasks was learnt (right answers"
    )


def test_without_answers_nothing_is_called_learnt():
    first = lead_of(made_result(n_answers=0))[0]
    assert first == "Answers were not measured, so nothing shows whether any model learnt its tasks."


def test_layer_groups_have_intervals(lead):
    assert one(lead, "Layer groups of 9 seen tasks: shared 1-").count("end at") == 2


def test_no_layer_groups_of_few_tasks():
    found = lead_of(made_result({"a": ["x", "y", "z"]}, held_out=()))
    assert one(found, "No layer groups are named").endswith(
        "3 seen tasks, and medians over tasks and their spread need at least 4."
    )
    assert one(found, "No task was held out")


def test_held_out_tasks_that_are_not_measured_are_named():
    made = made_result({"a": ["x", "y", "z"]}, held_out=())
    found = lead_of(replace(made, unmeasured=["v", "w"]))
    assert one(found, "Held out") == (
        "Held out and not measured: v and w, so nothing is known about tasks that the model was not tuned on; the "
        "notes say why."
    )
    assert not [sentence for sentence in found if sentence.startswith("No task was held out")]


def test_tasks_and_clusters_are_told_with_their_layers(lead):
    assert one(lead, "In the upper half of the layers, tuned is nearer to the controls than pre: by 0.2")
    assert one(lead, "By cluster, tuned - pre in the upper half").count("largest at layer") == 4
    assert "a task by itself has no interval" in one(lead, "Of the seen tasks, tuned - pre is greatest for ")
    said = one(lead, "Held out: gsm8k_work and qasc. There tuned - pre in the upper half is 0.")
    assert "for the model that never saw them, and 0." in said


def test_a_tuned_model_that_went_away_is_said_to_be_farther():
    made = made_result()
    swapped = {t: {**of, "tuned.cka": of["base.cka"], "base.cka": of["tuned.cka"]} for t, of in made.of_task.items()}
    said = one(lead_of(replace(made, of_task=swapped)), "In the upper half")
    assert "tuned is farther from the controls than pre: by -0.2" in said


def test_findings_by_verdict_and_why_some_are_not_tested(lead):
    findings = [c for c in made_result(learnt=("aqua", "creak")).findings if c.kind == "finding"]
    ids = {verdict: [c.id for c in findings if c.verdict == verdict] for verdict in ("undecided", "not tested")}
    said = one(lead, f"Of {len(findings) - len(ids['not tested'])} findings that could be tested, ")
    assert f"{len(ids['undecided'])} are undecided ({join(ids['undecided'])})" in said
    assert all(name in one(lead, "Not tested: ") for name in ids["not tested"])
    assert "C9, C18 and C19 (no held-out task learnt without its examples; expected at least 6, or there" in lead[-1]


def test_notes_say_what_the_numbers_depend_on():
    notes = " ".join(notes_of(made_result()))
    assert "n is 200 prompts for the task that has the fewest, d = 640" in notes
    assert "n is below 10 d" in notes
    assert "dimensions, which end the transition, are of all tasks together and the same in every draw" in notes
    assert "The ceiling is from 3 tasks, whose controls were trained twice: aqua, gsm8k and creak_explain." in notes
    assert "Clusters are those of 'clusters.toml'." in notes
    many = " ".join(notes_of(made_result(ceilings=0, n=6400)))
    assert "n is below 10 d" not in many
    assert "there is no ceiling" in many


def test_long_and_acting_names_are_cut_and_harmless():
    names = [HOSTILE[name] for name in ("long", "clears the screen", "newline", "script")]
    said = lead_of(made_result({"a": names}, held_out=()))
    assert all(len(sentence) < 2_000 for sentence in said)
    assert "\x1b" not in "".join(said)
    assert "\n" not in "".join(said)


def stated(place, values, control=(0.0, 0.1)):
    """A finding that values are at least .2."""
    part, other = (mean_part("", of, Bound(">=", 0.2)) for of in (values, control))
    return Finding(id=f"M{place}", statement="a", source="ours", parts=(part,), control=Control("another", (other,)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([([0.9, 0.1],)], "Of 1 finding that could be tested, 1 is undecided (M0);"),
        ([([0.9, 0.88],)], "Of 1 finding that could be tested, 1 holds (M0);"),
        ([([0.9, 0.88], [0.9, 0.88])], "Of 1 finding that could be tested, 1 holds on its control too (M0);"),
        (
            [([0.0, 0.0],), ([0.9, 0.88],), ([0.9, 0.88], [0.9, 0.88]), ([0.8, 0.8], [0.8, 0.8])],
            "Of 4 findings that could be tested, 1 holds (M1), 2 hold on their controls too (M2 and M3) and 1 does not "
            "hold (M0);",
        ),
        ([([0.0, 0.0],), ([0.1, 0.1],)], "Of 2 findings that could be tested, 2 do not hold (M0 and M1);"),
    ],
)
def test_verbs_agree_with_the_number_of_findings(given, expected):
    result = made_result()
    result.__dict__["findings"] = Findings(stated(place, *values) for place, values in enumerate(given))  # cached
    assert lead_of(result)[-1].startswith(expected)
