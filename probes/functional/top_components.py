"""The largest principal components of centred rows, and the rows without them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from probes.functional.preprocess import centred_matrix
from probes.functional.products import ROUNDING

# Variances that differ by less than this share of the largest cannot be distinguished.
_RESOLUTION = 1e4 * ROUNDING["float64"]


def _top_components(rows: Float[Tensor, "n d"], k: int) -> tuple[Float[Tensor, "d k"], str]:
    """Return the ``k`` largest principal components, orthonormal, and why they are undefined (or ``""``).

    They are undefined if removing them leaves only zeros, or if the last of them holds as much variance as the next
    one. Equal rows are not such a case: they have no component to remove. Exact, by the eigenvectors of the smaller of
    ``rows' rows`` and ``rows rows'``. Cost: ``n d min(n, d)`` and ``min(n, d)^3``.

    Args:
        rows: centred, in float64.
        k: how many, at least 1.

    Example:
        >>> rows = torch.tensor([[100.0, 1.0], [-100.0, 1.0], [0.0, -2.0]], dtype=torch.float64)
        >>> _top_components(rows, 1)[0].abs().tolist()
        [[1.0], [0.0]]
        >>> _top_components(rows, 2)[1]
        'nothing is left without its 2 largest principal components'
    """
    n, d = rows.shape
    none = rows.new_zeros(d, k)
    if not bool(rows.any()):
        return none, ""
    which = "its largest principal component" if k == 1 else f"its {k} largest principal components"
    values, vectors = torch.linalg.eigh(rows.T @ rows if d <= n else rows @ rows.T)
    resolution = _RESOLUTION * float(values[-1])
    if k >= len(values) or bool(values[:-k].sum() <= resolution):
        return none, f"nothing is left without {which}"
    if bool(values[-k] - values[-k - 1] <= resolution):
        return none, f"{which} cannot be told from the next one, which holds as much variance"
    top = vectors[:, -k:] if d <= n else rows.T @ vectors[:, -k:]
    return torch.linalg.qr(top)[0], ""


def without_top_components(x: Float[Tensor, "row dim"], k: int) -> tuple[Float[Tensor, "row dim"], str]:
    """Return centred rows without their ``k`` largest components, and why these are undefined (or ``""``)."""
    rows = centred_matrix(x)
    components, why = _top_components(rows, k)
    return rows - (rows @ components) @ components.T, why


def principal_coordinates(rows: Float[Tensor, "row dim"], k: int) -> Float[Tensor, "row k"]:
    """Return centred coordinates along the ``k`` directions of largest variance, at most ``n - 1`` and ``d``.

    Each direction's largest weight is positive.

    Example:
        >>> principal_coordinates(torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]), 1).flatten().tolist()
        [-5.0, 0.0, 5.0]
    """
    rows = rows.double()
    rows = rows - rows.mean(0)
    if len(rows) > rows.shape[1]:
        directions = torch.linalg.eigh(rows.T @ rows).eigenvectors.flip(1)[:, :k]
    else:
        directions = torch.linalg.svd(rows, full_matrices=False).Vh[:k].T
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return rows @ (directions * largest.sign())
