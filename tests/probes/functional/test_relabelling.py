"""Permutation tests: exact against brute force, uniform under relabelling, Holm over all heads."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from probes.functional import within_ratio
from probes.functional.holm import holm_over_heads
from probes.functional.permutation_test import enough_permutations
from probes.functional.relabelling import (
    relabelled_shares,
    relabelling_measures,
    relabelling_of,
    relabelling_p_values,
)
from probes.functional.within_ratio import within_ratio_chance
from tasks import InputError


def test_units_are_exchanged_as_a_whole() -> None:
    labels = torch.tensor([3, 3, 8, 8]).repeat_interleave(10)
    assert relabelling_of(labels).enough(named=False)
    units = torch.arange(4).repeat_interleave(10)
    assert not relabelling_of(labels, units=units).enough(named=False)  # 4 units in two halves: 3 ways
    assert not relabelling_of(labels, strata=labels).enough(named=False)


def test_units_that_are_larger_in_one_class_are_told() -> None:
    labels = torch.tensor([0, 1]).repeat_interleave(120)
    equal = torch.arange(240) // 12
    larger = torch.where(labels == 0, equal, 100 + torch.arange(240) // 4)
    assert relabelling_of(labels, units=equal).unequal_units("task", "template") == ""
    assert relabelling_of(labels, units=larger).unequal_units("task", "template") == (
        "the units ('template') of one class of 'task' are 3.0 times as large as those of another, so p-values are too "
        "small; give each class units of about equal size"
    )
    assert relabelling_of(torch.arange(240) % 2, units=larger).unequal_units("task", "template") == ""
    mixed = labels.clone()
    mixed[:12] = torch.arange(12) % 2  # one unit has both classes
    assert relabelling_of(mixed, units=equal).unequal_units("task", "template") == ""


def test_it_is_the_share_of_all_relabellings() -> None:
    """Seven points and their 210 labellings, each of which 24 orders give: the drawn share comes to the exact one."""
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(7, 2, 3, generator=draw)
    labels = torch.tensor([0, 0, 0, 1, 1, 5, 5])
    points[:, 0] += labels[:, None] / 3
    p_values = relabelling_p_values(points, labels, 4000)
    for head in range(2):
        given = within_ratio(points[:, head], labels) + 1e-9
        labellings = set(itertools.permutations(labels.tolist()))
        exact = sum(bool(within_ratio(points[:, head], torch.tensor(x)) <= given) for x in labellings) / len(labellings)
        assert float(p_values[head]) == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 4000) ** 0.5 + 1e-3)
        assert 0.005 < exact < 0.9


def test_p_values_are_uniform_under_relabelling() -> None:
    """Clustered points and labels that have nothing to do with them."""
    draw = torch.Generator().manual_seed(1)
    points = torch.randn(30, 4, 3, generator=draw) + 3 * torch.randint(3, (30, 4, 1), generator=draw)
    labels = torch.arange(30) % 3
    p_values = torch.stack(
        [relabelling_p_values(points, labels[torch.randperm(30, generator=draw)], 199, seed=i) for i in range(150)]
    )
    for head in range(4):
        assert kstest(p_values[:, head].numpy(), "uniform").pvalue > 1e-3
    holds = torch.stack([holm_over_heads(row[None])[0].min() <= 0.05 for row in p_values]).double().mean()
    assert float(holds) <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5  # of the whole family


def test_a_stratum_explains_what_it_explains() -> None:
    """The points follow the stratum, and so do the labels: within strata nothing is left."""
    draw = torch.Generator().manual_seed(2)
    stratum = torch.arange(60) % 3 * 10
    labels = (stratum + 10 * (torch.rand(60, generator=draw) < 0.2)) % 30
    points = stratum[:, None, None] / 10 + 0.3 * torch.randn(60, 1, 2, generator=draw)
    assert float(relabelling_p_values(points, labels)) == 0.001
    assert float(relabelling_p_values(points, labels, strata=stratum)) > 0.02
    both = points + labels[:, None, None] / 10
    assert float(relabelling_p_values(both, labels, strata=stratum)) == 0.001


def test_chunks_and_other_heads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(3)
    points = torch.randn(20, 3, 2, generator=draw)
    labels = torch.randint(4, (20,), generator=draw)
    whole = relabelling_p_values(points, labels, 300)
    assert torch.equal(relabelling_p_values(points[:, 1:2], labels, 300), whole[1:2])
    monkeypatch.setattr("probes.functional.relabelling._MAX_NUMBERS_AT_ONCE", 1000)
    assert torch.equal(relabelling_p_values(points, labels, 300), whole)


def test_what_is_undefined_is_nan_and_ties_count_against() -> None:
    points = torch.stack([torch.full((8,), 0.1), torch.arange(8.0)], dim=1)[..., None]
    p_values = relabelling_p_values(points, torch.arange(8) % 2)
    assert p_values.isnan().tolist() == [True, False]
    assert relabelling_p_values(points, torch.zeros(8)).isnan().all()
    assert relabelling_p_values(points, torch.arange(8)).isnan().all()  # every relabelling is as good
    assert relabelling_p_values(points[:6], torch.arange(6) % 2).isnan().all()  # 10 relabellings


def test_what_is_refused() -> None:
    points = torch.zeros(3, 1, 1)
    with pytest.raises(InputError, match=re.escape("points has 3 rows and labels 2; give both for the same rows")):
        relabelling_p_values(points, torch.zeros(2))
    with pytest.raises(InputError, match=re.escape("points has 3 rows and strata 4; give both for the same rows")):
        relabelling_p_values(points, torch.zeros(3), strata=torch.zeros(4))
    with pytest.raises(InputError, match="permutations is 0"):
        relabelling_p_values(points, torch.zeros(3), 0)


def test_holm_counts_undefined_heads() -> None:
    p = torch.tensor([[0.01, torch.nan, 0.02, 0.9]], dtype=torch.float64)
    assert holm_over_heads(p)[0, [0, 2, 3]].tolist() == pytest.approx([0.04, 0.06, 1])
    assert holm_over_heads(p)[0, 1].isnan()
    assert [tests / (1 + enough_permutations(tests)) <= 1 / 40 for tests in (1, 24, 270, 1000)] == [True] * 4


class TestBestHead:
    def test_shares_are_one_minus_the_within_ratio(self):
        draw = torch.Generator().manual_seed(0)
        points = torch.randn(30, 3, 2, generator=draw, dtype=torch.float64)
        labels = torch.arange(30) % 4
        observed, null = relabelled_shares(points, labels, 50)
        assert observed.tolist() == pytest.approx([1 - float(within_ratio(points[:, i], labels)) for i in range(3)])
        assert null.shape == (50, 3)
        assert float(1 - null.mean()) == pytest.approx(within_ratio_chance(labels), abs=0.02)

    def test_is_judged_by_the_best_of_the_heads_in_every_relabelling(self):
        draw = torch.Generator().manual_seed(1)
        points = torch.randn(24, 5, 2, generator=draw)
        labels = torch.arange(24) % 3
        observed, null = relabelled_shares(points, labels, 199)
        measures = relabelling_measures(points, labels, 199)
        best = null.max(dim=1).values.numpy()
        assert float(measures["best_within_ratio"]) == pytest.approx(1 - float(observed.max()))
        ends = [float(measures[f"best_within_ratio_null_{end}"]) for end in ("low", "high")]
        assert ends == pytest.approx(np.quantile(1 - best, [0.025, 0.975]).tolist())
        assert float(measures["best_p_value"]) == pytest.approx(
            (1 + (best >= float(observed.max()) - 1e-9).sum()) / 200
        )
        assert torch.equal(measures["p_value"], relabelling_p_values(points, labels, 199))

    def test_many_heads_without_clusters_are_rarely_called(self):
        """One of 12 heads has p at most .05 in about half of the draws, and the best head in one of 20."""
        draw = torch.Generator().manual_seed(2)
        labels = torch.arange(20) % 2
        called = 0
        single = 0
        for _ in range(200):
            measures = relabelling_measures(torch.randn(20, 12, 2, generator=draw), labels, 99)
            called += float(measures["best_p_value"]) <= 0.05
            single += float(measures["p_value"].min()) <= 0.05
        assert 2 <= called <= 20
        assert single > 60

    def test_one_clustered_head_of_many_is_found(self):
        draw = torch.Generator().manual_seed(3)
        labels = torch.arange(40) % 2
        points = torch.randn(40, 12, 2, generator=draw)
        points[:, 7] = 4 * labels[:, None] + 0.1 * points[:, 7]
        measures = relabelling_measures(points, labels, 199)
        assert float(measures["best_p_value"]) == 1 / 200
        assert float(measures["best_within_ratio"]) < 0.05 < float(measures["best_within_ratio_null_low"])

    def test_equal_points_have_none(self):
        measures = relabelling_measures(torch.ones(8, 2, 3), torch.arange(8) % 2, 19)
        assert all(bool(value.isnan().all()) for value in measures.values())
