from __future__ import annotations

import math

import pytest
import torch

from probes.functional import n_dims
from tasks import InputError
from tests.probes.functional.test_cka import gaussians


@pytest.mark.parametrize("scale", [1e-12, 1e-200, 1e6])
def test_n_dims(scale: float) -> None:
    (x,), variances = gaussians(50, 6), [90, 8, 1, 0.5, 0.4, 0.1]
    x = torch.linalg.qr(x - x.mean(0))[0] * torch.tensor(variances, dtype=torch.float64).sqrt() * scale
    shares = [0.9, 0.98, 0.99, 0.995, 0.999, 1.0]
    assert [n_dims(x + 3 * scale, variance=v) for v in shares] == [1, 2, 3, 4, 5, 6]
    assert math.isnan(n_dims(torch.full((5, 3), scale / 3)))


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="variance is 0; expected a share"):
        n_dims(torch.ones(6, 2), variance=0)
