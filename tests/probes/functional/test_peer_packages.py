"""Our similarities against independent packages: where their definitions agree, and where they do not.

| | ``ckatorch`` 1.0.3 | ``pytorch-cka`` 1.1.3 (``import cka``) |
|---|---|---|
| biased linear CKA of all rows | agrees (``cka_base``) | has none |
| debiased, all rows at once, float64 | agrees (``unbiased=True``, ``cka_batch``) | agrees, clamped to [0, 1] |
| debiased, rows in batches | averages HSIC over batches: depends on their size | the same |
| a mean far from 0, float32 rows | loses digits, in float64 | loses digits, in float32 |
| a constant side | NaN | 0 |
| RBF kernel | agrees at the same width; its median is of squared distances with the diagonal | has none |

SVCCA and dimensions agree with scikit-learn's PCA and SciPy's angles between subspaces.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from cka import cka_from_features, compute_cka
from ckatorch import cka_base, cka_batch
from ckatorch.utils import rbf_kernel
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA
from torch.utils.data import DataLoader, TensorDataset

from probes import CKA, run
from probes.functional import linear_cka, n_dims, rbf_cka, svcca
from probes.functional.rbf_cka import GaussianKernel, rbf_cka_of_kernels
from tests.probes.functional.test_cka import gaussians, related
from tests.probes.test_cka import every_token, states

SHAPES = [(40, 5, 7), (20, 30, 40), (200, 16, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_biased(shape: tuple[int, int, int]) -> None:
    x, y = related(*shape)
    for method in ("fro_norm", "hsic"):
        assert float(linear_cka(x, y)) == pytest.approx(float(cka_base(x, y, method=method)), abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_debiased(shape: tuple[int, int, int]) -> None:
    x, y = related(*shape)
    ours = float(linear_cka(x, y, debiased=True))
    for expected in (cka_base(x, y, unbiased=True), cka_batch(x[None], y[None]), cka_from_features(x, y)):
        assert ours == pytest.approx(float(expected), abs=1e-12)


def test_a_negative_value() -> None:
    """Kept by us and ckatorch, cut off by pytorch-cka."""
    x, y = gaussians(6, 20, 20)
    ours = float(linear_cka(x, y, debiased=True))
    assert ours < -0.02
    assert ours == pytest.approx(float(cka_base(x, y, unbiased=True)), abs=1e-12)
    assert float(cka_from_features(x, y)) == 0


@pytest.mark.parametrize("debiased", [False, True])
def test_rbf(debiased: bool) -> None:
    x, y = related(60, 3, 5)
    reference = float(cka_base(x, y, kernel="rbf", unbiased=debiased, threshold=0.5))
    widths = [0.5 * math.sqrt(-1 / (2 * float(rbf_kernel(side)[0, 1].log()))) for side in (x, y)]
    widths = [w * float((side[0] - side[1]).norm()) for w, side in zip(widths, (x, y), strict=True)]
    fractions = [w / float(torch.pdist(side).quantile(0.5)) for w, side in zip(widths, (x, y), strict=True)]
    kernels = {name: GaussianKernel(side, f) for name, side, f in zip("xy", (x, y), fractions, strict=True)}
    same, _ = rbf_cka_of_kernels(kernels, [("x", "y")])["x", "y"][debiased]
    assert same == pytest.approx(reference, abs=1e-12)
    ours = float(rbf_cka(x, y, debiased=debiased))
    assert 1e-6 < abs(ours - reference) < 0.02  # another median


def test_in_batches(fake_model: Any) -> None:
    """Compare the same activations of one model; pytorch-cka's value goes with the batch size, ours does not."""
    planted = states(64, 8, 8)
    model = fake_model(*planted)
    data = TensorDataset(torch.arange(64)[:, None])

    def theirs(batch_size: int) -> float:
        loader = DataLoader(data, batch_size)
        (matrix,) = compute_cka(model, model, loader, layers=["points.0", "points.1"], device="cpu", progress=False)
        return float(matrix[0, 1])

    exact = float(linear_cka(*planted, debiased=True))
    for size in (64, 8):
        ours = run(model, every_token(64).split(size), CKA())["debiased_cka"]
        assert float(ours[0, 1, 0]) == pytest.approx(exact, abs=1e-12)
    assert theirs(64) == pytest.approx(exact, abs=1e-5)  # float32
    assert abs(theirs(8) - exact) > 1e-3


def test_small_numbers_and_far_means() -> None:
    """A rotation, in float32: we say 1; of kernels that are not centred too few digits are left."""
    x = related(40, 5, 7)[0].float()
    for rows in (1e-12 * x, x + 1e4):
        assert float(linear_cka(rows, rows.flip(1), debiased=True)) == pytest.approx(1, abs=1e-10)
        assert not abs(float(cka_from_features(rows, rows.flip(1))) - 1) < 1e-3
    small = 1e-12 * x
    assert float(cka_batch(small[None], small.flip(1)[None])) == pytest.approx(1, abs=1e-10)


def test_a_constant_side() -> None:
    x = related(20, 3, 4)[0]
    ours = linear_cka(x, torch.ones(20, 4), debiased=True)
    assert (math.isnan(ours.value), ours.note) == (True, "y: all examples are the same")
    assert float(cka_from_features(x, torch.ones(20, 4, dtype=x.dtype))) == 0
    assert math.isnan(float(cka_base(x, torch.ones(20, 4), unbiased=False)))


@pytest.mark.parametrize("variance", [0.5, 0.9, 0.99])
def test_principal_directions(variance: float) -> None:
    x, y = related(50, 12, 20)
    x = x * torch.linspace(1, 9, 12)
    kept = [PCA(variance, svd_solver="full").fit(side.numpy()) for side in (x, y)]
    assert [n_dims(side, variance=variance) for side in (x, y)] == [pca.n_components_ for pca in kept]
    angles = subspace_angles(*(pca.transform(side.numpy()) for pca, side in zip(kept, (x, y), strict=True)))
    assert float(svcca(x, y, variance=variance)) == pytest.approx(np.cos(angles).mean(), abs=1e-10)
