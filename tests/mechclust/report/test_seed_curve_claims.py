"""Claims about the curves of several seeds: judged over seeds, and seldom true of draws in which they are false."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechclust.report.curve_statistics import last_gap, upper_gap
from mechclust.report.null_curves import permuted_held_out_within, swapped
from mechclust.report.seed_curve_claims import SeedCurveClaim, SeedNull, each, judged_over_seeds, same_clusters
from mechclust.report.task_curves import TaskCurves
from mechclust.report.verdicts import Bound, interval

TASKS = tuple(f"{cluster}-{k}" for cluster in "abc" for k in range(4))
NULL = SeedNull(each(swapped), "swapped")


def curves(gain, seed=0):
    noise = np.random.default_rng(seed).normal(0, 0.02, (2, 12, 4))
    base = np.linspace(0.9, 0.3, 4)[None] + noise[0]
    held = np.array([k == 3 for _ in "abc" for k in range(4)])
    clusters = tuple(task[0] for task in TASKS)
    return TaskCurves(TASKS, tuple("1234"), base, base + gain + noise[1], None, None, held, clusters)


def made(gain, n=5, **fields):
    parts = (("last", last_gap, Bound(">", 0)), ("upper", upper_gap, Bound(">=", 0.1)))
    return SeedCurveClaim("X1", "tuned > pre", "ours", parts, NULL, [curves(gain, s) for s in range(n)], **fields)


@pytest.mark.parametrize(("gain", "verdict"), [(0.3, "holds"), (-0.3, "does not hold"), (0.1, "undecided")])
def test_values_and_intervals_are_of_the_seeds(gain, verdict):
    test = made(gain)
    (found,) = judged_over_seeds([test], draws=0)
    assert found.verdict == verdict
    expected = [float(np.median(c.tuned, axis=0)[-1] - np.median(c.base, axis=0)[-1]) for c in test.curves]
    assert found.per_seed == pytest.approx(expected)
    assert found.interval == pytest.approx(interval(expected))
    assert [part.name for part in found.parts] == ["last", "upper"]


def test_severity_and_power_are_shares_of_draws_that_the_claim_itself_judges():
    planted = each(lambda one, draw: curves(0.3, int(draw.integers(1000))))
    (found,) = judged_over_seeds([made(0.3, planted=planted)])
    assert (found.severity_draws, found.power, found.severity_note) == (200, 1.0, "swapped")
    assert found.severity > 0.95
    never = SeedNull(lambda given, draw: given, "nothing is changed")
    (found,) = judged_over_seeds([replace(made(0.3), null=never)])
    assert found.severity == 0


def test_without_severity_it_is_said_why():
    notes = [
        judged_over_seeds([test], draws=draws)[0].severity_note
        for test, draws in ((made(0.3, why_not="too few"), 200), (made(0.3, n=1), 200), (made(0.3), 0))
    ]
    assert notes == [
        "too few",
        "not computed: one seed decides nothing",
        "not counted, since no draws were asked for",
    ]


def test_what_is_not_tested_has_no_number():
    (found,) = judged_over_seeds([made(0.3, why_not="too few")])
    assert (found.verdict, found.measured, found.per_seed) == ("not tested", None, ())


def test_other_cells_of_a_cluster_are_held_out():
    one = curves(0.3)
    drawn = [permuted_held_out_within(one, np.random.default_rng(i)).held_out.reshape(3, 4) for i in range(20)]
    assert all((held.sum(axis=1) == 1).all() for held in drawn)
    assert len({held.tobytes() for held in drawn}) > 10


def test_a_covariate_goes_to_other_clusters_the_same_in_all_seeds():
    own = np.repeat([1.0, 0.0, 0.0], 4)
    given = [replace(curves(0.3, s), covariates={"new": own}) for s in range(2)]
    for i in range(10):
        one, other = (c.covariates["new"] for c in same_clusters(given, np.random.default_rng(i), "new"))
        assert np.array_equal(one, other)
        assert not np.array_equal(one, own)
        assert sorted(one) == sorted(own)
        assert all(len(set(one[k : k + 4])) == 1 for k in (0, 4, 8))
