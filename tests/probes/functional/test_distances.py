"""Distances in blocks are those of rows subtracted from each other."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from scipy.spatial.distance import cdist

from probes.functional.distances import Distances, first_at_distance_zero, squared_differences
from probes.functional.matrix_blocks import upper_matrix_blocks
from tasks import InputError
from tests.probes.functional.test_cka import gaussians


def whole(distances: Distances) -> Float[np.ndarray, "row row"]:
    """All of them, from blocks of 7 rows and columns, in the unit of the rows."""
    n = distances.n
    squared = torch.full((n, n), torch.nan, dtype=torch.float64)
    for rows, columns in upper_matrix_blocks(distances.n, 7):
        squared[rows, columns] = distances.squared(rows, columns)
        squared[columns, rows] = squared[rows, columns].T
    return squared.sqrt().numpy() / distances.scale


@pytest.mark.parametrize("shift", [0.0, 1e6])
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_distances_equal_scipy(shift: float, scale: float) -> None:
    (x,) = gaussians(40, 5)
    x = (x + shift) * scale
    distances = whole(Distances(x))
    assert np.allclose(distances / scale, cdist(x / scale, x / scale), rtol=1e-12, atol=1e-9)
    assert (distances.diagonal() == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_any_dtype(dtype: torch.dtype) -> None:
    x = (10 * gaussians(40, 5)[0]).to(dtype)
    expected = cdist(x.double(), x.double())
    assert np.allclose(whole(Distances(x)), expected, rtol=1e-12, atol=1e-12)


def test_rows_that_are_the_same_are_exactly_so() -> None:
    """However far from the mean: the products alone round to more than 0 there."""
    (x,) = gaussians(30, 50)
    x = (x + 100 * torch.arange(30)[:, None]).float()
    x = torch.cat([x, x])
    assert first_at_distance_zero(x).tolist() == 2 * list(range(30))
    distances = whole(Distances(x))
    assert (distances[:30, 30:].diagonal() == 0).all()
    assert ((distances == 0).sum(1) == 2).all()


def near_and_far() -> Float[torch.Tensor, "row dim"]:
    """Rows about 0, and three near each other, a million times as far away, in the first block and the last."""
    (x,) = gaussians(40, 5)
    places = [0, 1, 39]
    x[places] = 1e6 + 1e-3 * x[places]
    return x


def test_near_rows_far_away_are_found_by_subtraction() -> None:
    x = near_and_far()
    expected = cdist(x, x)
    distances = Distances(x)
    assert np.allclose(whole(distances), expected, rtol=1e-9)
    distances.resolve(typical=1.0, smallest=torch.inf)
    assert not np.allclose(whole(distances), expected, rtol=1e-3)  # what products lose
    distances.resolve(typical=float(np.median(expected) * distances.scale) ** 2, smallest=(1e-3 * distances.scale) ** 2)
    assert not distances.exact
    assert np.allclose(whole(distances), expected, rtol=1e-9)


def test_where_most_pairs_are_near_and_far_away_all_are_subtracted() -> None:
    x = near_and_far()
    distances = Distances(x)
    distances.resolve(typical=(1e-4 * distances.scale) ** 2, smallest=0.0)
    assert distances.exact
    assert np.allclose(whole(distances), cdist(x, x), rtol=1e-9)


def test_pairs_do_not_depend_on_each_other(monkeypatch: Any) -> None:
    (x,) = gaussians(30, 700)
    i, j = torch.triu_indices(30, 30, 1)
    expected = squared_differences(x.float(), i, j)
    assert np.allclose(expected.sqrt(), cdist(x.float().double(), x.float().double())[i, j], rtol=1e-13)
    monkeypatch.setattr(sys.modules["probes.functional.distances"], "MAX_NUMBERS_IN_CACHE", 700 * 7)
    assert torch.equal(squared_differences(x.float(), i, j), expected)
    assert torch.equal(squared_differences(x.float(), i[5:6], j[5:6]), expected[5:6])
    assert len(squared_differences(x, i[:0], j[:0])) == 0


def test_what_is_refused() -> None:
    x = torch.zeros(6, 2)
    x[4, 1] = torch.nan
    for given, message in (
        (x, "x has NaN or infinity in row 4; leave the example out"),
        (torch.zeros(3), "x has shape (3,); expected real numbers [row dim], at least one of each"),
        (torch.zeros(0, 3), "x has shape (0, 3); expected real numbers [row dim], at least one of each"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            Distances(given)
