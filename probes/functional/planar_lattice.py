"""Is a point a sum of vectors on a planar lattice, one for each token?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.functional.arrays import Array, Scalar, computed_in_torch
from probes.functional.clustering_head import SMALLEST_UNIT, check_digits

_MOST_PAIRS = 300  # bases tried


class PlanarLattice(NamedTuple):
    """What ``planar_lattice`` finds; scalars are tensors without axes, or Python numbers if arrays were given.

    Attributes:
        weights: of value ``v`` at position ``t`` relative to value 0 there, in units of the two basis vectors. NaN
            where the fit is undefined.
        rounded: the nearest integers (0 where the fit is undefined).
        deviation: the largest distance of a coordinate to its integer, at most 0.5; NaN where undefined.
        rank_two: share of the fitted points' variance in the plane; NaN where nothing varies.
        matches: whether some map of the lattice to residues makes the sum the one modulo ``p``.
        classes: the lattice point of each row, numbered.
    """

    weights: Float[Array, "pos value 2"]
    rounded: Int[Array, "pos value 2"]
    deviation: Float[Scalar, ""]
    rank_two: Float[Scalar, ""]
    matches: Bool[Scalar, ""]
    classes: Int[Array, "n"]


@computed_in_torch("points", "tokens")
def planar_lattice(
    points: Float[Array, "n d"],
    tokens: Int[Array, "n pos"],
    support: Sequence[int],
    modulus: int,
) -> PlanarLattice:
    """Fit ``point = c + sum_t w_t(x_t)`` in a plane: do the weights lie on a lattice that can add modulo ``p``?

    Takes tensors or NumPy arrays, and returns the same kind.

    As ``integer_weights`` with two directions in place of one: the points are regressed on whether value ``v >= 1``
    stands at position ``t``, and the weights are taken in the plane of the first two principal directions of the
    fitted points. Two of the weights that are not multiples of each other are the basis, ``w = m b_1 + k b_2``. The
    head can add modulo ``p`` where there are residues ``r_1, r_2`` with ``m r_1 + k r_2`` congruent to ``v`` on the
    support and to 0 off it: points of one lattice site then have one answer. The pair of weights is chosen for
    which such residues exist, if there are any, then the one with the least deviation.

    Many pairs are tried, so a good fit may be chance, and there is no p-value: how often random weights match depends
    on how small they are off the support, where a small weight is next to 0 whatever its value. Integer weights on a
    line with a little noise across match as well, the second basis vector being noise of residue 0. Ask
    ``integer_weights`` first, look at the share of its one direction, and compare with networks that did not learn.

    Undefined, and then NaN without a match: where the fitted points lie on a line (ask ``integer_weights``) or nothing
    varies, and where the rows do not determine all weights.

    Memory: ``n x pos x (modulus - 1)`` float64 numbers. Of more than 300 pairs, those with the longest weights are
    tried.

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
        >>> found = planar_lattice(tokens.double() @ weights, tokens, support=(0, 1), modulus=2)
        >>> found.rounded[:, 0].tolist(), bool(found.matches)  # (1, 1) has residue 0, as have even multiples
        ([[1, 0], [0, 1], [1, 1], [2, 0], [0, 0]], True)
    """
    check_digits(tokens, support, modulus)
    n_pos = tokens.shape[1]
    x = points.double() - points[:1].double()
    x = x - x.mean(dim=0)
    design = (tokens[:, :, None] == torch.arange(1, modulus, device=tokens.device)).flatten(1).double()
    design = design - design.mean(dim=0)
    plane, share = _in_plane(x, design)
    wanted = torch.zeros(n_pos, modulus - 1, dtype=torch.int64, device=x.device)
    wanted[list(support)] = torch.arange(1, modulus, device=x.device)
    if plane is None:
        nan, none = x.new_tensor(torch.nan), torch.zeros(n_pos, modulus - 1, 2, dtype=torch.int64, device=x.device)
        classes = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return PlanarLattice(
            x.new_full(none.shape, torch.nan), none, nan, share, torch.tensor(False, device=x.device), classes
        )
    deviation, matches, weights = _best_basis(plane, wanted.flatten(), modulus)
    rounded = weights.round().long().reshape(n_pos, modulus - 1, 2)
    by_digit = torch.cat([rounded.new_zeros(n_pos, 1, 2), rounded], dim=1)
    at = torch.stack([by_digit[t, tokens[:, t].long()] for t in range(n_pos)]).sum(dim=0)
    return PlanarLattice(
        weights.reshape(n_pos, modulus - 1, 2),
        rounded,
        deviation,
        share,
        matches,
        torch.unique(at, dim=0, return_inverse=True)[1],
    )


def _in_plane(x: Tensor, design: Tensor) -> tuple[Tensor | None, Tensor]:
    """``[weight 2]`` coefficients along two principal directions of the fitted points, and their share."""
    share = x.new_tensor(torch.nan)
    q, r = torch.linalg.qr(design)
    if not len(design) > design.shape[1] == int(torch.linalg.matrix_rank(r)):
        return None, share
    coefficients = torch.linalg.solve_triangular(r, q.T @ x, upper=True)
    _, scale, directions = torch.linalg.svd(r @ coefficients, full_matrices=False)
    share = scale[:2].square().sum() / scale.square().sum()
    if len(scale) < 2 or not bool(scale[1] > SMALLEST_UNIT * scale[0]):  # also where NaN
        return None, share
    return coefficients @ directions[:2].T, share


def _best_basis(weights: Tensor, wanted: Tensor, modulus: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of weights ``[weight 2]`` on the best of their pairs: deviation, whether it matches, coordinates."""
    white = weights / weights.square().mean(dim=0).sqrt()
    longest = white.norm(dim=1).argsort(descending=True, stable=True)
    most = int((1 + (1 + 8 * _MOST_PAIRS) ** 0.5) / 2)  # weights that have so many pairs
    first, second = torch.combinations(longest[:most].sort().values).T
    bases = torch.stack([weights[first], weights[second]], dim=1)  # [pair 2 2]
    area = torch.linalg.det(torch.stack([white[first], white[second]], dim=1)).abs()
    bases = bases[area > SMALLEST_UNIT**0.5]
    coordinates = weights @ torch.linalg.inv(bases)  # [pair weight 2]
    rounded = coordinates.round()
    deviation = (coordinates - rounded).abs().amax(dim=(1, 2)).mul(1e9).round().div(1e9)
    m = rounded.long() % modulus
    r = torch.cartesian_prod(*[torch.arange(modulus, device=weights.device)] * 2)  # [map 2]
    off = (torch.einsum("pwc,rc->prw", m.double(), r.double()).long() - wanted) % modulus
    matches = (off == 0).all(dim=2).any(dim=1)
    size = rounded.abs().amax(dim=(1, 2))  # of several that fit as well, the coarsest
    order = (~matches).double() * 1e6 + deviation + 1e-10 * size.clamp(max=1e3)
    best = order.argmin()
    return deviation[best], matches[best], coordinates[best]
