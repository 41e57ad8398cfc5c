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

from probes.functional import linear_cka, rbf_cka
from probes.functional.rbf_cka import GaussianKernel, gaussian_kernel_bytes, rbf_cka_of_kernels
from tasks import InputError
from tests.probes.functional.test_cka import from_kernels, gaussians, related

MODULE = sys.modules["probes.functional.rbf_cka"]


def by_definition(
    x: Float[torch.Tensor, "row dx"], y: Float[torch.Tensor, "row dy"], fraction: float, debiased: bool = False
) -> float:
    kernels = []
    for side in (x, y):
        distance = pdist(side.numpy())
        width = fraction * np.median(distance)
        kernels.append(np.exp(-(squareform(distance).astype(np.longdouble) ** 2) / 2 / width**2))
    return from_kernels(kernels[0], kernels[1], debiased)


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("fraction", [0.2, 1.0, 30.0])
def test_rbf_cka_equals_the_kernel_matrices(monkeypatch: Any, fraction: float, debiased: bool) -> None:
    monkeypatch.setattr(MODULE, "MAX_BLOCK_ROWS", 3)
    monkeypatch.setattr(MODULE, "MIN_BLOCK_ROWS", 3)
    x, y = related(31, 3, 5)
    similarity = rbf_cka(x + 1e4, 1e-9 * y, fraction=fraction, debiased=debiased)
    assert float(similarity) == pytest.approx(by_definition(x + 1e4, 1e-9 * y, fraction, debiased), abs=1e-8)


def test_rbf_cka_tends_to_linear_cka() -> None:
    x, y = related(50, 3, 5)
    assert float(rbf_cka(x, y, fraction=1e3)) == pytest.approx(float(linear_cka(x, y)), abs=1e-5)
    wheel = torch.linspace(0, 6.2, 60, dtype=torch.float64)
    ring = torch.stack([wheel.cos(), wheel.sin()], dim=1)
    assert float(linear_cka(ring, (2 * ring[:, :1] ** 2))) < 0.02 < 0.1 < float(rbf_cka(ring, ring[:, :1] ** 2))


# ---- the width ----


def median_of(x: Float[torch.Tensor, "row dim"]) -> float:
    """Return the median that the width of the kernel implies."""
    kernel = GaussianKernel(x, 1.0)
    return math.sqrt(kernel._two_s2 / 2) / kernel._distances.scale


def lattice(n: int) -> Float[torch.Tensor, "row dim"]:
    """Few distances, each many times."""
    return torch.randint(3, (n, 4), generator=torch.Generator().manual_seed(0)).double()


ROWS = {
    "cloud": gaussians(120, 6)[0],
    "an even number of pairs": gaussians(121, 6)[0],
    "two rows": gaussians(2, 6)[0],
    "far from 0": gaussians(120, 6)[0] + 1e6,
    "lattice": lattice(120),
    "every two equally far": torch.eye(120),
    "half of the distances 0": torch.cat([torch.zeros(85, 3), gaussians(35, 3)[0]]),
    "outliers": torch.cat([gaussians(110, 6)[0], 1e7 + gaussians(10, 6)[0]]),
    "narrow clusters": gaussians(120, 6)[0] + 1e4 * gaussians(120, 6, seed=1)[0].sign(),
}


@pytest.mark.parametrize("kept", [2**22, 500, 1])
@pytest.mark.parametrize("name", ROWS)
def test_the_median_is_that_of_all_distances(monkeypatch: Any, name: str, kept: int) -> None:
    """However few of them are kept: closer and closer about it."""
    monkeypatch.setattr(MODULE, "MAX_KEPT_DISTANCES", kept)
    monkeypatch.setattr(MODULE, "BINS", 16)
    monkeypatch.setattr(MODULE, "MAX_BLOCK_ROWS", 50)
    monkeypatch.setattr(MODULE, "SAMPLED_PAIRS", 2**10)
    x = ROWS[name].double()
    assert median_of(x) == pytest.approx(float(np.median(pdist(x.numpy()))), rel=1e-10)


def test_a_bracket_that_misses_the_median_is_widened(monkeypatch: Any) -> None:
    x = ROWS["cloud"]
    expected = float(np.median(pdist(ROWS["cloud"].numpy())))
    monkeypatch.setattr(MODULE, "MAX_KEPT_DISTANCES", 2000)
    for bracket in ((0.0, 1e-3), (0.9, 1.0)):  # below it and above it
        low, high = (float(torch.quantile(torch.pdist(x).square(), share)) for share in (bracket[0], bracket[1]))
        monkeypatch.setattr(MODULE, "_bracket", lambda d, low=low, high=high: (low * d.scale**2, high * d.scale**2))
        assert median_of(x) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"two rows"}))
@pytest.mark.parametrize("fraction", [0.1, 100.0])
def test_rbf_cka_equals_its_definition_where_rows_lie_badly(name: str, fraction: float) -> None:
    x = ROWS[name].double()
    y = gaussians(len(x), 3, seed=2)[0] + x[:, :3]
    assert float(rbf_cka(x, y, fraction=fraction)) == pytest.approx(by_definition(x, y, fraction), abs=1e-8)


# ---- many at once ----


def test_every_pair_of_some_rows_of_many_kernels() -> None:
    rows = dict(zip("abc", gaussians(60, 3, 4, 5), strict=True))
    rows["c"] += rows["b"][:, :1]
    rows["d"] = torch.ones(60, 2)
    kernels = {name: GaussianKernel(x, 0.5) for name, x in rows.items()}
    pairs = [(x, y) for x in "abcd" for y in "abcd"]
    similarity = rbf_cka_of_kernels(kernels, pairs)
    for x, y in pairs:
        for debiased in (False, True):
            expected = rbf_cka(rows[x], rows[y], debiased=debiased)
            value, why = similarity[x, y][debiased]
            assert value == pytest.approx(float(expected), nan_ok=True, abs=1e-12)
            assert why == expected.note


def test_memory_does_not_grow_with_the_square() -> None:
    assert gaussian_kernel_bytes(10, 1, 4) == 8 * (3 * 100 + 2 * 10 * 4)
    assert gaussian_kernel_bytes(10**6, 2, 4096) == gaussian_kernel_bytes(10**4, 2, 4096) < 2**26
    assert gaussian_kernel_bytes(10**6, 66, 4096) < 2**29


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    x, y = related(3000, 30, 50)
    assert float(rbf_cka(x.float(), y, device="cuda")) == pytest.approx(float(rbf_cka(x.float(), y)), abs=1e-12)


def test_mps_is_the_cpu() -> None:
    """It has no float64."""
    x, y = related(20, 2, 3)
    assert float(rbf_cka(x, y, device="mps")) == float(rbf_cka(x, y))


def test_rbf_cka_undefined() -> None:
    x, y = related(6, 2, 2)
    assert rbf_cka(torch.ones(6, 2), y).note == "x: all examples are the same"
    mostly = torch.zeros(6, 2)
    mostly[0] = 1
    assert rbf_cka(x, mostly).note == "y: more than half of the distances between examples are 0"
    assert math.isnan(rbf_cka(x[:3], y[:3], debiased=True).value)
    assert math.isnan(rbf_cka(x[:1], y[:1]).value)


def test_what_is_refused() -> None:
    x, y = related(6, 2, 3)
    for fraction in (0, math.inf, math.nan):
        message = f"fraction is {fraction}; expected a number above 0, such as 0.5"
        with pytest.raises(InputError, match=re.escape(message)):
            rbf_cka(x, y, fraction=fraction)
