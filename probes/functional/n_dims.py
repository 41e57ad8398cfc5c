"""In how many directions rows vary."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch
from probes.functional.representations import centre, matrix
from tasks import InputError

_EQUAL = 1e-12  # a share that is met but for rounding is met


@computed_in_torch("x")
def n_dims(x: Float[Array, "n d"], *, variance: float = 0.99) -> float:
    """How many principal directions hold at least ``variance`` of the variance; NaN where all rows are the same.

    Takes tensors or NumPy arrays.

    Never more than n - 1: compare only values at one n.

    Cost: the eigenvalues of the rows' products, in n or d dimensions, whichever are fewer; where their rounding leaves
    a doubt, the rows' singular values.

    Example:
        >>> n_dims(torch.eye(3) * torch.tensor([[1.0], [10.0], [10.0]]))
        2.0
    """
    check_share(variance)
    x = matrix(x, "x")
    x = unit_(x - centre(x))
    value, sure = n_dims_of_scatter(x @ x.T if len(x) < x.shape[1] else x.T @ x, variance)
    return value if sure else float(directions(torch.linalg.svdvals(x), variance)) or math.nan


def n_dims_of_scatter(scatter: Float[Tensor, "d d"], variance: float) -> tuple[float, bool]:
    """The same from the centred rows' products ``x' x`` or ``x x'``, and whether rounding leaves no doubt of it.

    An eigenvalue is off by up to about ``d`` times the rounding of the largest, and so directions of a smaller share of
    the variance cannot be told from none.
    """
    found = torch.linalg.eigvalsh(scatter).flip(0)
    found = found[found > found[0] * len(found) * torch.finfo(found.dtype).eps]
    if not len(found):
        return math.nan, True
    held, share = found.cumsum(0) / found.sum(), variance * (1 - _EQUAL)
    doubt = len(scatter) * torch.finfo(held.dtype).eps
    least, count, most = (int((held < share + step).sum()) + 1 for step in (-doubt, 0, doubt))
    return float(min(len(held), count)), least == most <= len(held)


def check_share(variance: float) -> float:
    """``variance``, or an ``InputError`` where it is not a share."""
    if not 0 < variance <= 1:
        raise InputError(f"variance is {variance}; expected a share above 0 and at most 1")
    return variance


def unit(x: Tensor) -> Tensor:
    """Scaled to a largest entry of 1, so that squares neither vanish nor overflow."""
    return unit_(x.clone())


def unit_(x: Tensor) -> Tensor:
    """The same, in place."""
    largest = torch.maximum(x.max(), -x.min())
    return x.div_(largest) if bool(largest > 0) else x


def directions(s: Tensor, variance: float) -> int:
    """How many singular values hold the share; none that is 0 up to rounding."""
    s = s[s > s[0] * len(s) * torch.finfo(s.dtype).eps]
    held = s.square().cumsum(0) / s.square().sum()
    return min(len(s), int((held < check_share(variance) * (1 - _EQUAL)).sum()) + 1)
