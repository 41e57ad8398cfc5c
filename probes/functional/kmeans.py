"""k-means: exact Lloyd iterations in torch on a device of choice, also of halves of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch
from probes.functional.halves import half_samples
from tasks import InputError
from tasks.settings import check_at_least, check_count, check_different_settings

BLOCK_NUMBERS = {"cpu": 2**19, "cuda": 2**26}  # numbers in a block of rows, or in its distances
DEVICES_ADDING_BY_INDEX = ("cpu",)  # elsewhere rows are summed by a product, whose order is fixed
_DRAW_GROUP = 1024  # rows whose weights are summed before one of them is drawn


@dataclass(frozen=True)
class KMeans:
    """Clusters of rows.

    Attributes:
        labels: cluster of each row, int64.
        centres: means of the clusters, float64.
        inertia: sum of squared distances to the rows' centres, in the rows' unit squared.
        n_iter: iterations of the start that was kept.

    Example:
        >>> kmeans(torch.tensor([[0.0], [1.0]]), 1)
        KMeans(labels=tensor([0, 0]), centres=tensor([[0.5000]], dtype=torch.float64), inertia=0.5, n_iter=2)
    """

    labels: Int[Array, "row"]
    centres: Float[Array, "cluster dim"]
    inertia: float
    n_iter: int


@computed_in_torch()
def kmeans(
    rows: Shaped[Array, "row dim"],
    k: int,
    *,
    n_init: int = 10,
    seed: int = 0,
    device: str | torch.device | None = None,
    max_iter: int = 300,
    tol: float = 1e-4,
    initial: Float[Array, "cluster dim"] | None = None,
) -> KMeans:
    """Cluster rows around ``k`` centres with a small sum of squared distances, the best of several starts.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    Lloyd's algorithm with greedy k-means++ seeding, and scikit-learn's rules for stopping and for empty clusters: from
    equal centres both give equal clusters of float32 rows. All starts run in parallel, so that each iteration reads the
    rows once. Distances are float32, also of float64 rows, and sums float64. A seed determines the clusters.

    Memory: the rows on the device, and ``8 x n_init`` bytes per row. Cost: ``n k d`` multiplications per start and
    iteration, and about ``3 + log k`` times that for the seeding.

    Args:
        rows: rows of any real dtype.
        k: clusters, at most as many as rows.
        n_init: starts.
        seed: for the starts. The global random state is not touched.
        device: ``"cpu"`` or ``"cuda"``, by default the rows' device.
        max_iter: most iterations.
        tol: stop when the centres move by less than this, squared and summed, relative to the mean variance of a
            dimension.
        initial: centres to start from, instead of ``n_init`` starts of k-means++.

    Raises:
        InputError: for rows that are no matrix, or not finite, fewer rows than clusters, or a device
            that is not there or has no float64.

    Source: Lloyd 1982. Arthur & Vassilvitskii 2007 (k-means++), greedy as in scikit-learn's ``kmeans_plusplus``.

    Example:
        >>> clusters = kmeans(torch.tensor([[0.0], [1.0], [10.0], [11.0]]), 2)
        >>> sorted(clusters.centres.flatten().tolist()), clusters.inertia
        ([0.5, 10.5], 1.0)
    """
    check_count(k=(k, 1), n_init=(n_init, 1), max_iter=(max_iter, 1), seed=(seed, 0))
    check_at_least(tol=(tol, 0))
    if len(rows) < k:
        raise InputError(f"{len(rows)} rows for {k} clusters; give at least as many rows as clusters, or a smaller k")
    if initial is not None and len(initial) != k:
        raise InputError(f"initial has {len(initial)} centres; expected {k}, as many as clusters")
    data = _Rows(rows, _checked_device(rows.device if device is None else device))
    if initial is None:
        centres = _seeded(data, k, n_init, seed)
    else:
        centres = (initial.to(data.device, torch.float64) - data.mean)[None]
    return _lloyd(data, centres, max_iter, tol)


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
    check_different_settings(n_clusters=each)


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        checked = torch.device(device)
    except RuntimeError:
        raise InputError(f"no device {device!r}; expected cpu or cuda") from None
    if checked.type not in BLOCK_NUMBERS or (checked.type == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"k-means cannot run on {str(checked)!r} here; expected cpu, or cuda where there is one")
    return checked


# ---- Lloyd ----


def _lloyd(data: _Rows, centres: Float[Tensor, "start cluster dim"], max_iter: int, tol: float) -> KMeans:
    """Move the centres of all starts until they stay, and return the clusters of the best start."""
    starts = _Starts(data, centres)
    smallest_shift = tol * data.squares / (len(data) * data.width)
    n_iter = [max_iter] * len(centres)
    active = list(range(len(centres)))
    stale = []  # starts whose labels come from the previous centres
    for iteration in range(1, max_iter + 1):
        still_active = []
        for start, is_settled in zip(active, starts.assign(active), strict=True):
            means = starts.means(start)
            shift = float((means - starts.centres[start]).square().sum())
            starts.centres[start] = means
            if is_settled or shift <= smallest_shift:
                n_iter[start] = iteration
                if not is_settled:
                    stale.append(start)
            else:
                still_active.append(start)
        active = still_active
        if not active:
            break
    stale += active
    if stale:
        starts.assign(sorted(stale))
    inertia = [starts.inertia(start) for start in range(len(centres))]
    best = inertia.index(min(inertia))
    return KMeans(
        starts.labels[best].cpu().long(), (starts.centres[best] + data.mean).cpu(), inertia[best], n_iter[best]
    )


class _Starts:
    """The clusters of every start: labels, sums of rows and counts."""

    def __init__(self, data: _Rows, centres: Float[Tensor, "start cluster dim"]) -> None:
        n_starts, k, _ = centres.shape
        self.data = data
        self.centres = centres
        self.labels = torch.full((n_starts, len(data)), -1, dtype=torch.int32, device=data.device)
        self.sums = torch.zeros_like(centres)
        self.counts = torch.zeros(n_starts, k, dtype=torch.int64, device=data.device)

    def assign(self, active: list[int]) -> list[bool]:
        """Assign every row to its nearest centre, and return for each of these starts whether no row moved."""
        centres = self.centres[active].float()
        lengths = centres.square().sum(-1).flatten()[:, None]
        is_settled = [True] * len(active)
        for place, rows in self.data.blocks(lengths.numel()):
            scores = torch.addmm(lengths, centres.flatten(0, 1), rows.T, alpha=-2)
            nearest = scores.view(len(active), centres.shape[1], -1).min(1).indices.int()
            for i, start in enumerate(active):
                if self._relabel(start, place, rows, nearest[i]):
                    is_settled[i] = False
        return is_settled

    def _relabel(self, start: int, place: slice, rows: Float[Tensor, "row dim"], labels: Int[Tensor, "row"]) -> bool:
        """Give the rows at a place their labels, and return whether any label changed."""
        before = self.labels[start, place]
        moved = (labels != before).nonzero()[:, 0]
        if not len(moved):
            return False
        exact = (rows if len(moved) == len(rows) else rows[moved]).double()
        self._move(start, exact, before[moved].long(), labels[moved].long())
        self.labels[start, place] = labels
        return True

    def _move(
        self, start: int, rows: Float[Tensor, "moved dim"], before: Int[Tensor, "moved"], after: Int[Tensor, "moved"]
    ) -> None:
        """Take rows out of the clusters before, unless these are -1, and add them to the clusters after."""
        sums = self.sums[start]
        counts = self.counts[start]
        had_cluster = bool(before[0] >= 0)
        if rows.device.type in DEVICES_ADDING_BY_INDEX:
            sums.index_add_(0, after, rows)
            if had_cluster:
                sums.index_add_(0, before, rows, alpha=-1)
        else:
            clusters = torch.arange(len(sums), device=rows.device)[:, None]
            sums += ((after == clusters).double() - (before == clusters).double()) @ rows
        counts += after.bincount(minlength=len(counts))
        if had_cluster:
            counts -= before.bincount(minlength=len(counts))

    def means(self, start: int) -> Float[Tensor, "cluster dim"]:
        """Return new centres. Empty clusters take the rows farthest from their centres, as in scikit-learn."""
        sums = self.sums[start]
        counts = self.counts[start]
        empty = (counts == 0).nonzero()[:, 0]
        if len(empty):
            farthest, distance = self._farthest(start, len(empty))
            if float(distance[0]) > 0:
                sums = sums.clone()
                counts = counts.clone()
                rows = self.data.take(farthest).double()
                clusters_left = self.labels[start, farthest].long()
                for cluster, row, cluster_left in zip(empty, rows, clusters_left, strict=True):
                    sums[cluster] = row
                    counts[cluster] = 1
                    sums[cluster_left] -= row
                    counts[cluster_left] -= 1
        return torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), self.centres[start])

    def _farthest(self, start: int, n: int) -> tuple[Int[Tensor, "farthest"], Float[Tensor, "farthest"]]:
        """Return the rows farthest from their centres, and their squared distances."""
        centres = self.centres[start].float()
        distance = torch.empty(len(self.data), device=self.data.device)
        for place, rows in self.data.blocks(1):
            distance[place] = (rows - centres[self.labels[start, place].long()]).square().sum(1)
        values, places = distance.sort(descending=True, stable=True)
        return places[:n], values[:n]

    def inertia(self, start: int) -> float:
        """Return the sum of squared distances, from sums alone."""
        centres = self.centres[start]
        counts = self.counts[start]
        return self.data.squares + float((counts[:, None] * centres**2 - 2 * centres * self.sums[start]).sum())


# ---- seeding ----


def _seeded(data: _Rows, k: int, n_starts: int, seed: int) -> Float[Tensor, "start cluster dim"]:
    """Return centres by greedy k-means++: the best of a few rows drawn by their squared distance."""
    draw = torch.Generator().manual_seed(seed)
    trials = 2 + int(math.log(k))
    first = torch.randint(len(data), (n_starts,), generator=draw)
    centres = data.take(first)[:, None].double()
    n_groups = math.ceil(len(data) / _DRAW_GROUP)
    nearest = torch.zeros(n_starts, n_groups * _DRAW_GROUP, device=data.device)  # the padding is never drawn
    nearest[:, : len(data)] = math.inf
    for _ in range(1, k):
        for place, rows in data.blocks(n_starts):
            nearest[:, place] = torch.minimum(nearest[:, place], _distances(rows, centres[:, -1].float()))
        drawn = _drawn(nearest, trials, draw).clamp(max=len(data) - 1)
        candidates = data.take(drawn.flatten()).view(n_starts, trials, -1)
        left = torch.zeros(n_starts, trials, dtype=torch.float64, device=data.device)
        for place, rows in data.blocks(n_starts * trials):
            distance = _distances(rows, candidates.flatten(0, 1)).view(n_starts, trials, -1)
            left += torch.minimum(distance, nearest[:, None, place]).sum(-1, dtype=torch.float64)
        best = candidates[torch.arange(n_starts), left.argmin(1).cpu()]
        centres = torch.cat([centres, best[:, None].double()], dim=1)
    return centres


def _distances(rows: Float[Tensor, "row dim"], centres: Float[Tensor, "centre dim"]) -> Float[Tensor, "centre row"]:
    """Return squared distances, with those that rounding makes negative set to 0."""
    lengths = centres.square().sum(1)[:, None] + rows.square().sum(1)
    return torch.addmm(lengths, centres, rows.T, alpha=-2).clamp_(min=0)


def _drawn(weight: Float[Tensor, "start padded_row"], trials: int, draw: torch.Generator) -> Int[Tensor, "start trial"]:
    """Return rows of each start, drawn in proportion to their weight: first a group of rows, then one in it."""
    groups = weight.view(len(weight), -1, _DRAW_GROUP)
    below = groups.sum(-1, dtype=torch.float64).cpu().cumsum(1)
    target = torch.rand(len(weight), trials, dtype=torch.float64, generator=draw) * below[:, -1:]
    group = torch.searchsorted(below, target).clamp(max=groups.shape[1] - 1)
    before = torch.cat([torch.zeros(len(weight), 1, dtype=torch.float64), below], dim=1).gather(1, group)
    start = torch.arange(len(weight))[:, None]
    within = groups[start.to(weight.device), group.to(weight.device)].cpu().double().cumsum(-1)
    place = torch.searchsorted(within, (target - before)[..., None])[..., 0].clamp(max=_DRAW_GROUP - 1)
    return group * _DRAW_GROUP + place


# ---- blocks of rows on a device ----


class _Rows:
    """Blocks of rows on a device, minus their mean.

    Attributes:
        device: device of the rows.
        width: number of dimensions.
        mean: mean of the rows, rounded to float32, so that it can be subtracted from float32 rows and added again.
    """

    def __init__(self, rows: Shaped[Tensor, "row dim"], device: torch.device) -> None:
        rows = rows.detach()
        self.device = device
        self.width = rows.shape[1]
        self._rows = rows if device.type == "cpu" else _in_float(rows.to(device))
        total = torch.zeros(self.width, dtype=torch.float64, device=device)
        for place in self._places(1):
            block = _in_float(self._rows[place])
            total += block.sum(0, dtype=torch.float64)
        self.mean = (total / len(rows)).float().double()

    @cached_property
    def squares(self) -> float:
        """The sum of squared distances to the mean."""
        return sum(float(block.double().square().sum()) for _, block in self.blocks(1))

    def __len__(self) -> int:
        return len(self._rows)

    def blocks(self, columns: int) -> Iterator[tuple[slice, Float[Tensor, "block dim"]]]:
        """Yield blocks of centred float32 rows with their places, small enough for ``columns`` distances a row."""
        for place in self._places(columns):
            yield place, self._centred(self._rows[place])

    def _places(self, columns: int) -> Iterator[slice]:
        size = max(1, BLOCK_NUMBERS[self.device.type] // max(self.width, columns))
        for start in range(0, len(self), size):
            yield slice(start, min(start + size, len(self)))

    def _centred(self, rows: Shaped[Tensor, "block dim"]) -> Float[Tensor, "block dim"]:
        rows = _in_float(rows)
        return (rows - self.mean.to(rows.dtype)).float()

    def take(self, index: Int[Tensor, "chosen"]) -> Float[Tensor, "chosen dim"]:
        """Return centred rows by their place."""
        return self._centred(self._rows[index.to(self.device)])


def _in_float(rows: Shaped[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
    """Return rows in float32, or in float64 if they are that or integers, of which float32 cannot hold all."""
    if rows.dtype == torch.float64:
        return rows
    return rows.float() if rows.is_floating_point() else rows.double()


# ---- halves of the rows ----


def kmeans_of_halves(
    rows: Float[np.ndarray, "row dim"],
    clusters: Int[np.ndarray, "row"],
    n_resamples: int,
    units: Int[np.ndarray, "row"] | None,
    seed: int,
    device: str | None = None,
) -> list[tuple[Int[np.ndarray, "half"], Int[np.ndarray, "half"]]]:
    """Cluster random halves of the rows, or of their units, into as many clusters as have rows.

    Args:
        rows: the clustered rows.
        clusters: cluster of each row.
        n_resamples: number of halves.
        units: which rows belong together. Every row is a unit if not given.
        seed: for the halves and the starts.
        device: device of k-means. ``None`` is the CPU.

    Returns:
        For each half, its rows and their clusters.
    """
    clusters = np.unique(clusters, return_inverse=True)[1]  # a cluster without rows has no centre
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
    from_centres = kmeans(rows, k, initial=centres, device=device)
    from_new = kmeans(rows, k, n_init=1, seed=seed, device=device)
    return min(from_centres, from_new, key=attrgetter("inertia")).labels
