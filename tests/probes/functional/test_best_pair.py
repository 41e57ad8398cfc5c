"""The most similar layer of another model: nothing among unrelated ones, and a shifted copy is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probes.functional import linear_cka
from probes.functional.best_pair import best_pairs
from tasks import InputError
from tests.calibration.best_pair import CASES, false_positive_rate


def layers(n_layers, n=60, d=6, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, generator=draw) for _ in range(n_layers)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_seldom_where_there_is_nothing(case):
    """At most 5%: of 60 draws, 7 or fewer in 98% of the cases."""
    calls, draws = false_positive_rate(60, 7, case)
    assert draws == 60
    assert calls <= 7


def test_a_copy_that_is_shifted_by_a_layer_is_found():
    base = layers(4)
    noise = layers(3, seed=1)
    tuned = [base[i + 1] + 0.3 * noise[i] for i in range(3)]
    pairs = best_pairs(tuned, base, [0, 1, 2])
    assert pairs.best.tolist() == [1, 2, 3]
    assert pairs.elsewhere.all()
    assert (pairs.difference > 0.5).all()


def test_a_copy_that_is_where_it_is_expected_is_not_elsewhere():
    base = layers(3)
    pairs = best_pairs(base, base, [0, 1, 2])
    assert (pairs.adjusted <= 0.05).all()
    assert not pairs.elsewhere.any()
    assert pairs.difference.tolist() == [0, 0, 0]


def test_p_values_count_the_largest_of_the_same_pairings():
    """Against a plain loop over pairings."""
    tuned = layers(2, n=20)
    base = layers(3, n=20, seed=1)
    pairs = best_pairs(tuned, base, [0, 1], n_permutations=30, n_resamples=20, seed=3)
    draw = torch.Generator().manual_seed(3)
    orders = [torch.randperm(20, generator=draw) for _ in range(30)]
    for i, x in enumerate(tuned):
        expected = [float(linear_cka(x, y, debiased=True)) for y in base]
        largest = [max(float(linear_cka(x, y[order], debiased=True)) for y in base) for order in orders]
        assert pairs.cka[i] == pytest.approx(expected)
        assert pairs.p_value[i] == pytest.approx((1 + sum(v >= max(expected) for v in largest)) / 31)


def test_repeated_prompts_are_units():
    """Each of 12 prompts given four times: re-paired and resampled one by one, unrelated layers seem alike."""
    calls = {"units": 0, "rows": 0}
    repeated = torch.arange(12).repeat_interleave(4)
    for seed in range(20):
        tuned = [rows[repeated] for rows in layers(2, n=12, seed=seed)]
        base = [rows[repeated] for rows in layers(2, n=12, seed=100 + seed)]
        for name, units in (("units", repeated), ("rows", None)):
            pairs = best_pairs(tuned, base, [0, 1], n_permutations=60, n_resamples=20, seed=seed, units=units)
            calls[name] += bool((pairs.adjusted <= 0.05).any())
    assert calls["units"] <= 4  # of 20 at 5%, more in .3% of the cases
    assert calls["rows"] >= 15


def test_too_few_units_have_no_p_value():
    pairs = best_pairs(layers(2), layers(2), [0, 1], units=torch.arange(60) % 3)
    assert np.isnan([pairs.p_value, pairs.adjusted]).all()
    assert not pairs.elsewhere.any()


def test_undefined_layers_are_nan_and_not_in_the_search():
    base = layers(3)
    constant = torch.ones(60, 6)
    pairs = best_pairs([constant, base[2]], [constant, *base[1:]], [0, 1])
    assert pairs.best.tolist() == [-1, 2]
    assert np.isnan([pairs.p_value[0], pairs.adjusted[0], pairs.difference[0]]).all()
    assert pairs.elsewhere.tolist() == [False, True]


@pytest.mark.parametrize("expected", [[0], [0, 3], [0, -1]])
def test_expected_layers_that_are_not_there(expected):
    with pytest.raises(InputError, match="one place of a base layer"):
        best_pairs(layers(2), layers(3), expected)
