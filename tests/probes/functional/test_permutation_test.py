import numpy as np
import pytest
import torch

from probes.functional import cka_null, linear_cka
from probes.functional.permutation_test import permutation_p_value


def test_counts_the_observed_value_itself():
    assert permutation_p_value(0.9, np.array([0.1, 0.95, 0.3])).item() == pytest.approx(0.5)
    assert permutation_p_value(0.9, np.array([0.1, 0.2, 0.3])).item() == pytest.approx(0.25)


def test_a_draw_that_differs_by_rounding_is_a_tie():
    null = torch.tensor([0.9 - 4e-16, 0.9 - 1e-6, 0.1], dtype=torch.float64)
    assert permutation_p_value(0.9, null).item() == pytest.approx(0.5)


def test_undefined_draws_do_not_count_and_an_undefined_measure_has_no_p_value():
    null = torch.tensor([[0.95, 0.95, torch.nan], [torch.nan, 0.95, torch.nan], [0.1, 0.1, torch.nan]])
    p_values = permutation_p_value(torch.tensor([0.9, torch.nan, 0.9]), null)
    assert p_values[0].item() == pytest.approx(2 / 3)
    assert p_values[1:].isnan().all()


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_p_values_of_cka_do_not_depend_on_the_order_of_the_examples(order):
    """With four examples, one pairing in 24 is the given one, and its CKA is summed in another order."""
    draw = torch.Generator().manual_seed(0)
    base = torch.randn(4, 3, dtype=torch.float64, generator=draw)
    rows = base[order]
    p_value = permutation_p_value(float(linear_cka(rows, rows)), cka_null(rows, rows, 200, seed=1))
    n_given = round(p_value.item() * 201) - 1
    assert n_given >= 200 / 24 / 3  # a third of those expected: without ties it would be near none
