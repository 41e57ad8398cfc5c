"""Clusters of the classes of a labelling, and points that are integer sums of their tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from numbers import Integral
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, Labels, Scalar, check_classes, computed_in_torch
from probes.functional.preprocess import centred_rows
from tasks import InputError
from tasks.errors import check_count

SMALLEST_UNIT = 1e-6  # a median weight that small beside the largest is 0 up to the rounding of float32
MAX_DISTANCES_AT_ONCE = 2**22


@computed_in_torch()
def within_ratio(points: Float[Array, "row dim"], labels: Labels, n_classes: int | None = None) -> Float[Scalar, ""]:
    """Return the within-cluster over the total sum of squares, with classes as clusters: 0 if classes are points.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    Not clamped. ``within_ratio_chance`` gives its value by chance. With ``n_classes`` it runs under
    ``torch.func.vmap``, over points and labels.

    Args:
        points: float32 or float64. Sums are taken in float64.
        labels: the class of each point: any integers, or 0 to ``n_classes - 1``.
        n_classes: number of classes. ``None``: as many as in the labels.

    Returns:
        A float64 scalar. NaN if it is undefined: all points equal, or one class.

    Example:
        >>> points = torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0]])
        >>> within_ratio(points, torch.tensor([0, 0, 1, 1]))
        tensor(0.2000, dtype=torch.float64)
    """
    x, labels, n_classes = _prepared(points, labels, n_classes)
    count, centroids = _centroids(x, labels, n_classes)
    within = (x - centroids.gather(0, labels[:, None].expand_as(x))).square().sum()
    return torch.where((count > 0).sum() > 1, within / x.square().sum(), torch.nan)


def within_ratio_chance(labels: Shaped[Tensor, "row"]) -> float:
    """Return the mean ``within_ratio`` over all assignments of the labels to points: (n - classes) / (n - 1).

    It is near 0 if most points are alone in their class: a small ratio then is no evidence. NaN for one point.

    Example:
        >>> within_ratio_chance(torch.tensor([0, 0, 1, 2, 2]))
        0.5
    """
    n = len(labels)
    return (n - len(torch.unique(labels))) / (n - 1) if n > 1 else math.nan


@computed_in_torch()
def nearest_centroid_accuracy(
    points: Float[Array, "row dim"], labels: Labels, n_classes: int | None = None
) -> Float[Scalar, ""]:
    """Return the share of points nearest to the centroid of their class (Euclidean distance).

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    The centroids are computed from these points. Ties go to the lower label. With ``n_classes`` it runs under
    ``torch.func.vmap``.

    Memory: at most 4 million distances at once.

    Args:
        points: float32 or float64.
        labels: the class of each point: any integers, or 0 to ``n_classes - 1``.
        n_classes: number of classes. ``None``: as many as in the labels.

    Returns:
        A float64 scalar. NaN if it is undefined: all points equal, or one class.

    Example:
        >>> points = torch.tensor([[0.0], [1.0], [5.0], [6.0], [1.5]])
        >>> nearest_centroid_accuracy(points, torch.tensor([7, 7, 9, 9, 9]))
        tensor(0.8000, dtype=torch.float64)
    """
    x, labels, n_classes = _prepared(points, labels, n_classes)
    count, centroids = _centroids(x, labels, n_classes)
    nearest = []
    for rows in torch.split(x, max(1, MAX_DISTANCES_AT_ONCE // n_classes)):
        distance = torch.cdist(rows, centroids, compute_mode="donot_use_mm_for_euclid_dist")
        nearest.append(torch.where(count > 0, distance, torch.inf).argmin(dim=1))
    share = (torch.cat(nearest) == labels).double().mean()
    return torch.where(((count > 0).sum() > 1) & (x.square().sum() > 0), share, torch.nan)


def _prepared(
    points: Float[Tensor, "row dim"], labels: Shaped[Tensor, "row"], n_classes: int | None
) -> tuple[Float[Tensor, "row dim"], Int[Tensor, "row"], int]:
    """Return centred float64 points, labels from 0, and the number of classes."""
    if n_classes is None:
        classes, labels = torch.unique(labels, return_inverse=True)
        n_classes = len(classes)
    else:
        check_count(n_classes=(n_classes, 1))
        check_classes(labels, "labels", n_classes)
    return centred_rows(points), labels.long(), n_classes


def _centroids(
    x: Float[Tensor, "row dim"], labels: Int[Tensor, "row"], n_classes: int
) -> tuple[Float[Tensor, "class"], Float[Tensor, "class dim"]]:
    """Return the number of points in each class, and their mean (0 for none)."""
    count = x.new_zeros(n_classes).scatter_add(0, labels, torch.ones_like(x[:, 0]))
    total = x.new_zeros(n_classes, x.shape[1]).scatter_add(0, labels[:, None].expand_as(x), x)
    return count, total / torch.where(count > 0, count, 1)[:, None]


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
    ``p = 2``, odd and even. The scale makes the support's median ``w_t(1)`` equal to ``a``, one of 1 to ``p - 1``.
    Among values whose residues match, if any, ``a`` is the one that leaves the weights nearest to integers. (The median
    is the lower one, which is a weight itself. A mean of two weights of opposite sign would be no scale.)

    Undefined, and then NaN without a match: if the points do not vary, if the rows do not determine all weights (a
    value missing at a position, too few rows), or if the median weight is 0 or below 1e-6 of the largest.

    By chance, widely spread random weights lie within 0.25 of integers of the right parity (``p = 2``) about once in
    ``4 ** (pos - 1)`` fits: never for 12 positions, often for 3.

    Memory: ``n x pos x (modulus - 1)`` float64 numbers.

    Source: our replication of Odonnat, Bouaziz & Cabannes (arXiv 2410.24050), whose solved networks all have
    such weights.

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
    check_digits(tokens, support, modulus)
    n_pos = tokens.shape[1]
    fit = fit_digits(points, tokens, modulus)
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


class DigitFit(NamedTuple):
    """Least-squares fit of points by digits (whether value ``v >= 1`` is at position ``t``).

    Attributes:
        coefficients: coefficients of each position and value.
        scale: singular values of the fitted points.
        directions: their principal directions.
    """

    coefficients: Float[Tensor, "weight dim"]
    scale: Float[Tensor, "direction"]
    directions: Float[Tensor, "direction dim"]


def fit_digits(points: Float[Tensor, "row dim"], tokens: Int[Tensor, "row pos"], modulus: int) -> DigitFit | None:
    """Return the fit of points by digits, or ``None`` if the rows do not determine all coefficients."""
    values = torch.arange(1, modulus, device=tokens.device)
    design = rearrange(tokens[:, :, None] == values, "row pos value -> row (pos value)").double()
    design = design - design.mean(dim=0)
    q, r = torch.linalg.qr(design)
    if not len(design) > design.shape[1] == int(torch.linalg.matrix_rank(r)):
        return None
    coefficients = torch.linalg.solve_triangular(r, q.T @ centred_rows(points), upper=True)
    _, scale, directions = torch.linalg.svd(r @ coefficients, full_matrices=False)
    return DigitFit(coefficients, scale, directions)


def integer_sum(rounded: Int[Tensor, "pos value"], tokens: Int[Tensor, "row pos"]) -> Int[Tensor, "row"]:
    """Return the sum of each row's weights, 0 for digit 0.

    Example:
        >>> integer_sum(torch.tensor([[1], [-1], [2]]), torch.tensor([[1, 1, 1], [1, 0, 1]]))
        tensor([2, 3])
    """
    by_digit = torch.cat([rounded.new_zeros(len(rounded), 1), rounded], dim=1)
    return by_digit.gather(1, tokens.long().T).sum(dim=0)


def digit_residues(support: Sequence[int], n_pos: int, modulus: int, device: torch.device) -> Int[Tensor, "pos value"]:
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
    residues = digit_residues(support, len(along), modulus, along.device)
    best: tuple[bool, float] | None = None
    for a in range(1, modulus):
        weights = along * (a / median)
        rounded = weights.round()
        is_wrong = bool(((rounded.long() - a * residues) % modulus).any())
        deviation = round(float((weights - rounded).abs().max()), 9)  # the smallest of equal scales counts
        if best is None or (is_wrong, deviation) < best:
            best = (is_wrong, deviation)
            kept = weights
    assert best is not None
    return kept, torch.tensor(not best[0], device=along.device)


def check_digits(tokens: Int[Tensor, "row pos"], support: Sequence[int], modulus: int) -> None:
    """Check that tokens are digits whose sum over ``support`` can be taken modulo ``modulus``.

    Raises:
        InputError: see ``integer_weights``.
    """
    check_count(modulus=(modulus, 2))
    check_support(support, tokens.shape[1])
    outside = tokens[(tokens < 0) | (tokens >= modulus)].tolist()
    if outside:
        raise InputError(
            f"the batch has a token {outside[0]}, but modulus is {modulus}; expected digits 0 to {modulus - 1}: "
            "give the number of digits as modulus, or None for tokens that are not digits"
        )


def check_support(support: Sequence[int], length: int | None = None) -> None:
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
