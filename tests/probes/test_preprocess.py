from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from probes import Preprocess
from probes.functional.preprocess import outlier_dimensions, unit_length, without_class_means
from probes.functional.top_components import principal_coordinates
from tasks import InputError

DRAW = torch.Generator().manual_seed(0)
ROWS = torch.randn(40, 7, generator=DRAW) * torch.tensor([1.0, 2, 1, 50, 1, 3, 1]) + 10
GIVEN = torch.arange(40) % 3


def test_nothing_is_done_by_default() -> None:
    rows, dropped, notes = Preprocess().apply(ROWS)
    assert torch.equal(rows, ROWS)
    assert (dropped, notes) == (0, [])


def test_class_means_are_removed() -> None:
    rows = without_class_means(ROWS, GIVEN)
    for c in range(3):
        torch.testing.assert_close(rows[c == GIVEN], ROWS[c == GIVEN].double() - ROWS[c == GIVEN].double().mean(0))


def test_equal_rows_leave_exactly_nothing() -> None:
    """The rounding of a mean would be clusters of its own."""
    rows = torch.randn(3, 500, dtype=torch.float64, generator=DRAW)[GIVEN]
    assert (rows - rows[GIVEN == 0].mean(0))[GIVEN == 0].abs().max() > 0  # so it would
    assert not without_class_means(rows, GIVEN).any()


def test_outlier_dimensions_are_left_out() -> None:
    assert outlier_dimensions(ROWS, 10).tolist() == [3]
    assert outlier_dimensions(ROWS, 100).tolist() == []
    assert outlier_dimensions(torch.ones(5, 3), 2).tolist() == []
    sparse = torch.zeros(40, 9)
    sparse[:, :3] = ROWS[:, 2:5]  # most dimensions are constant: they say nothing about what is usual
    assert outlier_dimensions(sparse, 10).tolist() == [1]
    rows, dropped, _ = Preprocess(drop_outliers=10).apply(ROWS)
    assert dropped == 1
    assert torch.equal(rows, ROWS[:, [0, 1, 2, 4, 5, 6]])


def test_standardised_as_scikit_learn() -> None:
    constant = torch.cat([ROWS, torch.full((40, 1), 0.1)], dim=1)
    rows, _, _ = Preprocess(standardise=True).apply(constant)
    expected = StandardScaler().fit_transform(constant.double().numpy())
    torch.testing.assert_close(rows, torch.from_numpy(expected).float(), rtol=1e-5, atol=1e-6)
    assert not rows[:, 7].any()


@pytest.mark.parametrize("n", [40, 6])
def test_components_are_scikit_learns(n: int) -> None:
    found, expected = (
        principal_coordinates(ROWS[:n], 3),
        torch.from_numpy(PCA(3).fit_transform(ROWS[:n].double().numpy())),
    )
    torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-8, atol=1e-8)


def test_too_many_components_are_capped_with_a_note() -> None:
    for n, k in ((40, 7), (5, 4)):
        rows, _, notes = Preprocess(pca=99).apply(ROWS[:n])
        assert rows.shape == (n, k)
        assert notes == [f"{n} rows of 7 dimensions have {k} principal components, not 99"]
        torch.testing.assert_close(torch.pdist(rows), torch.pdist(ROWS[:n]), rtol=1e-4, atol=1e-4)


def test_cosine_centres_and_scales_each_row() -> None:
    rows = torch.cat([ROWS, ROWS.mean(0, keepdim=True)])
    found = unit_length(rows)
    centred = rows.double() - rows.double().mean(0)
    torch.testing.assert_close(found[:40], torch.nn.functional.normalize(centred)[:40], rtol=1e-6, atol=1e-6)
    same, _, notes = Preprocess(cosine=True).apply(torch.full((5, 3), 0.1))
    assert not same.any()
    assert notes == ["5 of 5 rows are the mean of all, and have no direction; they stay 0"]


def test_the_order_is_given_outliers_scale_components_length() -> None:
    found, dropped, notes = Preprocess(10, True, 2, True).apply(ROWS, GIVEN)
    x = without_class_means(ROWS, GIVEN)
    x = x[:, [i for i in range(7) if i not in outlier_dimensions(x, 10).tolist()]]
    x = torch.from_numpy(PCA(2).fit_transform(StandardScaler().fit_transform(x.numpy())))
    torch.testing.assert_close(found.abs(), torch.nn.functional.normalize(x).abs().float(), rtol=1e-5, atol=1e-5)
    assert (dropped, notes, found.dtype) == (1, [], torch.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"drop_outliers": 1.0}, "drop_outliers is 1.0; expected above 1"),
        ({"pca": 0}, "pca is 0; expected at least 1"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Preprocess(**arguments)
