"""Clusters of rows against their labels: k-means, the adjusted Rand index, and its level by chance."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.adjusted_rand import adjusted_rand_score, relabelled_adjusted_rand
from probes.functional.arrays import Array, Labels, check_finite, computed_in_torch
from probes.functional.kmeans import kmeans
from probes.functional.permutation_test import permutation_p_value
from probes.functional.relabelling import relabelling_of
from tasks import InputError
from tasks.settings import check_count


class TaskClusters(NamedTuple):
    """Agreement of clusters with labels, and its distribution by chance.

    Attributes:
        ari: adjusted Rand index of the clusters and the labels: 1 identical, 0 expected by chance.
        null_low: 2.5% quantile of the index when labels are permuted.
        null_high: 97.5% quantile.
        p_value: share of permutations with an index at least as high, counting the observed one. NaN with fewer than 20
            different permutations.
        clusters: cluster of each row.

    Example:
        >>> rows = np.repeat(np.eye(2), 20, axis=0)
        >>> task_cluster_ari(rows, ["left"] * 20 + ["right"] * 20, n_init=1, n_permutations=100).ari
        1.0
    """

    ari: float
    null_low: float
    null_high: float
    p_value: float
    clusters: Int[Array, "row"]


@computed_in_torch()
def task_cluster_ari(
    rows: Float[Array, "row dim"],
    labels: Labels,
    *,
    n_clusters: int | None = None,
    units: Labels | None = None,
    n_init: int = 10,
    n_permutations: int = 1000,
    seed: int = 0,
) -> TaskClusters:
    """Cluster rows with k-means, and compare the clusters with labels by the adjusted Rand index.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    The numbers equal ``TaskClusterARI``'s for one site and label. Compare them with a model with random weights: the
    wording of prompts alone may give clusters.

    Args:
        rows: hidden states, one row for each example.
        labels: class of each row: integers, strings or a tensor.
        n_clusters: number of clusters. ``None``: as many as there are classes.
        units: which rows belong together, such as the template of a prompt: whole units exchange labels.
        n_init: starts of k-means, of which the best one counts.
        n_permutations: number of label permutations.
        seed: for k-means and the permutations.

    Raises:
        InputError: for arrays of different lengths, rows that are not finite, one class only, or fewer rows than
            clusters.

    Source: Wu & Varshney 2024 (arXiv 2402.12151). Hubert & Arabie 1985, eq. 5.

    Example:
        >>> states = np.random.default_rng(0).normal(size=(60, 8)) + 9 * np.repeat(np.eye(3, 8), 20, axis=0)
        >>> clusters = task_cluster_ari(states, np.repeat(["plural", "rhyme", "colour"], 20))
        >>> clusters.ari, round(clusters.p_value, 4)
        (1.0, 0.001)
    """
    check_count(n_init=(n_init, 1), n_permutations=(n_permutations, 1), seed=(seed, 0))
    states = rows.detach().float().cpu()
    check_finite(states, "rows")  # checked in float32
    classes = torch.unique(labels.cpu(), return_inverse=True)[1].numpy()
    n_classes = int(classes.max()) + 1
    k = n_classes if n_clusters is None else n_clusters
    if n_classes < 2:
        raise InputError("labels has one class only; expected at least 2")
    if not 2 <= k <= len(states):
        raise InputError(f"n_clusters is {k}; expected 2 to {len(states)}, the number of rows")
    clusters = _cluster_rows(states, k, n_init=n_init, seed=seed)
    ari = adjusted_rand_score(classes, clusters)
    relabelling = relabelling_of(labels, units=units)
    null = relabelled_adjusted_rand(classes, clusters, relabelling, n_permutations, seed)
    low, high = np.quantile(null, [0.025, 0.975]).tolist()
    p_value = float(permutation_p_value(ari, null))
    if not relabelling.enough(named=False):
        p_value = math.nan
    return TaskClusters(ari, low, high, p_value, clusters)


def _cluster_rows(rows: Float[Tensor, "row dim"], k: int, *, n_init: int, seed: int) -> Int[np.ndarray, "row"]:
    """Return the cluster of each row. With at most ``k`` distinct rows, each is a cluster: the optimum of k-means."""
    unique, inverse = torch.unique(rows, dim=0, return_inverse=True)
    if len(unique) <= k:
        return inverse.numpy()
    return kmeans(rows, k, n_init=n_init, seed=seed).labels.numpy()
