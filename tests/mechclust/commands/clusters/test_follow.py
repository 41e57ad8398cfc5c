"""What clusters follow: planted structure is found, none gives chance."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, mutual_info_score

from mechclust.commands.clusters.follow import Followed, what_clusters_follow

rng = np.random.default_rng(0)
ENDING = np.repeat(["x", "y", "z", "w"], 30)
TASK = np.tile(["a", "b", "c"], 40)
NOISE = rng.permutation(np.repeat([0, 1, 2, 3], 30))


def follow(clusters, labels=None, features=None, **options):
    labels = {"task": TASK} if labels is None else labels
    features = {"last word": ENDING} if features is None else features
    clusters = np.asarray(clusters)
    return what_clusters_follow(clusters, range(len(clusters)), labels, features, **options)


def codes(values):
    return np.unique(values, return_inverse=True)[1]


def test_numbers_are_those_of_scikit_learn():
    table = follow([codes(ENDING), NOISE]).table
    for k, clusters in enumerate((codes(ENDING), NOISE)):
        for name, values in (("task", TASK), ("last word", ENDING)):
            (row,) = table[(table["layer"] == k) & (table["name"] == name)].itertuples()
            assert row.ami == pytest.approx(adjusted_mutual_info_score(values, clusters), abs=1e-12)
            assert row.ari == pytest.approx(adjusted_rand_score(values, clusters), abs=1e-12)
            assert row.n_values == len(set(values))


def test_p_is_that_of_shuffles():
    """Against shuffles of the labels, among which the index grows with the pairs that share task and cluster."""
    some = np.where(np.arange(120) < 30, codes(TASK), rng.integers(0, 3, 120))

    def pairs(clusters):
        return (np.bincount(3 * codes(TASK) + clusters, minlength=9) ** 2).sum()

    seen = pairs(some)
    null = np.array([pairs(rng.permutation(some)) for _ in range(2000)])
    found = what_clusters_follow(some[None], [1], {"task": TASK}, {}).table["p_value"][0]
    assert 0.001 < (null >= seen).mean() < 0.5
    assert found == pytest.approx((null >= seen).mean(), abs=0.02)


def test_the_feature_that_was_planted():
    found = follow([NOISE, codes(ENDING), codes(ENDING)])
    assert found.best(["task"]) == "last word"
    assert found.means["last word"] == 1.0  # without layer 0
    assert abs(found.means["task"]) < 0.05
    assert found.same_as("last word") == []
    assert found.as_much_as("last word") == []


def test_random_weights_are_measured_in_the_same_way():
    own, first, second = [codes(ENDING)] * 2, [codes(ENDING), NOISE], [NOISE, codes(ENDING)]
    found = follow(own, untrained=[np.array(first), np.array(second)])
    (at_noise,) = {adjusted_mutual_info_score(ENDING, NOISE)}
    row = found.table[found.table["name"] == "last word"]
    assert row["untrained"].tolist() == pytest.approx([(1 + at_noise) / 2] * 2)
    assert row["untrained_high"].tolist() == [1.0, 1.0]
    assert found.no_more_than_random("last word")  # the second model does as much at layer 1
    assert not follow(own, untrained=[np.array(first)]).no_more_than_random("last word")
    assert follow(own, untrained=[np.array(own)]).no_more_than_random("last word")
    assert follow(own).table["untrained"].isna().all()


def test_nothing_where_there_is_nothing():
    assert follow([NOISE] * 3).best(["task"]) is None


def test_chance_is_as_rare_as_its_level(monkeypatch):
    """Random clusters: the share of p-values of at most .1 is .1. They do not depend on the mutual information."""
    monkeypatch.setattr("sklearn.metrics.adjusted_mutual_info_score", lambda *_: 0.0)
    clusters = np.stack([rng.permutation(NOISE) for _ in range(200)])
    p = follow(clusters).table["p_value"]
    assert 0.06 < (p <= 0.1).mean() < 0.14


def test_the_task_is_named_before_what_is_the_same():
    found = follow([codes(TASK)] * 2, features={"last word": TASK, "first word": ENDING})
    assert found.best(["task"]) == "task"
    assert found.same_as("task") == ["last word"]


def test_what_parts_the_prompts_nearly_alike_is_told_with_it():
    token = ENDING.copy()
    token[0] = "y"
    found = follow([codes(ENDING)] * 2, features={"last word": ENDING, "last token": token})
    assert found.best(["task"]) == "last word"
    assert found.same_as("last word") == ["last token"]


def test_many_small_values_do_not_win_by_number():
    """40 values of three prompts each share information with any clusters; allowing for their number, none."""
    many = rng.permutation(np.repeat(np.arange(40), 3)).astype(str)
    found = follow([NOISE] * 2, features={"last word": many})
    assert mutual_info_score(many, NOISE) > 0.5
    assert abs(found.means["last word"]) < 0.1
    assert found.best(["task"]) is None


def test_what_cannot_be_followed_is_left_out():
    found = follow([codes(ENDING)], features={"same": ["x"] * 120, "id": np.arange(120).astype(str)})
    assert set(found.table["name"]) == {"task"}


def test_correction_is_over_layers_and_candidates():
    table = follow([codes(ENDING)] * 3).table
    assert len(table) == 6
    assert (table["p_corrected"] >= table["p_value"] - 1e-12).all()
    least = table["p_value"].min()
    assert table["p_corrected"].min() == pytest.approx(6 / 3 * least)


def test_whole_units_are_relabelled_where_there_are_enough():
    half = np.where(codes(ENDING) < 2, "a", "b")
    features = {"last word": ENDING, "half": half}
    many, few = (follow([codes(ENDING)], None, features, units=u) for u in (np.arange(120) // 3, codes(ENDING)))
    assert many.table.set_index("name").loc["last word", "p_value"] < 0.01
    assert few.table.set_index("name")["p_value"].isna().to_dict() == {"task": False, "last word": False, "half": True}
    assert few.best() == "last word"  # which is the units
    assert follow([NOISE], None, features, units=codes(ENDING)).best() is None


def test_units_of_one_value_are_not_taken_for_many_examples():
    """Of twelve units of ten, the halves lie 3 to 1, 2 to 2 and 1 to 3 in the clusters."""
    unit = np.arange(120) // 10
    half = np.where(np.isin(unit, [0, 1, 2, 4, 5, 8]), "a", "b")
    by_example, by_unit = (follow([unit // 4], {"half": half}, {}, units=u).table["p_value"][0] for u in (None, unit))
    assert by_example == 1e-3  # the least of 999 draws
    assert by_unit > 0.1


def test_what_cannot_be_tested_is_not_denied():
    """Clusters that are one half of the endings each, and units that are the endings: 3 relabellings of the half."""
    half = np.where(codes(ENDING) < 2, "a", "b")
    features = {"last word": ENDING, "half": half}
    found = follow([codes(half)] * 2, None, features, units=codes(ENDING))
    assert found.best() == "last word"
    assert found.means["half"] == 1.0
    assert found.untested_best() == "half"
    assert follow([codes(ENDING)], None, features, units=codes(ENDING)).untested_best() is None
    assert follow([NOISE], None, features, units=codes(ENDING)).untested_best() is None


def test_a_label_that_the_stricter_test_could_not_test():
    found = follow([codes(TASK)] * 2, p_values={"task": [np.nan, np.nan]})
    assert found.best(["task"]) is None
    assert found.untested_best(["task"]) == "task"
    assert follow([codes(TASK)] * 2, p_values={"task": [1.0, np.nan]}).untested_best(["task"]) is None


@pytest.mark.slow
def test_perfect_agreement_at_every_layer_is_shown_however_many_tests():
    found = follow([codes(ENDING)] * 80, features={"last word": ENDING, **{f"f{i}": NOISE for i in range(9)}})
    assert found.best(["task"]) == "last word"


def test_a_tie_of_labels_that_part_the_prompts_in_other_ways():
    """Clusters are task x ending: each is followed as much, and the two are not the same."""
    both = codes(TASK) * 4 + codes(ENDING)
    found = follow([both] * 2, features={"last word": np.tile(ENDING, 1)})
    table = found.table.assign(ami=0.5)
    tied = Followed(table, found.alike)
    assert tied.best(["task"]) == "task"
    assert tied.same_as("task") == []
    assert tied.as_much_as("task") == ["last word"]
    assert tied.besides_task(["task"]) == "last word"


def test_a_label_that_the_stricter_test_does_not_show():
    """Labels handed out within another one leave nothing: not followed, however high the agreement."""
    found = follow([codes(TASK)] * 2, p_values={"task": [1.0, 1.0]})
    assert found.means["task"] == 1.0
    assert found.best(["task"]) is None
    assert follow([codes(TASK)] * 2, p_values={"task": [0.001, 1.0]}).best(["task"]) == "task"


def made(p=0.001, alike=0.0, untested=(), **means):
    """Agreement at one layer with the task, and with the length if it is given."""
    rows = [{"layer": 1, "name": name, "kind": "feature", "ami": ami, "p_corrected": p} for name, ami in means.items()]
    return Followed(pd.DataFrame(rows), {("length", "task"): alike}, unshown=untested, untested=set(untested))


def test_weak_agreement_is_not_followed():
    """Significant with many prompts and next to nothing: not what clusters follow."""
    assert made(task=0.01, length=0.05).best(["task"]) is None
    assert made(task=0.1).best() == "task"
    assert made(task=0.1, untested=["task"]).untested_best() == "task"


def test_bounds_of_chance_likeness_and_ties():
    assert made(p=0.05, task=0.5).best() == "task"
    assert made(alike=0.9, task=0.5, length=0.4).same_as("task") == ["length"]
    near, lower = made(length=0.5, task=0.495), made(length=0.5, task=0.48)
    assert (near.best(["task"]), lower.best(["task"])) == ("task", "length")
    assert (near.as_much_as("task"), lower.as_much_as("task")) == (["length"], [])
    untested = [made(length=0.5, task=task, untested=["task"]).untested_best() for task in (0.505, 0.52)]
    assert untested == [None, "task"]
