"""Automatic differentiation as the oracle."""

from __future__ import annotations

import math
import re

import pytest
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probes.functional import norm_jacobian
from tasks import InputError


def normal(*shape: int, seed: int = 0) -> Float[Tensor, "*shape"]:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("d", [2, 3, 16])
def test_the_norms_jacobian_has_this_operator_norm(d: int) -> None:
    x = normal(6, d) * torch.logspace(-3, 2, 6, dtype=torch.float64)[:, None]
    jacobians = torch.func.vmap(torch.func.jacrev(lambda v: v / v.square().mean().sqrt()))(x)
    torch.testing.assert_close(norm_jacobian(x), torch.linalg.matrix_norm(jacobians, ord=2), rtol=1e-12, atol=0)


def test_any_number_of_leading_axes() -> None:
    x = normal(2, 3, 4)
    assert norm_jacobian(x).shape == (2, 3)
    assert float(norm_jacobian(x)[1, 2]) == float(norm_jacobian(x[1, 2]))
    torch.testing.assert_close(torch.func.vmap(norm_jacobian)(x), norm_jacobian(x), rtol=0, atol=0)


def test_it_is_infinite_at_zero() -> None:
    assert norm_jacobian(torch.zeros(2)).item() == math.inf
    assert norm_jacobian(torch.zeros(2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(5, 1), "x has shape (5, 1); expected vectors [... d] with d of at least 2"),
        (torch.tensor(1.0), "x has shape (); expected real numbers [*batch dim], at least one of each"),
    ],
)
def test_vectors_are_expected(x: Shaped[Tensor, "*shape"], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        norm_jacobian(x)
