"""Whether near rows have one label."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from torch import Tensor

from probes.functional.cka import centred, matrix
from tasks import InputError


def neighbour_purity(x: Float[Tensor, "n d"], labels: Shaped[Tensor, "n"], k: int = 10) -> float:
    """Share of the ``k`` nearest other examples (Euclidean distance) that have an example's own label, on average.

    By chance ``neighbour_purity_chance``. Of examples equally near, which count depends on their order.

    Source: scikit-learn's ``NearestNeighbors``, by brute force.

    Args:
        x: rows; computed in float64.
        labels: of each row.
        k: neighbours, fewer than there are rows.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> neighbour_purity(x, torch.tensor([5, 5, 7, 7]), k=1)
        1.0
    """
    from sklearn.neighbors import NearestNeighbors
    from threadpoolctl import threadpool_limits

    rows, names = centred(matrix(x, "x")).cpu().numpy(), _labels(labels)
    if len(names) != len(rows):
        raise InputError(f"x has {len(rows)} rows for {len(names)} labels; give one label a row")
    if not 1 <= k < len(rows):
        raise InputError(f"k is {k} for {len(rows)} examples; expected 1 to {len(rows) - 1}")
    with threadpool_limits(1):  # the same sums in the same order
        near = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(rows).kneighbors(return_distance=False)
    return float((names[near] == names[:, None]).mean())


def neighbour_purity_chance(labels: Shaped[Tensor, "n"]) -> float:
    """``neighbour_purity`` when neighbours are drawn at random: share of pairs with one label. NaN for one row.

    Example:
        >>> import torch
        >>> neighbour_purity_chance(torch.tensor([0, 0, 1, 1]))
        0.3333333333333333
    """
    counts = np.unique(_labels(labels), return_counts=True)[1]
    n = int(counts.sum())
    return float((counts * (counts - 1)).sum() / (n * (n - 1))) if n > 1 else math.nan


def _labels(labels: Any) -> np.ndarray:
    return labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
