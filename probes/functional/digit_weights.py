"""Least-squares fit of points by the digits of their tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.preprocess import centred_rows


class DigitWeights(NamedTuple):
    """Least-squares fit of points by digits (whether value ``v >= 1`` is at position ``t``).

    Attributes:
        coefficients: coefficients of each position and value.
        scale: singular values of the fitted points.
        directions: their principal directions.
    """

    coefficients: Float[Tensor, "weight dim"]
    scale: Float[Tensor, "direction"]
    directions: Float[Tensor, "direction dim"]


def fit_digit_weights(
    points: Float[Tensor, "row dim"], tokens: Int[Tensor, "row pos"], modulus: int
) -> DigitWeights | None:
    """Return the fit of points by digits, or ``None`` if the rows do not determine all coefficients."""
    values = torch.arange(1, modulus, device=tokens.device)
    design = rearrange(tokens[:, :, None] == values, "row pos value -> row (pos value)").double()
    design = design - design.mean(dim=0)
    q, r = torch.linalg.qr(design)
    if not len(design) > design.shape[1] == int(torch.linalg.matrix_rank(r)):
        return None
    coefficients = torch.linalg.solve_triangular(r, q.T @ centred_rows(points), upper=True)
    _, scale, directions = torch.linalg.svd(r @ coefficients, full_matrices=False)
    return DigitWeights(coefficients, scale, directions)
