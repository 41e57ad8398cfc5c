from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from scipy.spatial.distance import pdist, squareform
from sklearn.neighbors import NearestNeighbors

from probes.functional import neighbour_purity, neighbour_purity_chance, wilson_interval
from probes.functional.neighbour_purity import (
    nearest_rows,
    nearest_rows_of_other_units,
    purity_by_query,
    purity_interval,
)
from tasks import InputError
from tests.calibration.neighbour_purity import false_positive_rate
from tests.probes.functional.test_cka import gaussians

MODULE = sys.modules["probes.functional.neighbour_purity"]


def by_loop(x: Float[torch.Tensor, "row dim"], k: int) -> list[list[int]]:
    """Return neighbours, the first of those equally near."""
    distance = squareform(pdist(x.double().numpy()))
    return [
        sorted(sorted((j for j in range(len(x)) if j != i), key=lambda j: (distance[i, j], j))[:k])
        for i in range(len(x))
    ]


def test_neighbour_purity_equals_a_loop() -> None:
    (x,) = gaussians(40, 3)
    labels = torch.arange(40) % 3
    x[:, 0] += 2 * labels
    distance = torch.from_numpy(squareform(pdist(x.numpy()))).fill_diagonal_(torch.inf)
    expected = (labels[distance.argsort(dim=1)[:, :5]] == labels[:, None]).double().mean()
    assert neighbour_purity(x + 1e5, labels, k=5) == pytest.approx(float(expected))
    shuffled = [neighbour_purity(x, labels[torch.randperm(40)], k=5) for _ in range(60)]
    assert np.mean(shuffled) == pytest.approx(neighbour_purity_chance(labels), abs=0.03)
    assert math.isnan(neighbour_purity_chance([3]))


# ---- which are nearest ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d", "k"), [(700, 64, 10), (300, 900, 1), (40, 3, 39)])
def test_nearest_equals_scikit_learn(dtype: torch.dtype, n: int, d: int, k: int) -> None:
    (x,) = gaussians(n, d)
    x = (x + 5 * gaussians(4, d, seed=1)[0][torch.arange(n) % 4]).to(dtype)
    expected = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(x.double()).kneighbors(return_distance=False)
    assert np.array_equal(nearest_rows(x, k).numpy(), np.sort(expected, axis=1))


@pytest.mark.parametrize("k", [1, 4, 30])
def test_of_equally_near_rows_the_first_count(k: int) -> None:
    """Points of a grid, many of them several times: ties everywhere."""
    x = torch.randint(4, (60, 3), generator=torch.Generator().manual_seed(0)).float()
    assert nearest_rows(x, k).tolist() == by_loop(x, k)
    assert nearest_rows(torch.ones(6, 2), 2).tolist() == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1], [0, 1]]
    assert nearest_rows(torch.eye(6), 2).tolist() == nearest_rows(torch.ones(6, 2), 2).tolist()


def test_rows_that_are_the_same_cost_nothing(monkeypatch: Any) -> None:
    """A few states serve all prompts at layer 0."""
    monkeypatch.setattr(MODULE, "_Search", None)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))[torch.arange(60) % 3]
    assert nearest_rows(x, 5).tolist() == by_loop(x, 5)


def test_neither_blocks_nor_threads_nor_precision_count(monkeypatch: Any) -> None:
    x = torch.randint(3, (200, 5), generator=torch.Generator().manual_seed(0)).float()
    x = torch.cat([x, gaussians(200, 5)[0].float()])
    expected = nearest_rows(x, 7)
    threads = torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_num_threads(threads + 1)
        torch.set_float32_matmul_precision("medium")
        monkeypatch.setattr(MODULE, "PRODUCTS_AT_ONCE_CPU", 1)
        monkeypatch.setattr(MODULE, "NUMBERS_PREPARED_AT_ONCE", 64)
        assert torch.equal(nearest_rows(x, 7), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
    queries = torch.tensor([399, 3, 200])
    assert torch.equal(nearest_rows(x, 7, queries), expected[queries])
    shuffled = torch.randperm(200, generator=torch.Generator().manual_seed(1)) + 200  # those without ties
    order = torch.cat([torch.arange(200), shuffled])
    neighbours = nearest_rows(x[order], 7, torch.arange(200, 400))
    assert torch.equal(order[neighbours].sort().values, expected[order[200:]])


@pytest.mark.parametrize("far", [1e4, 1e9])
def test_where_float32_cannot_tell(far: float) -> None:
    """Clusters that are narrow and far apart; an outlier; rows in float64 that float32 takes for one."""
    (x,) = gaussians(90, 4)
    x += far * gaussians(3, 4, seed=1)[0][torch.arange(90) % 3]
    x[7] = -1e3 * far
    assert nearest_rows(x, 5).tolist() == by_loop(x, 5)
    assert nearest_rows(1 + 1e-9 * gaussians(30, 3)[0], 3).tolist() == by_loop(gaussians(30, 3)[0], 3)


def test_mps_is_the_cpu() -> None:
    """It has no float64."""
    (x,) = gaussians(20, 3)
    units = torch.arange(20)
    expected = nearest_rows(x, 4)
    assert torch.equal(nearest_rows(x, 4, device="mps"), expected)
    assert torch.equal(nearest_rows_of_other_units(x, 4, units, device="mps"), expected)


@pytest.mark.parametrize("far", [1e4, 1e6])
def test_rows_of_other_units_far_from_the_mean(far: float) -> None:
    (x,) = gaussians(60, 4)
    x = torch.cat([far * torch.where(torch.arange(60) < 30, 1.0, -1.0)[:, None], 1e-3 * x], dim=1).float()
    assert nearest_rows_of_other_units(x, 3, torch.arange(60)).tolist() == by_loop(x, 3)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_scale_does_not_count(scale: float) -> None:
    x = gaussians(60, 4)[0].float()
    units = torch.arange(60) // 2
    assert torch.equal(nearest_rows(x * scale, 5), nearest_rows(x, 5))
    assert torch.equal(nearest_rows_of_other_units(x * scale, 5, units), nearest_rows_of_other_units(x, 5, units))


@pytest.mark.parametrize("scale", [1e-170, 1e160])
def test_rows_whose_squares_float64_cannot_hold(scale: float) -> None:
    x = gaussians(40, 4)[0].double()
    units = torch.arange(40)
    assert nearest_rows_of_other_units(x * scale, 5, units).tolist() == by_loop(x, 5)
    assert torch.equal(nearest_rows(x * scale, 5), nearest_rows(x, 5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    x = gaussians(5000, 300)[0].bfloat16()
    assert torch.equal(nearest_rows(x, 10, device="cuda"), nearest_rows(x, 10))


# ---- the interval ----


@pytest.mark.slow
@pytest.mark.parametrize("classes", ["2 classes, equal", "2 classes, unequal", "10 classes, equal"])
@pytest.mark.parametrize("d", [4, 50])
def test_the_interval_excludes_chance_in_at_most_5_of_100(classes: str, d: int) -> None:
    called, draws = false_positive_rate(500, 0, f"n 100, {classes}, d {d}")
    assert called <= 0.05 * draws


@pytest.mark.parametrize("apart", [2.0, 4.0])
def test_the_interval_holds_the_mean_purity_of_clusters(apart: float) -> None:
    """Clusters that overlap: over draws of the states the interval contains the mean 95 times in 100."""
    draw = np.random.default_rng(0)
    labels = np.arange(100) % 2
    purities = []
    intervals = []
    for _ in range(300):
        x = draw.standard_normal((100, 50))
        x[:, 0] += apart * labels
        near = nearest_rows(torch.from_numpy(x), 10)
        purities.append(purity_by_query(near, labels).mean())
        intervals.append(purity_interval(near, labels))
    inside = [low <= np.mean(purities) <= high for low, high in intervals]
    assert np.mean(inside) >= 0.92


def test_the_interval_equals_the_jackknife_by_loops() -> None:
    (x,) = gaussians(30, 3)
    labels = torch.arange(30) % 3
    k = 4
    near = nearest_rows(x, k)
    pairs = [(i, j, float(labels[i] == labels[j])) for i in range(30) for j in near[i].tolist()]
    mean = np.mean([same for _, _, same in pairs])
    parts = [sum((same - mean) / len(pairs) for i, j, same in pairs if example in (i, j)) for example in range(30)]
    n = mean * (1 - mean) / (30 / 29 * np.sum(np.square(parts)))  # binary outcomes of this variance
    middle = mean + 1.96**2 / (2 * n)
    half = 1.96 * math.sqrt(mean * (1 - mean) / n + 1.96**2 / (4 * n * n))
    expected = [(middle + side * half) / (1 + 1.96**2 / n) for side in (-1, 1)]
    assert purity_interval(near, labels) == pytest.approx(expected, abs=1e-4)


def test_the_interval_of_pure_neighbours_is_wilson_s() -> None:
    from scipy.stats import binomtest

    near = torch.stack([torch.arange(52).roll(2), torch.arange(52).roll(-2)], dim=1)
    for share, labels in ((52, torch.arange(52) % 2), (0, torch.arange(52) // 2 % 2)):
        expected = binomtest(share, 52).proportion_ci(method="wilson")
        assert purity_interval(near, labels) == pytest.approx((expected.low, expected.high))
        assert purity_interval(near, labels)[share > 0] == share / 52  # not beside it by rounding
    assert purity_interval(near[:2], torch.arange(52) % 2, torch.arange(2)) == pytest.approx(wilson_interval(2, 2))
    assert all(math.isnan(end) for end in purity_interval(near[:1], torch.arange(52), torch.tensor([0])))


def test_the_interval_of_pure_neighbours_counts_the_units_of_queries() -> None:
    near = torch.tensor([[4, 6], [5, 6], [304, 306]])
    labels = torch.arange(600) // 300
    queries = torch.tensor([0, 1, 300])
    assert purity_interval(near, labels, queries, torch.arange(600) // 2) == pytest.approx(wilson_interval(2, 2))


def test_the_interval_of_some_queries_is_wider() -> None:
    (x,) = gaussians(200, 4)
    labels = torch.arange(200) % 2
    queries = torch.arange(0, 200, 5)
    low, high = purity_interval(nearest_rows(x, 10), labels)
    low_of_some, high_of_some = purity_interval(nearest_rows(x, 10, queries), labels, queries)
    assert high_of_some - low_of_some > 1.5 * (high - low)


def test_labels_that_are_nan_are_refused() -> None:
    near = torch.tensor([[1], [0], [1]])
    labels = torch.tensor([0.0, torch.nan, 1.0])
    for call in (
        lambda: neighbour_purity(gaussians(3, 2)[0], labels, k=1),
        lambda: neighbour_purity_chance(labels),
        lambda: purity_by_query(near, labels),
        lambda: purity_interval(near, labels),
    ):
        with pytest.raises(InputError, match="labels has nan at row 1; leave the example out, or label it"):
            call()


def test_shares_of_some_rows() -> None:
    labels = torch.tensor([4, 4, 9, 4])
    near = torch.tensor([[1, 2], [0, 3]])
    assert purity_by_query(near, labels, torch.tensor([3, 2])).tolist() == [0.5, 0.0]


def test_what_is_refused() -> None:
    (x,) = gaussians(6, 2)
    for call, message in (
        (lambda: neighbour_purity(x, torch.arange(5)), "x has 6 rows and labels 5; give both for the same rows"),
        (lambda: neighbour_purity(x, torch.arange(6), k=6), "k is 6 for 6 examples; expected 1 to 5"),
        (lambda: nearest_rows(x.log(), 2), "x has NaN or infinity in row 0; leave the example out"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            call()
