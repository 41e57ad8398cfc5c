"""Mean canonical correlation of principal directions."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch, row_matrix
from probes.functional.n_dims import n_dims_of_singular_values
from probes.functional.preprocess import centred_matrix, scale_to_one_
from probes.functional.similarity import Similarity


@computed_in_torch()
def svcca(x: Float[Array, "row dim_x"], y: Float[Array, "row dim_y"], *, variance: float = 0.99) -> Similarity:
    """Return the mean canonical correlation of the principal directions that hold ``variance`` of each side.

    Takes tensors, NumPy arrays or lists.

    Near 1 for unrelated rows too, unless n is much larger than the numbers of directions (given in ``note``). Does not
    change with a rotation, a common scale or a shift of either side.

    Source: Raghu et al. 2017 (arXiv 1706.05806).

    Args:
        x: rows of one representation, computed in float64.
        y: rows of the other, in the order of ``x``.
        variance: share of the variance to keep, above 0 and at most 1.

    Example:
        >>> x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
        >>> round(float(svcca(x, x.flip(1) + 1)), 9), svcca(x, x).note
        (1.0, '3 and 3 directions')
    """
    basis_x = svcca_basis(x, variance)
    basis_y = svcca_basis(y.to(basis_x.device), variance)
    value, reason = svcca_correlation(basis_x, basis_y)
    note = reason or f"{basis_x.shape[1]} and {basis_y.shape[1]} directions"
    return Similarity(value, len(x), (x.shape[1], y.shape[1]), note)


def svcca_basis(x: Float[Tensor, "row dim"], variance: float) -> Float[Tensor, "row k"]:
    """Return an orthonormal basis of the rows' coordinates in the directions that hold ``variance`` of the variance.

    It has no columns if all rows are equal.
    """
    rows = centred_matrix(row_matrix(x, "x"))
    u, s, _ = torch.linalg.svd(scale_to_one_(rows), full_matrices=False)
    return u[:, : n_dims_of_singular_values(s, variance)]


def svcca_correlation(x: Float[Tensor, "row k_x"], y: Float[Tensor, "row k_y"]) -> tuple[float, str]:
    """Return the mean canonical correlation of two orthonormal bases, and why it is NaN (empty if it is not)."""
    for name, basis in (("x", x), ("y", y)):
        if not basis.shape[1]:
            return math.nan, f"{name}: all examples are the same"
    return float(torch.linalg.svdvals(x.T @ y).mean()), ""
