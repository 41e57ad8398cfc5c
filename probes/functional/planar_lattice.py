"""Points that are sums of vectors on a planar lattice, one vector for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.functional.arrays import Array, Scalar, computed_in_torch
from probes.functional.digit_weights import DigitWeights, fit_digit_weights
from probes.functional.integer_weights import (
    SMALLEST_UNIT,
    check_integer_weight_digits,
    integer_sum,
    integer_weight_residues,
)

_MAX_BASES_TRIED = 300  # pairs of weights


class PlanarLattice(NamedTuple):
    """Result of ``planar_lattice``. Scalars are tensors without axes, or Python numbers if arrays were given.

    Attributes:
        weights: weight of value ``v`` at position ``t`` relative to value 0 there, in units of the two basis vectors.
            NaN if the fit is undefined.
        rounded: the nearest integers (0 if the fit is undefined).
        deviation: the largest distance of a coordinate to its integer, at most 0.5. NaN if undefined.
        rank_two: share of the fitted points' variance in the plane. NaN without variance.
        matches: whether some map of the lattice to residues gives the sum modulo ``p``.
        classes: the lattice point of each row, numbered.

    Example:
        >>> tokens = torch.cartesian_prod(*[torch.arange(2)] * 3)
        >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
        >>> planar_lattice(tokens.float() @ weights, tokens, support=(0, 1), modulus=2).rounded.squeeze(1).tolist()
        [[1, 0], [0, 1], [0, 2]]
    """

    weights: Float[Array, "pos value 2"]
    rounded: Int[Array, "pos value 2"]
    deviation: Float[Scalar, ""]
    rank_two: Float[Scalar, ""]
    matches: Bool[Scalar, ""]
    classes: Int[Array, "row"]


@computed_in_torch()
def planar_lattice(
    points: Float[Array, "row dim"],
    tokens: Int[Array, "row pos"],
    support: Sequence[int],
    modulus: int,
) -> PlanarLattice:
    """Fit ``point = c + sum_t w_t(x_t)`` in a plane, and test for weights on a lattice that can add modulo ``p``.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    As ``integer_weights`` with two directions in place of one. The points are regressed on whether value ``v >= 1`` is
    at position ``t``. The weights are taken in the plane of the first two principal directions of the fitted points.
    Two of the weights that are not multiples of each other are the basis, ``w = m b_1 + k b_2``. The head can add
    modulo ``p`` if there are residues ``r_1, r_2`` with ``m r_1 + k r_2`` congruent to ``v`` on the support and to 0
    off it: points of one lattice site then have one answer. The basis is the pair of weights with the least deviation,
    among pairs with such residues if there are any.

    Many pairs are tried, so a good fit may be chance. There is no p-value: how often random weights match depends on
    how small they are off the support, because a small weight is near 0 whatever its value. Integer weights on a line
    with a little noise across match as well, with noise of residue 0 as the second basis vector. Try
    ``integer_weights`` first, look at the share of its one direction, and compare with networks that did not learn.

    Undefined, and then NaN without a match: if the fitted points lie on a line (try ``integer_weights``) or do not
    vary, and if the rows do not determine all weights.

    Memory: a few times ``(n + 600) x pos x (modulus - 1)`` float64 numbers. Of more than 300 pairs, only 300 of the
    longest weights are tried.

    Args:
        points: float32 or float64, one for each row of tokens, of at least two dimensions.
        tokens: digits 0 to ``modulus - 1``.
        support: positions whose digits are added.
        modulus: ``p``.

    Raises:
        InputError: as ``integer_weights``.

    Example:
        >>> tokens = torch.cartesian_prod(*[torch.arange(2)] * 5)
        >>> weights = torch.tensor([[1.0, 0.1], [0.3, 1.0], [1.3, 1.1], [2.0, 0.2], [0.0, 0.0]], dtype=torch.float64)
        >>> fit = planar_lattice(tokens.double() @ weights, tokens, support=(0, 1), modulus=2)
        >>> fit.rounded[:, 0].tolist(), bool(fit.matches)  # (1, 1) has residue 0, as have even multiples
        ([[1, 0], [0, 1], [1, 1], [2, 0], [0, 0]], True)
    """
    check_integer_weight_digits(tokens, support, modulus)
    n_pos = tokens.shape[1]
    plane, share = _in_plane(fit_digit_weights(points, tokens, modulus), points.device)
    if plane is None:
        nan = share.new_tensor(torch.nan)
        return PlanarLattice(
            weights=share.new_full((n_pos, modulus - 1, 2), torch.nan),
            rounded=tokens.new_zeros(n_pos, modulus - 1, 2, dtype=torch.int64),
            deviation=nan,
            rank_two=share,
            matches=torch.tensor(False, device=points.device),
            classes=tokens.new_zeros(len(tokens), dtype=torch.int64),
        )
    residues = integer_weight_residues(support, n_pos, modulus, points.device)
    deviation, matches, coordinates = _best_basis(plane, residues.flatten(), modulus)
    weights = rearrange(coordinates, "(pos value) basis -> pos value basis", pos=n_pos)
    rounded = weights.round().long()
    sites = torch.stack([integer_sum(rounded[..., i], tokens) for i in (0, 1)], dim=1)
    return PlanarLattice(
        weights=weights,
        rounded=rounded,
        deviation=deviation,
        rank_two=share,
        matches=matches,
        classes=torch.unique(sites, dim=0, return_inverse=True)[1],
    )


def _in_plane(
    fit: DigitWeights | None, device: torch.device
) -> tuple[Float[Tensor, "weight 2"] | None, Float[Tensor, ""]]:
    """Return coefficients along two principal directions of the fitted points, and their share of the variance."""
    if fit is None:
        return None, torch.tensor(torch.nan, dtype=torch.float64, device=device)
    share = fit.scale[:2].square().sum() / fit.scale.square().sum()
    is_plane = len(fit.scale) > 1 and bool(fit.scale[1] > SMALLEST_UNIT * fit.scale[0])  # false for NaN
    if not is_plane or not bool(share.isfinite()):
        return None, share
    return fit.coefficients @ fit.directions[:2].T, share


def _best_basis(
    weights: Float[Tensor, "weight 2"], residues: Int[Tensor, "weight"], modulus: int
) -> tuple[Float[Tensor, ""], Bool[Tensor, ""], Float[Tensor, "weight 2"]]:
    """Return the deviation, whether it matches, and the coordinates of weights in the best basis among their pairs."""
    pairs = _pairs(weights)
    coordinates = weights @ torch.linalg.inv(weights[pairs])  # [pair weight 2]
    rounded = coordinates.round()
    deviation = (coordinates - rounded).abs().amax(dim=(1, 2)).mul(1e9).round().div(1e9)
    # A basis vector is a weight itself, with the coordinates (1, 0) or (0, 1), so that its residue is known.
    sums = einsum(rounded.remainder(modulus), residues[pairs].double(), "pair weight basis, pair basis -> pair weight")
    matches = ((sums.long() - residues) % modulus == 0).all(dim=1)
    size = rounded.abs().amax(dim=(1, 2))  # the coarsest of several that fit equally well
    order = (~matches).double() * 1e6 + deviation + 1e-10 * size.clamp(max=1e3)
    best = order.argmin()
    return deviation[best], matches[best], coordinates[best]


def _pairs(weights: Float[Tensor, "weight 2"]) -> Int[Tensor, "pair 2"]:
    """Return the indices of pairs of the longest weights that are not multiples of each other."""
    white = weights / weights.square().mean(dim=0).sqrt()
    longest = white.norm(dim=1).argsort(descending=True, stable=True)
    n_longest = int((1 + (1 + 8 * _MAX_BASES_TRIED) ** 0.5) / 2)  # weights that have so many pairs
    first, second = torch.combinations(longest[:n_longest].sort().values).T
    area = torch.linalg.det(torch.stack([white[first], white[second]], dim=1)).abs()
    is_basis = area > SMALLEST_UNIT**0.5
    if not bool(is_basis.any()):  # they lie on a line: take the weight farthest from it
        x, y = white[longest[0]]
        farthest = (x * white[:, 1] - y * white[:, 0]).abs().argmax()
        return torch.stack([longest[0], farthest])[None]
    return torch.stack([first, second], dim=1)[is_basis]
