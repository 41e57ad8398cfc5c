"""The tables of a run: numbers against those that the run was made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.commands.mossa.learnt import learnt_from_answers
from mechclust.commands.mossa.tables import (
    FINAL_NORM,
    adapters_table,
    before_and_after,
    layers_table,
    parts_of,
    tables_of,
)
from tests.mechclust.commands.mossa.made import ELEVEN, LEFT_OUT, made_result

NONE = np.zeros(0)  # no pairs


@pytest.fixture(scope="module")
def result():
    return made_result()


@pytest.fixture(scope="module")
def tables(result):
    return tables_of(result)


def test_names(tables):
    assert {*tables} == {
        "groups", "tasks", "clusters", "layers", "answers", "adapters", "losses", "curves", "findings",
    }  # fmt: skip


def test_curves_are_every_number_once(result, tables):
    table = tables["curves"]
    assert list(table) == ["task", "cluster", "held_out", "layer", "hook", "measure", "role", "value"]
    assert not table.duplicated(["task", "layer", "measure", "role"]).any()
    one = table[(table["task"] == "aqua") & (table["role"] == "again") & (table["measure"] == "debiased CKA")]
    assert one["value"].tolist() == result.of_task["aqua"]["again.cka"]["debiased_cka"][:, 0].tolist()
    assert one["layer"].tolist() == [*range(1, 19), FINAL_NORM]
    assert one["hook"].iloc[[0, -1]].tolist() == ["blocks.0.hook_resid_post", "unembed.hook_in"]
    assert set(table["measure"]) >= {
        *result.measures, "dimensions for 99% of the variance", "nearest neighbours of the same cluster",
        "debiased CKA, prompts paired at random (97.5%)",
    }  # fmt: skip


def test_layers_are_medians_over_the_tasks_of_a_set(result, tables):
    table = tables["layers"].set_index(["of", "role", "layer"])
    seen = ~np.array(result.held_out)
    assert table.loc[("seen", "tuned", 18), "median"] == np.median(result.values("tuned")[seen, -1])
    assert table.loc[("held out", "base", 3), "median"] == np.median(result.values("base")[~seen, 2])
    in_cluster = seen & (np.array(result.clusters) == "explanation")
    row = table.loc[("cluster explanation", "base", 18)]
    assert (row["median"], row["tasks"]) == (np.median(result.values("base")[in_cluster, -1]), 3)
    known = table.dropna()  # of few tasks many draws have no ceiling, and then there is no interval
    assert (known["low"] <= known["median"] + 1e-12).all()
    assert (known["median"] <= known["high"] + 1e-12).all()
    assert table.loc["seen"].loc[["base", "tuned", "null"]].notna().all(axis=None)
    assert ("held out", "ceiling", 1) not in table.index


def test_tasks_begin_with_the_most_changed(result, tables):
    table = tables["tasks"]
    assert table["gain"].is_monotonic_decreasing
    row = table.set_index("task").loc["qasc"]
    gap = (result.values("tuned") - result.values("base"))[result.tasks.index("qasc")]
    assert row["gain"] == pytest.approx(gap[9:].mean())
    assert row["largest"] == gap[row["at_layer"] - 1] == pytest.approx(np.abs(gap).max())
    assert (row["held_out"], row["cluster"], row["prompts"]) == (True, "multiple_choice", 200)
    assert row["accuracy_all-tasks"] == pytest.approx(0.65)


def test_clusters_are_of_seen_tasks(result, tables):
    counts = tables["clusters"].set_index("cluster")["tasks"].to_dict()
    assert counts == {name: len(set(tasks) - set(LEFT_OUT)) for name, tasks in ELEVEN.items()}
    part = parts_of(result)["yes_no"]
    row = tables["clusters"].set_index("cluster").loc["yes_no"]
    assert row["gain"] == pytest.approx(np.mean(part.gain))
    assert (row["gain_least"], row["gain_most"]) == (part.gain.min(), part.gain.max())


def test_tasks_of_no_cluster_are_none():
    result = made_result({"b": ["x", "y"], None: ["odd"], "a": ["z", "w"]}, held_out=(), n_layers=8)
    assert {name: part.tasks for name, part in parts_of(result).items()} == {"a": ("z", "w"), "b": ("x", "y")}
    alone = parts_of(made_result({None: ["odd", "even"]}, held_out=(), n_layers=8))
    assert {name: part.tasks for name, part in alone.items()} == {"(no cluster)": ("odd", "even")}


def test_groups_are_those_of_the_result(result, tables):
    rows = tables["groups"].set_index("group")
    groups = result.groups.groups
    assert rows.loc["shared", "first_layer"] == 1
    assert rows.loc["shared", "last_layer"] == groups.shared[-1]
    assert rows.loc["transition", "first_layer"] == groups.transition[0]
    assert [rows.loc["shared", end] for end in ("end_low", "end_high")] == [*result.groups.shared_end]
    assert rows["tasks"].tolist() == [9, 9, 9]


def test_groups_without_layers_have_none():
    result = made_result()
    same = {task: {**of, "tuned.cka": of["base.cka"]} for task, of in result.of_task.items()}
    table = tables_of(replace(result, of_task=same))["groups"].set_index("group")
    assert table.loc["transition", ["first_layer", "last_layer"]].tolist() == [None, None]


def test_a_ceiling_of_few_tasks_has_an_interval():
    """6 of 9; of fewer there is none."""
    table = layers_table(made_result(ceilings=6))
    ceiling = table[(table["of"] == "seen") & (table["role"] == "ceiling")]
    assert len(ceiling) == 18
    assert ((ceiling["low"] <= ceiling["median"]) & (ceiling["median"] <= ceiling["high"])).all()
    assert set(ceiling["tasks"]) == {6}
    table = layers_table(made_result(ceilings=5))
    assert table[(table["of"] == "seen") & (table["role"] == "ceiling")]["low"].isna().all()


def test_answers_have_intervals_over_prompts(tables):
    table = tables["answers"].set_index(["task", "role"])
    control = table.loc[("aqua", "control")]
    base = table.loc[("aqua", "base")]
    assert control["exact"] == pytest.approx(0.7)
    assert control["exact_gain"] == pytest.approx(control["exact"] - base["exact"])
    assert control["loss_gain"] == pytest.approx(base["loss"] - control["loss"])
    assert control["exact_gain_low"] < control["exact_gain"] < control["exact_gain_high"]
    assert control["margin_gain"] == pytest.approx(control["margin"] - base["margin"])
    assert control["pairs"] == base["pairs"] == 30
    assert (control["learnt"], base["learnt"]) == ("learnt", "")
    assert table.loc[("gsm8k", "control"), "learnt"] == "form only"


def test_adapters_say_how_they_were_trained(result, tables):
    table = tables["adapters"]
    assert len(table) == len(result.trained) == 2 + 11 + 3
    assert table.set_index(["model", "task"]).loc[("control", "aqua"), ["steps", "examples"]].tolist() == [150, 900]
    assert len(tables["losses"]) == 15 * len(table)


def test_adapters_that_were_given_up_are_told_with_the_reason(result):
    model, *_ = result.trained
    table = adapters_table(replace(result, failed={model: "its loss is nan at step 3"}))
    assert table.iloc[-1]["failed"] == "its loss is nan at step 3"


def test_what_is_not_there_has_no_table():
    found = tables_of(made_result(n_answers=0, trained=False, n_layers=4))
    assert {"answers", "adapters", "losses"}.isdisjoint(found)
    assert set(found["tasks"]["learnt"]) == {"not measured"}


def test_before_and_after_the_final_norm(result):
    table = before_and_after(result).set_index(["of", "role"])
    seen = ~np.array(result.held_out)
    row = table.loc[("seen", "base")]
    assert row["before"] == np.median(result.values("base")[seen, -1])
    assert row["after"] == np.median(result.values("base", final_norm=True)[seen])
    assert table.loc[("seen", "again"), "tasks"] == 3


def test_gains_of_shares_are_covered_by_their_interval():
    """The interval covers a known difference in about 95 of 100 draws of pairs."""
    draw = np.random.default_rng(0)
    covered = 0
    true = 0.3
    for _ in range(400):
        base = (draw.random(40) < 0.3).astype(float)
        exact = np.where(draw.random(40) < true / 0.7, 1.0, base)
        low, high = learnt_from_answers(exact, np.zeros(40), NONE, base=(base, np.zeros(40), NONE)).exact.gain_ends
        covered += low <= true <= high
    assert 0.92 <= covered / 400 <= 0.99


def test_loss_gain_is_students_t():
    from scipy.stats import ttest_rel

    draw = np.random.default_rng(1)
    base = draw.random(12) + 1
    loss = draw.random(12)
    margins = draw.random(6)
    before = draw.random(6)
    gained = learnt_from_answers(np.zeros(12), loss, margins, base=(np.zeros(12), base, before))
    ends = ttest_rel(base, loss).confidence_interval(0.95)
    assert gained.loss.gain_ends == pytest.approx((ends.low, ends.high))
    ends = ttest_rel(margins, before).confidence_interval(0.95)
    assert gained.margin.gain_ends == pytest.approx((ends.low, ends.high))


def test_learnt_is_what_depends_on_the_prompt():
    """Neither right answers of one kind nor a lower loss are."""
    exact = np.array([1.0, 0.0] * 10)
    loss = np.linspace(1, 2, 20)
    margin = np.linspace(-1, 1, 10)
    base = (np.zeros(20), loss, margin)
    assert learnt_from_answers(np.zeros(20), loss, margin[::-1], base=base).state == "not learnt"
    assert learnt_from_answers(np.zeros(20), loss - 1, margin, base=base).state == "form only"
    assert learnt_from_answers(exact, loss, margin, base=base).state == "form only"
    undefined = np.where(exact == 1, loss, np.nan)
    assert learnt_from_answers(exact, undefined, margin, base=base).state == "form only"
    assert learnt_from_answers(np.zeros(20), loss - 1, margin + 1, base=base).state == "learnt"
    assert learnt_from_answers(exact, loss + 1, margin + 1, base=base).state == "learnt"
    assert learnt_from_answers(np.zeros(20), loss + 1, margin + 1, base=base).state == "not learnt"  # only confident
    worse = (np.zeros(20), loss, margin - 1)  # than at random, so that what is random is a gain
    assert learnt_from_answers(np.zeros(20), loss - 1, margin, base=worse).margin.gain_ends[0] > 0
    assert learnt_from_answers(np.zeros(20), loss - 1, margin, base=worse).state == "form only"
    unsure = [(exact, loss + 1, np.roll(exact, 1), loss), (np.zeros(20), loss[::-1], np.zeros(20), loss)]
    for now, lost, before, lost_before in unsure:  # as often better as worse
        assert learnt_from_answers(now, lost, margin + 1, base=(before, lost_before, margin)).state == "not learnt"
    able = (np.zeros(20), loss, margin[::-1] + 1)  # told apart as well before
    assert learnt_from_answers(np.zeros(20), loss - 1, margin + 1, base=able).state == "form only"
    two = (np.zeros(20), loss, margin[:2])
    assert learnt_from_answers(np.zeros(20), loss - 1, margin[:2], base=two).state == "form only"
    assert learnt_from_answers(exact, loss, np.array([1.0, 0.0, -2.0, 0.0])).apart == 0.5  # half of a tie
    few = margin[:1]  # of answers that are all the same, nothing tells them apart
    assert learnt_from_answers(np.ones(20), loss - 1, NONE, base=(np.zeros(20), loss, NONE)).state == "not measured"
    assert learnt_from_answers(np.ones(20), loss - 1, few, base=(np.zeros(20), loss, few)).state == "not measured"
