"""k-means in torch: exact Lloyd iterations on a device of choice, over rows that need not be in its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch
from tasks import InputError
from tasks.errors import check_at_least, check_choice

_CELLS = {"cpu": 2**19, "cuda": 2**26}  # numbers of a block of rows, or of its distances
_ADDED = ("cpu",)  # where sums of rows are taken by index; elsewhere as a product, whose order is fixed
_GROUP = 1024  # rows whose potentials are summed before one of them is drawn


@dataclass(frozen=True)
class KMeans:
    """Clusters of rows.

    Attributes:
        labels: ``[n]`` cluster of each row, int64.
        centres: ``[k d]`` means of the clusters, float64.
        inertia: sum of squared distances to the rows' centres, in the rows' unit squared.
        n_iter: iterations of the start that was kept.
    """

    labels: Int[Array, "n"]
    centres: Float[Array, "k d"]
    inertia: float
    n_iter: int


@computed_in_torch("rows", "initial")
def kmeans(
    rows: Shaped[Array, "n d"] | Sequence[Shaped[Array, "_ d"]],
    k: int,
    *,
    n_init: int = 10,
    seed: int = 0,
    device: str | torch.device | None = None,
    max_iter: int = 300,
    tol: float = 1e-4,
    method: Literal["lloyd", "minibatch"] = "lloyd",
    initial: Float[Array, "k d"] | None = None,
) -> KMeans:
    """Clusters rows around ``k`` centres such that the sum of squared distances is small; the best of several starts.

    Takes tensors or NumPy arrays, and returns the same kind.

    Lloyd's algorithm with greedy k-means++ seeding, with scikit-learn's rules for when to stop and for clusters that
    become empty: from the same centres both give the same clusters. All starts run side by side, so that each
    iteration reads the rows once. Distances are float32, sums float64. The same seed gives the same clusters, however
    the rows are cut into shards.

    Memory: one block of rows, and ``8 x n_init`` bytes per row. On CUDA, rows that fit into half of the free memory
    stay there; others are read from where they are in every iteration. Cost: ``n k d`` multiplications per start and
    iteration, and about ``3 + log k`` times that for the seeding.

    Args:
        rows: ``[n d]``, of any real dtype; or several such matrices, one after another, each moved to the device in
            turn (they may be memory-mapped).
        k: clusters, at most as many as rows.
        n_init: starts.
        seed: for the starts. The global random state is not touched.
        device: ``"cpu"`` or ``"cuda"``; where the rows are, by default.
        max_iter: most iterations.
        tol: stop where the centres move by less than this, squared and summed, relative to the mean variance of a
            dimension.
        method: ``"lloyd"``, or ``"minibatch"``: scikit-learn's ``MiniBatchKMeans``, on the CPU with all rows in
            memory, which is less exact.
        initial: ``[k d]`` centres to start from, instead of ``n_init`` starts of k-means++.

    Raises:
        InputError: for rows that are not matrices of one width, or not finite, fewer rows than clusters, or a device
            that is not there or has no float64.

    Source: Lloyd 1982; Arthur & Vassilvitskii 2007 (k-means++), greedy as in scikit-learn's ``kmeans_plusplus``.

    Example:
        >>> found = kmeans(torch.tensor([[0.0], [1.0], [10.0], [11.0]]), 2)
        >>> sorted(found.centres.flatten().tolist()), found.inertia
        ([0.5, 10.5], 1.0)
    """
    check_choice(method=(method, ("lloyd", "minibatch")))
    check_at_least(k=(k, 1), n_init=(n_init, 1), max_iter=(max_iter, 1), tol=(tol, 0), seed=(seed, 0))
    data = _Source([rows] if isinstance(rows, Tensor) else list(rows), device)
    if len(data) < k:
        raise InputError(f"{len(data)} rows for {k} clusters; give at least as many rows as clusters, or a smaller k")
    if initial is not None and tuple(initial.shape) != (k, data.width):
        raise InputError(f"initial has shape {tuple(initial.shape)}; expected {k} centres of {data.width} dimensions")
    if method == "minibatch":
        return _minibatch(data, k, n_init, seed, max_iter, initial)
    if initial is None:
        centres = _seeded(data, k, n_init, seed)
    else:
        centres = (initial.to(data.device, torch.float64) - data.mean)[None]
    return _lloyd(data, centres, max_iter, tol)


class _Source:
    """Rows, minus their mean, in blocks on the device. Where blocks begin does not depend on the shards."""

    def __init__(self, shards: list[Tensor], device: str | torch.device | None) -> None:
        if not shards or any(x.ndim != 2 or not x.shape[1] or x.shape[1] != shards[0].shape[1] for x in shards):
            given = ", ".join(str(list(x.shape)) for x in shards[:4]) or "no tensor"
            raise InputError(f"the rows have shape {given}; expected [n d], with the same d in every shard")
        try:
            self.device = torch.device(shards[0].device if device is None else device)
        except RuntimeError:
            raise InputError(f"no device {device!r}; expected cpu or cuda") from None
        if self.device.type not in _CELLS or (self.device.type == "cuda" and not torch.cuda.is_available()):
            raise InputError(
                f"k-means cannot run on {str(self.device)!r} here; expected cpu, or cuda where there is one"
            )
        self.width, self._n = shards[0].shape[1], sum(map(len, shards))
        self._shards = shards
        if self.device.type == "cuda" and 8 * self._n * self.width < torch.cuda.mem_get_info(self.device)[0]:
            self._shards = [torch.cat([self._here(x) for x in shards])]

    def __len__(self) -> int:
        return self._n

    @property
    def shards(self) -> list[Tensor]:
        return self._shards

    @cached_property
    def mean(self) -> Float[Tensor, "d"]:
        """Of the rows, rounded to float32."""
        total = torch.zeros(self.width, dtype=torch.float64, device=self.device)
        for _, x in self._raw(1):
            if not bool(torch.isfinite(x).all()):
                raise InputError("some rows have NaN or infinity; leave those examples out")
            total += x.sum(0, dtype=torch.float64)
        return (total / self._n).float().double()  # what can be subtracted from float32 rows and added again

    @cached_property
    def squares(self) -> float:
        """Sum of squared distances to the mean."""
        return sum(float(x.double().square().sum()) for _, x in self.blocks(1))

    def blocks(self, columns: int) -> Iterator[tuple[slice, Float[Tensor, "block d"]]]:
        """Blocks of centred float32 rows with where they stand, small enough for ``columns`` distances a row."""
        for place, x in self._raw(columns):
            yield place, self._centred(x)

    def _centred(self, x: Tensor) -> Tensor:
        return (x - self.mean.to(x.dtype)).float()

    def _raw(self, columns: int) -> Iterator[tuple[slice, Float[Tensor, "block d"]]]:
        size = max(1, _CELLS[self.device.type] // max(self.width, columns))
        start, parts, held = 0, list[Tensor](), 0
        for shard in self._shards:
            at = 0
            while at < len(shard):
                part = shard[at : at + size - held]
                at, held = at + len(part), held + len(part)
                parts.append(part)
                if held == size:
                    yield slice(start, start + held), self._moved(parts)
                    start, parts, held = start + held, [], 0
        if held:
            yield slice(start, start + held), self._moved(parts)

    def _moved(self, parts: list[Tensor]) -> Tensor:
        moved = [self._here(part) for part in parts]
        return moved[0] if len(moved) == 1 else torch.cat(moved)

    def _here(self, part: Tensor) -> Tensor:
        """On the device, in float32 unless it is float64."""
        exact = torch.float64 if part.dtype == torch.float64 else torch.float32
        return part.detach().to(self.device, exact)

    def take(self, index: Int[Tensor, "m"]) -> Float[Tensor, "m d"]:
        """Centred rows by their place."""
        index = index.cpu()
        found = torch.empty(len(index), self.width, device=self.device)
        start = 0
        for shard in self._shards:
            here = (index >= start) & (index < start + len(shard))
            if bool(here.any()):
                at = (index[here] - start).to(shard.device)
                found[here.to(self.device)] = self._centred(self._here(shard[at]))
            start += len(shard)
        return found


# ---- seeding ----


def _seeded(data: _Source, k: int, starts: int, seed: int) -> Float[Tensor, "starts k d"]:
    """Greedy k-means++: of a few rows drawn by their squared distance, the one that leaves the least of it."""
    draw = torch.Generator().manual_seed(seed)
    trials = 2 + int(math.log(k))
    chosen = torch.randint(len(data), (starts,), generator=draw)
    centres = data.take(chosen)[:, None].double()
    groups = -(-len(data) // _GROUP)
    nearest = torch.zeros(starts, groups * _GROUP, device=data.device)  # the padding is never drawn
    nearest[:, : len(data)] = math.inf
    for _ in range(1, k):
        _approach(data, nearest, centres[:, -1].float())
        tried = data.take(_drawn(nearest, trials, draw).clamp(max=len(data) - 1)).view(starts, trials, -1)
        left = torch.zeros(starts, trials, dtype=torch.float64, device=data.device)
        for place, x in data.blocks(starts * trials):
            distance = _distances(x, tried.flatten(0, 1)).view(starts, trials, -1)
            left += torch.minimum(distance, nearest[:, None, place]).sum(-1, dtype=torch.float64)
        best = tried[torch.arange(starts), left.argmin(1).cpu()]
        centres = torch.cat([centres, best[:, None].double()], dim=1)
    return centres


def _approach(data: _Source, nearest: Tensor, centres: Float[Tensor, "starts d"]) -> None:
    """Take a further centre of each start into account."""
    for place, x in data.blocks(len(centres)):
        nearest[:, place] = torch.minimum(nearest[:, place], _distances(x, centres))


def _distances(x: Float[Tensor, "n d"], centres: Float[Tensor, "c d"]) -> Float[Tensor, "c n"]:
    """Squared; never below 0, where rounding would put some."""
    lengths = centres.square().sum(1)[:, None] + x.square().sum(1)
    return torch.addmm(lengths, centres, x.T, alpha=-2).clamp_(min=0)


def _drawn(weight: Float[Tensor, "starts n"], trials: int, draw: torch.Generator) -> Int[Tensor, "drawn"]:
    """``trials`` places a start, drawn in proportion to ``weight``."""
    groups = weight.view(len(weight), -1, _GROUP)
    below = groups.sum(-1, dtype=torch.float64).cpu().cumsum(1)
    target = torch.rand(len(weight), trials, dtype=torch.float64, generator=draw) * below[:, -1:]
    group = torch.searchsorted(below, target).clamp(max=groups.shape[1] - 1)
    before = torch.cat([torch.zeros(len(weight), 1, dtype=torch.float64), below], dim=1).gather(1, group)
    start = torch.arange(len(weight))[:, None]
    within = groups[start.to(weight.device), group.to(weight.device)].cpu().double().cumsum(-1)
    place = torch.searchsorted(within, (target - before)[..., None])[..., 0].clamp(max=_GROUP - 1)
    return (group * _GROUP + place).flatten()


# ---- Lloyd ----


class _Starts:
    """The clusters of every start: labels, sums of rows and counts."""

    def __init__(self, data: _Source, centres: Float[Tensor, "starts k d"]) -> None:
        self.data, self.centres = data, centres
        starts, k, d = centres.shape
        self.labels = torch.full((starts, len(data)), -1, dtype=torch.int32, device=data.device)
        self.sums = torch.zeros(starts, k, d, dtype=torch.float64, device=data.device)
        self.counts = torch.zeros(starts, k, dtype=torch.int64, device=data.device)

    def assign(self, active: list[int]) -> list[bool]:
        """Every row to its nearest centre; whether no row moved, for each of the starts asked for."""
        centres = self.centres[active].float()
        lengths = centres.square().sum(-1).flatten()[:, None]
        still = [True] * len(active)
        for place, x in self.data.blocks(lengths.numel()):
            scores = torch.addmm(lengths, centres.flatten(0, 1), x.T, alpha=-2)
            found = scores.view(len(active), centres.shape[1], -1).min(1).indices.int()
            for i, start in enumerate(active):
                old = self.labels[start, place]
                moved = (found[i] != old).nonzero()[:, 0]
                if len(moved):
                    still[i] = False
                    whole = len(moved) == len(x)
                    self._move(start, x if whole else x[moved], old[moved].long(), found[i][moved].long())
                    self.labels[start, place] = found[i]
        return still

    def _move(self, start: int, x: Tensor, old: Tensor, new: Tensor) -> None:
        """Rows ``x`` from cluster ``old`` (-1: none) to ``new``."""
        sums, counts, known = self.sums[start], self.counts[start], bool(old[0] >= 0)
        exact = x.double()
        if x.device.type in _ADDED:
            sums.index_add_(0, new, exact)
            if known:
                sums.index_add_(0, old, exact, alpha=-1)
        else:
            among = torch.arange(len(sums), device=x.device)[:, None]
            sums += ((new == among).double() - (old == among).double()) @ exact
        counts += new.bincount(minlength=len(counts))
        if known:
            counts -= old.bincount(minlength=len(counts))

    def means(self, start: int) -> Float[Tensor, "k d"]:
        """New centres. Empty clusters take the rows farthest from their centres, as in scikit-learn."""
        sums, counts = self.sums[start], self.counts[start]
        empty = (counts == 0).nonzero()[:, 0]
        if len(empty):
            far, distance = self._farthest(start, len(empty))
            if float(distance[0]) > 0:
                sums, counts, rows = sums.clone(), counts.clone(), self.data.take(far).double()
                for cluster, row, left in zip(empty, rows, self.labels[start, far].long(), strict=True):
                    sums[cluster], counts[cluster] = row, 1
                    sums[left] -= row
                    counts[left] -= 1
        return torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), self.centres[start])

    def _farthest(self, start: int, m: int) -> tuple[Int[Tensor, "m"], Float[Tensor, "m"]]:
        distance = torch.empty(len(self.data), device=self.data.device)
        for place, x in self.data.blocks(1):
            distance[place] = (x - self.centres[start].float()[self.labels[start, place].long()]).square().sum(1)
        values, where = distance.sort(descending=True, stable=True)
        return where[:m], values[:m]

    def inertia(self, start: int) -> float:
        """Sum of squared distances, from sums alone."""
        centres, counts = self.centres[start], self.counts[start]
        return self.data.squares + float((counts[:, None] * centres**2 - 2 * centres * self.sums[start]).sum())


def _lloyd(data: _Source, centres: Float[Tensor, "starts k d"], max_iter: int, tol: float) -> KMeans:
    starts = _Starts(data, centres)
    least = tol * data.squares / (len(data) * data.width)
    active, unsettled, n_iter = list(range(len(centres))), [], [max_iter] * len(centres)
    for iteration in range(1, max_iter + 1):
        still, going = starts.assign(active), []
        for start, settled in zip(active, still, strict=True):
            means = starts.means(start)
            shift = float((means - starts.centres[start]).square().sum())
            starts.centres[start] = means
            if settled or shift <= least:
                n_iter[start] = iteration
                unsettled += [] if settled else [start]
            else:
                going.append(start)
        active = going
        if not active:
            break
    if unsettled + active:  # their labels are of the centres before
        starts.assign(sorted(unsettled + active))
    inertia = [starts.inertia(i) for i in range(len(centres))]
    best = min(range(len(inertia)), key=inertia.__getitem__)
    return KMeans(
        starts.labels[best].cpu().long(),
        (starts.centres[best] + data.mean).cpu(),
        inertia[best],
        n_iter[best],
    )


def _minibatch(
    data: _Source, k: int, n_init: int, seed: int, max_iter: int, initial: Float[Tensor, "k d"] | None
) -> KMeans:
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    if data.device.type != "cpu":
        raise InputError(f"method 'minibatch' runs on the CPU, not on {str(data.device)!r}; choose 'lloyd' there")
    rows = torch.cat([x.detach().float() for x in data.shards]).numpy()
    start = "k-means++" if initial is None else initial.detach().cpu().float().numpy()
    model = MiniBatchKMeans(
        k, init=start, n_init=n_init if initial is None else 1, random_state=seed, max_iter=max_iter
    )
    with threadpool_limits(1):
        model.fit(rows)
    centres = torch.from_numpy(model.cluster_centers_).double()
    labels = torch.from_numpy(model.labels_).long()
    return KMeans(labels, centres, float(model.inertia_), int(model.n_iter_))
