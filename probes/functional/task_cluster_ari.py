"""Clusters of rows against their labels: k-means, the adjusted Rand index, and its level by chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.adjusted_rand import adjusted_rand_null, adjusted_rand_score, index_between_units
from probes.functional.arrays import Array, Labels, check_finite, computed_in_torch
from probes.functional.intervals import half_samples
from probes.functional.kmeans import kmeans
from probes.functional.permutation_test import permutation_p_value
from probes.functional.relabelling import Relabelling
from tasks import InputError
from tasks.errors import check_count, check_different


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
    classes = _codes(labels)
    member = None if units is None else _codes(units)
    n_classes = int(classes.max()) + 1
    k = n_classes if n_clusters is None else n_clusters
    if n_classes < 2:
        raise InputError("labels has one class only; expected at least 2")
    if not 2 <= k <= len(states):
        raise InputError(f"n_clusters is {k}; expected 2 to {len(states)}, the number of rows")
    clusters = _cluster_rows(states, k, n_init=n_init, seed=seed)
    ari = adjusted_rand_score(classes, clusters)
    relabelling = Relabelling.from_classes(classes, member)
    null = permuted_index(classes, clusters, relabelling, n_permutations, seed)
    low, high = np.quantile(null, [0.025, 0.975]).tolist()
    p_value = float(permutation_p_value(ari, null))
    if not relabelling.enough(named=False):
        p_value = math.nan
    return TaskClusters(ari, low, high, p_value, clusters)


def check_n_clusters(n_clusters: int | Sequence[int] | None) -> None:
    """Refuse no numbers of clusters, one below 2, and one that is given twice."""
    if n_clusters is None:
        return
    each = list(n_clusters) if isinstance(n_clusters, Sequence) else [n_clusters]
    if not each:
        raise InputError("n_clusters is empty; expected numbers such as (5, 10, 20), or None for one per class")
    for k in each:
        if k < 2:
            raise InputError(f"n_clusters is {k}; expected at least 2, or None for one per class")
    check_different(n_clusters=each)


def permuted_index(
    classes: Int[np.ndarray, "row"],
    clusters: Int[np.ndarray, "row"],
    relabelling: Relabelling,
    n_permutations: int,
    seed: int,
) -> Float[np.ndarray, "n_permutations"]:
    """Return the adjusted Rand index of clusters and randomly permuted classes, by the permutations of these classes.

    Args:
        classes: class of each row.
        clusters: cluster of each row, counted from 0.
        relabelling: the permutations, ``Relabelling.from_classes(classes, ...)``.
        n_permutations: number of permutations.
        seed: for the permutations.
    """
    if relabelling.whole_units:
        return index_between_units(clusters, relabelling, n_permutations, np.random.default_rng(seed))
    within = relabelling.strata if relabelling.stratified else None
    return adjusted_rand_null(classes, clusters, n_permutations, seed, within)


def _cluster_rows(rows: Float[Tensor, "row dim"], k: int, *, n_init: int, seed: int) -> Int[np.ndarray, "row"]:
    """Return the cluster of each row, by scikit-learn's k-means.

    With at most ``k`` distinct rows, each is a cluster: the optimum of k-means, without its warnings.
    """
    unique, inverse = torch.unique(rows, dim=0, return_inverse=True)
    if len(unique) <= k:
        return inverse.numpy()
    return fitted_clusters(rows.numpy(), k, n_init=n_init, seed=seed)


def fitted_clusters(rows: Float[np.ndarray, "row dim"], k: int, *, n_init: int, seed: int) -> Int[np.ndarray, "row"]:
    """Return the cluster of each row, by scikit-learn's k-means on one thread."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # equal sums in equal order, without competing for busy cores
        fitted = KMeans(n_clusters=k, n_init=n_init, random_state=seed).fit(rows)
    return np.asarray(fitted.labels_, dtype=np.int64)


def clusters_of_halves(
    rows: Float[np.ndarray, "row dim"],
    clusters: Int[np.ndarray, "row"],
    n_resamples: int,
    units: Int[np.ndarray, "row"] | None,
    seed: int,
    device: str | None,
) -> list[tuple[Int[np.ndarray, "half"], Int[np.ndarray, "half"]]]:
    """Cluster random halves of the rows, or of their units, into as many clusters as all rows.

    Args:
        rows: the clustered rows.
        clusters: cluster of each row, counted from 0.
        n_resamples: number of halves.
        units: which rows belong together. Every row is a unit if not given.
        seed: for the halves and the starts.
        device: as in ``TaskClusterARI``.

    Returns:
        For each half, its rows and their clusters.
    """
    k = int(clusters.max()) + 1
    centres = np.stack([rows[clusters == cluster].mean(axis=0) for cluster in range(k)])
    state = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    halves = []
    for draw in half_samples(len(rows), n_resamples, seed, None if units is None else torch.from_numpy(units)):
        half = draw.numpy()
        states, of_half = np.unique(state[half], return_inverse=True)  # few states are a cluster each
        if len(states) > k:
            of_half = _better_clusters(rows[half], centres, seed=seed, device=device)
        halves.append((half, of_half))
    return halves


def _better_clusters(
    rows: Float[np.ndarray, "row dim"],
    centres: Float[np.ndarray, "cluster dim"],
    *,
    seed: int,
    device: str | None,
) -> Int[np.ndarray, "row"]:
    """Return the cluster of each row, the better of k-means from these centres and from a new start.

    The new start finds clusters of another kind, if they fit these rows better.
    """
    k = len(centres)
    if device is not None:
        on_device = torch.from_numpy(rows)
        from_centres = kmeans(on_device, k, initial=torch.from_numpy(centres), device=device)
        from_new = kmeans(on_device, k, n_init=1, seed=seed, device=device)
        return min(from_centres, from_new, key=attrgetter("inertia")).labels.numpy()
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        fits = [KMeans(k, init=init, n_init=1, random_state=seed).fit(rows) for init in (centres, "k-means++")]
    return np.asarray(min(fits, key=attrgetter("inertia_")).labels_, dtype=np.int64)


def _codes(labels: Shaped[Tensor, "row"]) -> Int[np.ndarray, "row"]:
    """Return classes as numbers 0, 1, ..."""
    return torch.unique(labels.cpu(), return_inverse=True)[1].numpy()
