"""Points that are integer sums of their tokens: the weights of digits."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from numbers import Integral
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.functional.arrays import Array, Scalar, computed_in_torch
from probes.functional.digit_weights import fit_digit_weights
from tasks import InputError
from tasks.settings import check_count

SMALLEST_UNIT = 1e-6  # a median weight that small beside the largest is 0 up to the rounding of float32


class IntegerWeights(NamedTuple):
    """Result of ``integer_weights``. Scalars are tensors without axes, or Python numbers if arrays were given.

    Attributes:
        weights: weight of value ``v`` at position ``t`` relative to value 0 there, in units of the support's median
            weight. NaN if the fit is undefined.
        rounded: the nearest integers (0 if the fit is undefined).
        deviation: the largest distance of a weight to its integer, at most 0.5. NaN if undefined.
        rank_one: share of the fitted points' variance along the one direction ``u``. NaN without variance.
        matches: whether the integers have the residues that addition modulo ``p`` needs.
        classes: the integer sum of each row's rounded weights.

    Example:
        >>> tokens = torch.cartesian_prod(*[torch.arange(2)] * 3)
        >>> integer_weights(tokens.double().sum(dim=1, keepdim=True), tokens, support=(0, 1, 2), modulus=2).classes
        tensor([0, 1, 1, 2, 1, 2, 2, 3])
    """

    weights: Float[Array, "pos value"]
    rounded: Int[Array, "pos value"]
    deviation: Float[Scalar, ""]
    rank_one: Float[Scalar, ""]
    matches: Bool[Scalar, ""]
    classes: Int[Array, "row"]


@computed_in_torch()
def integer_weights(
    points: Float[Array, "row dim"], tokens: Int[Array, "row pos"], support: Sequence[int], modulus: int
) -> IntegerWeights:
    """Fit ``point = c + u sum_t w_t(x_t)`` and test whether the weights are integers that add modulo ``p``.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    The points are regressed (least squares) on whether value ``v >= 1`` stands at position ``t``. ``u`` is the first
    principal direction of the fitted points, and ``w_t(v)``, relative to ``w_t(0) = 0``, the coefficient along it. A
    head can add modulo ``p`` if, up to scale, ``w_t(v)`` is congruent to ``a v`` on the support and to 0 off it: for
    ``p = 2``, odd and even. The scale makes the support's median ``w_t(1)`` equal to ``a``, one of 1 to ``p - 1`` that
    shares no divisor with ``p``, or different sums would have one residue. Among values whose residues match, if any,
    ``a`` is the one that leaves the weights nearest to integers. (The median is the lower one, which is a weight
    itself. A mean of two weights of opposite sign would be no scale.)

    Undefined, and then NaN without a match: if the points do not vary, if the rows do not determine all weights (a
    value missing at a position, too few rows), or if the median weight is 0 or below 1e-6 of the largest.

    By chance, widely spread random weights lie within 0.25 of integers of the right parity (``p = 2``) about once in
    ``4 ** (pos - 1)`` fits: never for 12 positions, often for 3.

    Memory: ``n x pos x (modulus - 1)`` float64 numbers.

    Source: our replication of Odonnat, Bouaziz & Cabannes (arXiv 2410.24050), in which 34 of 37 solved networks
    have such weights.

    Args:
        points: float32 or float64, one for each row of tokens.
        tokens: digits 0 to ``modulus - 1``.
        support: positions whose digits are added.
        modulus: ``p``.

    Raises:
        InputError: for a modulus below 2, a token outside 0 to ``modulus - 1``, or a support that is empty or
            has positions outside the sequence.

    Example:
        >>> tokens = torch.cartesian_prod(*[torch.arange(2)] * 3)
        >>> points = tokens.double() @ torch.tensor([[0.3], [-0.3], [0.6]], dtype=torch.float64)
        >>> fit = integer_weights(points, tokens, support=(0, 1), modulus=2)
        >>> fit.rounded.flatten().tolist(), bool(fit.matches)  # of 0.3 and -0.3 the lower median is -0.3
        ([-1, 1, -2], True)
    """
    check_integer_weight_digits(tokens, support, modulus)
    n_pos = tokens.shape[1]
    fit = fit_digit_weights(points, tokens, modulus)
    if fit is None:
        share = points.new_tensor(torch.nan, dtype=torch.float64)
        along = points.new_full((n_pos, modulus - 1), torch.nan, dtype=torch.float64)
    else:
        share = fit.scale[0].square() / fit.scale.square().sum()
        along = (fit.coefficients @ fit.directions[0]).reshape(n_pos, modulus - 1)
    weights, matches = _scaled(along, support, modulus)
    rounded = torch.nan_to_num(weights).round().long()
    return IntegerWeights(
        weights=weights,
        rounded=rounded,
        deviation=(weights - rounded).abs().max(),
        rank_one=share,
        matches=matches,
        classes=integer_sum(rounded, tokens),
    )


def integer_sum(rounded: Int[Tensor, "pos value"], tokens: Int[Tensor, "row pos"]) -> Int[Tensor, "row"]:
    """Return the sum of each row's weights, 0 for digit 0.

    Example:
        >>> integer_sum(torch.tensor([[1], [-1], [2]]), torch.tensor([[1, 1, 1], [1, 0, 1]]))
        tensor([2, 3])
    """
    by_digit = torch.cat([rounded.new_zeros(len(rounded), 1), rounded], dim=1)
    return by_digit.gather(1, tokens.long().T).sum(dim=0)


def integer_weight_residues(
    support: Sequence[int], n_pos: int, modulus: int, device: torch.device
) -> Int[Tensor, "pos value"]:
    """Return the residues of values 1 to ``modulus - 1`` in a sum over the support: the value, and 0 off it."""
    residues = torch.zeros(n_pos, modulus - 1, dtype=torch.int64, device=device)
    residues[list(support)] = torch.arange(1, modulus, device=device)
    return residues


def _scaled(
    along: Float[Tensor, "pos value"], support: Sequence[int], modulus: int
) -> tuple[Float[Tensor, "pos value"], Bool[Tensor, ""]]:
    """Return the weights in units of the best scale, and whether their residues match."""
    median = along[list(support), 0].median()
    if not bool(median.abs() > SMALLEST_UNIT * along.abs().max()):  # also where NaN
        return torch.full_like(along, torch.nan), torch.tensor(False, device=along.device)
    residues = integer_weight_residues(support, len(along), modulus, along.device)
    best: tuple[bool, float] | None = None
    for a in (a for a in range(1, modulus) if math.gcd(a, modulus) == 1):
        weights = along * (a / median)
        rounded = weights.round()
        is_wrong = bool(((rounded.long() - a * residues) % modulus).any())
        deviation = round(float((weights - rounded).abs().max()), 9)  # the smallest of equal scales counts
        if best is None or (is_wrong, deviation) < best:
            best = (is_wrong, deviation)
            kept = weights
    assert best is not None
    return kept, torch.tensor(not best[0], device=along.device)


def check_integer_weight_digits(tokens: Int[Tensor, "row pos"], support: Sequence[int], modulus: int) -> None:
    """Check that tokens are digits whose sum over ``support`` can be taken modulo ``modulus``.

    Raises:
        InputError: see ``integer_weights``.
    """
    check_count(modulus=(modulus, 2))
    check_weight_support(support, tokens.shape[1])
    outside = tokens[(tokens < 0) | (tokens >= modulus)].tolist()
    if outside:
        raise InputError(
            f"the batch has a token {outside[0]}, but modulus is {modulus}; expected digits 0 to {modulus - 1}: "
            "give the number of digits as modulus, or None for tokens that are not digits"
        )


def check_weight_support(support: Sequence[int], length: int | None = None) -> None:
    """Check that support is a sequence of different positions, inside the sequence if its length is given.

    Raises:
        InputError: if it is not.
    """
    if not isinstance(support, Collection) or not all(_is_position(t) for t in support):
        raise InputError(f"support is {support!r}; expected different positions such as (0, 1, 2)")
    if len(support) == 0 or len(set(support)) < len(support):
        problem = "has a position twice" if len(support) else "is empty"
        raise InputError(f"support {problem}; expected different positions such as (0, 1, 2)")
    outside = [t for t in support if t < 0 or (length is not None and t >= length)]
    if outside:
        to = "up" if length is None else f"to {length - 1}, the sequence's last"
        raise InputError(f"support has position {outside[0]}; expected positions from 0 {to}")


def _is_position(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
