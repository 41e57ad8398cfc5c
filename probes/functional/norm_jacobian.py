"""The Jacobian of a norm: how sharply it turns a point. May be mapped over networks with ``torch.func.vmap``."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float

from probes.functional.arrays import Array, computed_in_torch
from tasks import InputError


@computed_in_torch(not_finite=["x"])
def norm_jacobian(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch"]:
    """Return the operator norm ``sqrt(d) / |x|`` of the Jacobian of RMS norm at vectors ``x`` of ``d`` dimensions.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    Exact for ``x / sqrt(mean(x^2))``, without ``eps`` and gain: the norm keeps the direction of ``x``
    alone, and a small ``x`` changes its direction fast. Infinite at 0.

    Source: Odonnat, Bouaziz & Cabannes, arXiv 2410.24050.

    Raises:
        InputError: for ``d`` below 2, for which the norm is a sign.

    Example:
        >>> norm_jacobian(torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
        tensor([0.4000,    inf])
    """
    if x.shape[-1] < 2:
        raise InputError(f"x has shape {tuple(x.shape)}; expected vectors [... d] with d of at least 2")
    return math.sqrt(x.shape[-1]) / torch.linalg.vector_norm(x, dim=-1)
