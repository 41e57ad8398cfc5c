from __future__ import annotations

import math

import pytest
import torch

from probes.functional import n_dims
from probes.functional.n_dims import n_dims_of_scatter, n_dims_of_singular_values
from tasks import InputError
from tests.probes.functional.test_cka import gaussians


@pytest.mark.parametrize("scale", [1e-12, 1e-200, 1e6])
def test_n_dims(scale: float) -> None:
    (x,) = gaussians(50, 6)
    variances = [90, 8, 1, 0.5, 0.4, 0.1]
    x = torch.linalg.qr(x - x.mean(0))[0] * torch.tensor(variances, dtype=torch.float64).sqrt() * scale
    shares = [0.9, 0.98, 0.99, 0.995, 0.999, 1.0]
    assert [n_dims(x + 3 * scale, variance=v) for v in shares] == [1, 2, 3, 4, 5, 6]
    assert math.isnan(n_dims(torch.full((5, 3), scale / 3)))


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
@pytest.mark.parametrize("variance", [0.3, 0.9, 0.999, 1.0])
def test_eigenvalues_give_what_singular_values_give(shape: tuple[int, int], variance: float) -> None:
    x = gaussians(shape[0], shape[1])[0] * torch.logspace(0, -4, shape[1])
    assert n_dims(x, variance=variance) == n_dims_of_singular_values(torch.linalg.svdvals(x - x.mean(0)), variance)


def test_what_lies_within_rounding_of_the_share_is_a_doubt() -> None:
    share = 0.9 * (1 - 1e-12)
    assert n_dims_of_scatter(torch.tensor([share, 1 - share]).double().diag(), 0.9)[1] is True  # in float32 apart
    near = torch.tensor([share, 1 - share], dtype=torch.float64).diag()
    assert n_dims_of_scatter(near, 0.9)[1] is False
    assert n_dims_of_scatter(near, 0.89) == (1, True)
    value, sure = n_dims_of_scatter(torch.zeros(2, 2, dtype=torch.float64), 0.9)
    assert (math.isnan(value), sure) == (True, True)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="variance is 0; expected a share"):
        n_dims(torch.ones(6, 2), variance=0)
