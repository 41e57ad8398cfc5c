"""Clusters of the classes of a labelling: within-ratio and nearest-centroid accuracy."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, Labels, Scalar, check_class_array, computed_in_torch
from probes.functional.preprocess import centred_rows
from tasks.settings import check_count

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
        check_class_array(labels, "labels", n_classes)
    return centred_rows(points), labels.long(), n_classes


def _centroids(
    x: Float[Tensor, "row dim"], labels: Int[Tensor, "row"], n_classes: int
) -> tuple[Float[Tensor, "class"], Float[Tensor, "class dim"]]:
    """Return the number of points in each class, and their mean (0 for none)."""
    count = x.new_zeros(n_classes).scatter_add(0, labels, torch.ones_like(x[:, 0]))
    total = x.new_zeros(n_classes, x.shape[1]).scatter_add(0, labels[:, None].expand_as(x), x)
    return count, total / torch.where(count > 0, count, 1)[:, None]
