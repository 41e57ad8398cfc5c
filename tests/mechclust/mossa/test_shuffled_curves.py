"""Shuffled curves: what is shuffled, what stays, and that curves of the same shape are shuffled alike."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from mechclust.mossa import shuffled_curves as shuffled
from tests.mechclust.mossa.test_task_curves import curves

RNG = np.random.default_rng(0)
HELD_OUT = np.array([True, False, False, False, True, False, False, False, False, True, False])
CURVES = replace(
    curves(
        RNG.random((11, 8)),
        RNG.random((11, 8)),
        held_out=HELD_OUT,
        clusters=("x",) * 4 + ("y",) * 3 + (None,) * 4,
        covariates={"size": np.arange(11.0)},
    ),
    null=RNG.random((11, 8)),
    ceiling=RNG.random((11, 8)),
    dims={"tuned": np.arange(8.0), "base": -np.arange(8.0)},
)
CHANGES = [
    shuffled.swapped_curves,
    shuffled.control_shuffled_curves,
    shuffled.permuted_layers,
    shuffled.held_out_shuffled_curves,
    shuffled.covariate_shuffled_curves,
    shuffled.cluster_shuffled_curves,
]


@pytest.mark.parametrize(
    ("change", "one", "other"),
    [(shuffled.swapped_curves, "base", "tuned"), (shuffled.control_shuffled_curves, "tuned", "null")],
)
def test_two_curves_change_places_in_half_of_the_tasks(change, one, other):
    changed = change(CURVES)
    moved = (getattr(changed, one) == getattr(CURVES, other)).all(axis=1)
    kept = (getattr(changed, one) == getattr(CURVES, one)).all(axis=1)
    assert (moved[HELD_OUT].sum(), moved[~HELD_OUT].sum()) == (1, 4)  # of 3 and of 8
    assert (kept[HELD_OUT].sum(), kept[~HELD_OUT].sum()) == (1, 4)
    assert np.array_equal(getattr(changed, other)[moved], getattr(CURVES, one)[moved])
    assert np.array_equal(getattr(changed, other)[kept], getattr(CURVES, other)[kept])
    (left_over,) = np.flatnonzero(~moved & ~kept)
    mean = (getattr(CURVES, one)[left_over] + getattr(CURVES, other)[left_over]) / 2
    assert np.array_equal(getattr(changed, one)[left_over], mean)
    assert np.array_equal(getattr(changed, other)[left_over], mean)


@pytest.mark.parametrize("n_tasks", [6, 7, 17, 18])
def test_curves_that_changed_places_differ_in_no_median_also_of_odd_numbers(n_tasks):
    base = np.random.default_rng(0).uniform(0.48, 0.52, (n_tasks, 8))
    changed = shuffled.swapped_curves(curves(base, base + 0.4))
    assert np.abs(changed.gap).max() < 0.03


def test_layers_of_all_curves_move_together():
    order = [2, 4, 3, 6, 5, 0, 1, 7]
    changed = shuffled.permuted_layers(CURVES)
    for name in ("base", "tuned", "null", "ceiling"):
        assert np.array_equal(getattr(changed, name), getattr(CURVES, name)[:, order])
    assert (changed.dims["tuned"].tolist(), changed.dims["base"].tolist()) == (order, [-place for place in order])


def test_as_many_seen_tasks_of_the_same_clusters_are_called_held_out():
    changed = shuffled.held_out_shuffled_curves(CURVES)
    assert changed.tasks == CURVES.seen.tasks
    assert [changed.clusters[place] for place in np.flatnonzero(changed.held_out)] == ["x", "y", None]
    whole = replace(CURVES, held_out=np.arange(11) < 4)  # all of x, of which no seen task is left
    assert shuffled.held_out_shuffled_curves(whole).held_out.sum() == 4


def test_covariates_are_those_of_other_tasks_seen_ones_for_seen_ones():
    size = shuffled.covariate_shuffled_curves(CURVES).covariates["size"]
    assert sorted(size[HELD_OUT]) == [0, 4, 9]
    assert sorted(size[~HELD_OUT]) == [1, 2, 3, 5, 6, 7, 8, 10]
    assert (size != np.arange(11)).all()


def test_a_cluster_has_the_covariates_of_another():
    of_cluster = {"x": 1.0, "y": 2.0, None: 3.0}
    values = np.array([of_cluster[cluster] for cluster in CURVES.clusters])
    given = shuffled.cluster_shuffled_curves(replace(CURVES, covariates={"size": values})).covariates["size"]
    by_cluster = {cluster: set(given[[c == cluster for c in CURVES.clusters]]) for cluster in of_cluster}
    assert sorted(value for (value,) in by_cluster.values()) == [1, 2, 3]
    assert by_cluster != {cluster: {value} for cluster, value in of_cluster.items()}


def test_no_two_of_six_clusters_keep_their_covariates():
    names = tuple("abcdef")
    flat = np.zeros((6, 1))
    for chosen in itertools.combinations(range(6), 2):
        encoded = np.isin(np.arange(6), chosen).astype(float)
        six = curves(flat, flat, clusters=names, covariates={"encoded": encoded})
        given = shuffled.cluster_shuffled_curves(six).covariates["encoded"]
        assert given.sum() == 2
        assert given.tolist() != encoded.tolist()
    alike = curves(flat, flat, clusters=names, covariates={"encoded": np.ones(6)})
    assert shuffled.cluster_shuffled_curves(alike).covariates["encoded"].tolist() == [1.0] * 6


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_seed_is_shuffled_alike(change):
    """Of a second seed, whose curves are the first's with 10 added, the same tasks and layers change places."""
    second = replace(CURVES, **{name: getattr(CURVES, name) + 10 for name in ("base", "tuned", "null", "ceiling")})
    one, other = change(CURVES), change(second)
    for name in ("base", "tuned", "null", "ceiling"):
        assert getattr(other, name) == pytest.approx(getattr(one, name) + 10)
    assert np.array_equal(one.held_out, other.held_out)
    assert np.array_equal(one.covariates["size"], other.covariates["size"])


def test_exchanged_whole_numbers_become_fractions():
    """A control in whole numbers would lose the curves that it exchanges."""
    changed = shuffled.swapped_curves(curves(np.zeros((4, 1), dtype=int), np.full((4, 1), 0.9)))
    assert sorted(changed.base.ravel().tolist()) == [0.0, 0.0, 0.9, 0.9]


def test_covariates_of_clusters_that_are_words():
    words = replace(CURVES, covariates={"kind": np.array([str(cluster) for cluster in CURVES.clusters])})
    given = shuffled.cluster_shuffled_curves(words).covariates["kind"].tolist()
    assert given != words.covariates["kind"].tolist()
    assert set(given) == set(words.covariates["kind"].tolist())
