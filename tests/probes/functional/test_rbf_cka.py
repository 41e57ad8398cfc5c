from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist, squareform

from probes.functional import linear_cka, rbf_cka
from tasks import InputError
from tests.probes.functional.test_cka import from_kernels, related


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("fraction", [0.2, 1.0, 30.0])
def test_rbf_cka_equals_the_kernel_matrices(monkeypatch: Any, fraction: float, debiased: bool) -> None:
    monkeypatch.setattr(sys.modules["probes.functional.rbf_cka"], "_BLOCK", 100)  # three rows at once
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


def test_what_is_refused() -> None:
    x, y = related(6, 2, 3)
    with pytest.raises(InputError, match=re.escape("fraction is 0; expected a number above 0, such as 0.5")):
        rbf_cka(x, y, fraction=0)
