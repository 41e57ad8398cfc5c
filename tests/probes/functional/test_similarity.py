from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist, squareform

from probes.functional import (
    linear_cka,
    n_dims,
    neighbour_purity,
    neighbour_purity_chance,
    rbf_cka,
    svcca,
)
from tasks import InputError
from tests.probes.functional.test_cka import from_kernels, gaussians, related


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("fraction", [0.2, 1.0, 30.0])
def test_rbf_cka_equals_the_kernel_matrices(monkeypatch: Any, fraction: float, debiased: bool) -> None:
    monkeypatch.setattr("probes.functional.similarity._BLOCK", 100)  # three rows at once
    x, y = related(31, 3, 5)
    kernels = []
    for side in (x + 1e4, 1e-9 * y):
        distance = pdist(side.numpy())
        kernels.append(
            np.exp(-(squareform(distance).astype(np.longdouble) ** 2) / 2 / (fraction * np.median(distance)) ** 2)
        )
    found = rbf_cka(x + 1e4, 1e-9 * y, fraction=fraction, debiased=debiased)
    assert float(found) == pytest.approx(from_kernels(kernels[0], kernels[1], debiased), abs=1e-8)


def test_rbf_cka_tends_to_linear_cka() -> None:
    x, y = related(50, 3, 5)
    assert float(rbf_cka(x, y, fraction=1e3)) == pytest.approx(float(linear_cka(x, y)), abs=1e-5)
    wheel = torch.linspace(0, 6.2, 60, dtype=torch.float64)
    ring = torch.stack([wheel.cos(), wheel.sin()], dim=1)
    assert float(linear_cka(ring, (2 * ring[:, :1] ** 2))) < 0.02 < 0.1 < float(rbf_cka(ring, ring[:, :1] ** 2))


def test_rbf_cka_undefined() -> None:
    x, y = related(6, 2, 2)
    assert rbf_cka(torch.ones(6, 2), y).note == "x: all examples are the same"
    mostly = torch.zeros(6, 2)
    mostly[0] = 1
    assert rbf_cka(x, mostly).note == "y: more than half of the distances between examples are 0"
    assert math.isnan(rbf_cka(x[:3], y[:3], debiased=True).value)
    assert math.isnan(rbf_cka(x[:1], y[:1]).value)


def test_svcca() -> None:
    x, y = gaussians(2000, 4, 3)
    mixed = torch.cat([x[:, :2] @ gaussians(2, 2)[0], y[:, :1]], dim=1)  # two directions shared, one not
    assert float(svcca(x, mixed, variance=1)) == pytest.approx(2 / 3, abs=0.03)
    assert float(svcca(x, x @ gaussians(4, 4)[0], variance=1)) == pytest.approx(1)
    padded = torch.cat([1e-20 * x, torch.zeros(2000, 2)], dim=1)  # directions without variance do not count
    assert svcca(padded, x, variance=1).note == "4 and 4 directions"
    assert svcca(torch.ones(5, 2), x[:5]).note == "x: all examples are the same"
    assert float(svcca(*gaussians(30, 20, 20))) > 0.7  # what its docstring warns of


@pytest.mark.parametrize("scale", [1e-12, 1e-200, 1e6])
def test_n_dims(scale: float) -> None:
    (x,), variances = gaussians(50, 6), [90, 8, 1, 0.5, 0.4, 0.1]
    x = torch.linalg.qr(x - x.mean(0))[0] * torch.tensor(variances, dtype=torch.float64).sqrt() * scale
    shares = [0.9, 0.98, 0.99, 0.995, 0.999, 1.0]
    assert [n_dims(x + 3 * scale, variance=v) for v in shares] == [1, 2, 3, 4, 5, 6]
    assert math.isnan(n_dims(torch.full((5, 3), scale / 3)))


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


def test_what_is_refused() -> None:
    x, y = related(6, 2, 3)
    for call, message in (
        (lambda: rbf_cka(x, y, fraction=0), "fraction is 0; expected a number above 0, such as 0.5"),
        (lambda: svcca(x, y, variance=1.5), "variance is 1.5; expected a share above 0 and at most 1"),
        (lambda: n_dims(x, variance=0), "variance is 0; expected a share"),
        (lambda: neighbour_purity(x, torch.arange(5)), "x has 6 rows for 5 labels; give one label a row"),
        (lambda: neighbour_purity(x, torch.arange(6), k=6), "k is 6 for 6 examples; expected 1 to 5"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            call()
