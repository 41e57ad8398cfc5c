"""Whether near rows have one label."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, Labels, computed_in_torch
from probes.functional.distances import centre_and_scale, finite_matrix, first_alike, squared_differences
from probes.functional.products import float32_as_it_is
from probes.functional.representations import float64
from tasks import InputError

_CPU_BLOCK, _GPU_BLOCK = 2**22, 2**27  # products at once
_PREPARED = 2**18  # numbers at once that are made ready for them
_MANY = 16  # times k: with more rows that may be among the nearest, products are taken again in float64


@computed_in_torch("x", labels=["labels"])
def neighbour_purity(x: Shaped[Array, "n d"], labels: Labels, k: int = 10, *, device: str | None = None) -> float:
    """Mean share of an example's ``k`` nearest neighbours (Euclidean distance) that have its label.

    Takes tensors or NumPy arrays.

    By chance ``neighbour_purity_chance``; an interval: ``purity_interval(nearest(x, k), labels)``.

    Args:
        x: rows.
        labels: of each row.
        k: neighbours, fewer than there are rows.
        device: as in ``nearest``.

    Raises:
        InputError: for another number of labels than of rows, a label that is NaN, and where ``nearest`` raises it.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> neighbour_purity(x, torch.tensor([5, 5, 7, 7]), k=1)
        1.0
    """
    if len(labels) != len(x):
        raise InputError(f"x has {len(x)} rows for {len(labels)} labels; give one label per row")
    return float(same_label(nearest(x, k, device=device), labels).mean())


@computed_in_torch(labels=["labels", "units"])
def neighbour_purity_chance(labels: Labels, units: Labels | None = None) -> float:
    """``neighbour_purity`` for neighbours drawn at random: share of pairs with the same label. NaN for one row.

    Takes tensors, NumPy arrays or lists.

    With ``units``, of pairs of different units.

    Example:
        >>> neighbour_purity_chance(torch.tensor([0, 0, 1, 1]))
        0.3333333333333333
    """
    names = _labels(labels)
    unit = np.arange(len(names)) if units is None else _labels(units)
    n_pairs = len(names) ** 2 - _pairs(unit)
    alike = _pairs(names) - _pairs(np.stack([names, unit], axis=1))
    return alike / n_pairs if n_pairs else math.nan


def _pairs(values: np.ndarray) -> int:
    """Return the number of ordered pairs of rows that are equal, each with itself included."""
    return int(np.square(np.unique(values, axis=0, return_counts=True)[1]).sum())


def nearest_of_other_units(
    x: Shaped[Tensor, "n d"],
    k: int,
    units: Shaped[Tensor, "n"],
    queries: Int[Tensor, "queries"] | None = None,
    *,
    device: str | None = None,
) -> Int[Tensor, "queries k"]:
    """Return the ``k`` nearest rows of other units, in the order of the rows, on the CPU.

    Neighbours of the same unit, such as prompts of one template, are near because of their unit. Of rows equally near,
    the first count, up to rounding in float64. Memory: the rows in float64, and the distances of one unit from all.

    Args:
        x: rows, in any dtype.
        k: neighbours, at most as many as there are rows of other units.
        units: of each row.
        queries: of which rows; of all if not given.
        device: where to multiply, one with float64; the CPU if not given.

    Raises:
        InputError: for a ``k`` that there are not enough rows of other units for, and rows that are not finite.

    Example:
        >>> nearest_of_other_units(torch.tensor([[0.0], [1.0], [10.0], [2.0]]), 1, torch.tensor([0, 0, 1, 1])).tolist()
        [[3], [3], [1], [1]]
    """
    asked = torch.arange(len(x)) if queries is None else queries.cpu()
    member = torch.unique(units.cpu(), return_inverse=True)[1]
    if k > (others := len(x) - int(member.bincount().max())):
        raise InputError(f"k is {k}, but the largest unit leaves {others} examples of others; give a lower k")
    rows = float64(finite_matrix(x, "x")).to(device or "cpu")
    rows = rows - rows.mean(dim=0)
    neighbours = torch.empty(len(asked), k, dtype=torch.int64)
    for unit in torch.unique(member[asked]).tolist():
        places = (member[asked] == unit).nonzero()[:, 0]
        distance = torch.cdist(rows[asked[places].to(rows.device)], rows)
        distance[:, (member == unit).to(rows.device)] = torch.inf
        neighbours[places] = distance.sort(dim=1, stable=True).indices[:, :k].sort(dim=1).values.cpu()
    return neighbours


def same_label(
    near: Int[Tensor, "queries k"], labels: Shaped[Tensor, "n"], queries: Int[Tensor, "queries"] | None = None
) -> Float[np.ndarray, "queries"]:
    """Of each row, the share of its neighbours that have its label.

    Args:
        near: its neighbours, from ``nearest``.
        labels: of every row.
        queries: which rows these are; all of them if not given.

    Example:
        >>> same_label(torch.tensor([[1, 2], [0, 2], [1, 0]]), torch.tensor([5, 5, 7])).tolist()
        [0.5, 0.5, 0.0]
    """
    names, places = _labels(labels), near.cpu().numpy()
    own = names if queries is None else names[queries.cpu().numpy()]
    return (names[places] == own[:, None]).mean(1)


def purity_interval(
    near: Int[Tensor, "queries k"],
    labels: Shaped[Tensor, "n"],
    queries: Int[Tensor, "queries"] | None = None,
    units: Shaped[Tensor, "n"] | None = None,
) -> tuple[float, float]:
    """A 95% interval of the purity over examples, each of which counts as a query and as a neighbour of others.

    The variance is that of the jackknife over examples: each contributes the deviations from the mean of all pairs of
    query and neighbour that it is part of. A pair counts for both of its examples. If labels have nothing to do with
    the rows, this doubles the variance or more, so that the interval excludes chance in about 1 of 100 cases.

    The interval is Wilson's for a share of binary outcomes, with n divided by how much more the mean varies than that
    of independent ones. A purity of 0 or 1 counts as such outcomes. NaN for fewer than two queries.

    Source: Efron & Stein 1981, for the variance; Wilson 1927, with Kish's design effect (1965).

    Args:
        near: neighbours of each query, from ``nearest``.
        labels: of every row.
        queries: which rows these are; all of them if not given.
        units: of every row. The jackknife is then over units, which are what is taken as independent.

    Raises:
        InputError: for a label that is NaN.

    Example:
        >>> x = torch.arange(60.0)[:, None]
        >>> [round(end, 2) for end in purity_interval(nearest(x, 2), torch.arange(60) % 5 // 3)]
        [0.5, 0.71]
    """
    names, places = _labels(labels), near.cpu().numpy()
    asked = np.arange(len(places)) if queries is None else queries.cpu().numpy()
    same = names[places] == names[asked][:, None]
    if len(asked) < 2:
        return math.nan, math.nan
    deviation = (same - same.mean()) / same.size
    as_query = np.bincount(asked, deviation.sum(axis=1), len(names))
    as_neighbour = np.bincount(places.ravel(), deviation.ravel(), len(names))
    unit = np.arange(len(names)) if units is None else np.unique(_labels(units), return_inverse=True)[1]
    of_unit = np.bincount(unit, as_query + as_neighbour)
    n_units = len(of_unit)
    if n_units < 2:
        return math.nan, math.nan
    variance = np.square(of_unit).sum() * n_units / (n_units - 1)
    return _wilson(float(same.mean()), float(variance), len(asked) if units is None else n_units)


def _wilson(share: float, variance: float, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share with this variance; that of ``n`` binary outcomes if the variance is 0."""
    independent = share * (1 - share)
    z2 = 1.959963984540054**2 * (variance / independent if variance > 0 else 1 / n)
    middle = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * independent + z2 * z2 / 4) / (1 + z2)
    return middle - half, middle + half


def nearest(
    x: Shaped[Tensor, "n d"],
    k: int,
    queries: Int[Tensor, "queries"] | None = None,
    *,
    device: str | None = None,
) -> Int[Tensor, "queries k"]:
    """The ``k`` nearest other rows (Euclidean distance), in the order of the rows, on the CPU.

    Which rows may be among them is told from matrix products in float32, with a bound on their rounding; where these
    are more than ``k``, by subtraction in float64. Of rows equally near, the first count. So nothing depends on blocks,
    threads or precision.

    Memory: the rows on the device in their own dtype and in float32, and blocks of 4 million products (128 million on a
    GPU). Cost: ``queries n d``; rows of which more than ``k`` are the same cost nothing.

    Args:
        x: rows, in any dtype.
        k: neighbours, fewer than there are rows.
        queries: of which rows; of all if not given.
        device: where to multiply; the CPU if not given.

    Raises:
        InputError: for a ``k`` that there are not enough rows for, and rows that are not finite.

    Example:
        >>> nearest(torch.tensor([[0.0], [1.0], [10.0], [2.0]]), 2).tolist()
        [[1, 3], [0, 3], [1, 3], [0, 1]]
    """
    x, n = finite_matrix(x, "x"), len(x)
    if not 1 <= k < n:
        raise InputError(f"k is {k} for {n} examples; expected 1 to {n - 1}")
    asked = torch.arange(n) if queries is None else queries.cpu()
    alike = first_alike(x)
    order = torch.argsort(alike, stable=True)  # examples that are the same stand together, by their place
    counts = torch.bincount(alike, minlength=n)
    starts = counts.cumsum(0) - counts
    place = torch.empty(n, dtype=torch.int64)
    place[order] = torch.arange(n)
    found = torch.empty(len(asked), k, dtype=torch.int64)
    group = alike[asked]
    many = counts[group] > k
    # The first k others that are the same: of the first k + 1, without itself or without the last.
    first = order[starts[group[many]][:, None] + torch.arange(k + 1)]
    own = first == asked[many, None]
    own[:, -1] |= ~own.any(1)
    found[many] = first[~own].view(-1, k)
    if not bool(many.all()):
        columns = (place - starts[alike] <= k).nonzero()[:, 0]  # more of the same can be no neighbour of anybody
        found[~many] = _Search(x, columns, k, device).nearest(asked[~many])
    return found


class _Search:
    """Looks for neighbours among ``columns``, in which all queries are too."""

    def __init__(self, x: Tensor, columns: Tensor, k: int, device: str | None) -> None:
        where = torch.device("cpu" if device is None or torch.device(device).type == "mps" else device)
        self.x, self.columns, self.k = x.to(where), columns.to(where), k
        self.middle, self.scale = centre_and_scale(self.x)
        self._products_in(torch.float32)

    def _products_in(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.rows = torch.empty(len(self.columns), self.x.shape[1], dtype=dtype, device=self.x.device)
        self.norms = torch.empty(len(self.columns), dtype=torch.float64, device=self.x.device)
        step = max(1, _PREPARED // self.x.shape[1])
        for start in range(0, len(self.columns), step):
            part = slice(start, start + step)
            rows = float64(self.x[self.columns[part]]).sub_(self.middle).mul_(self.scale)
            self.rows[part] = rows
            self.norms[part] = rows.square_().sum(1)

    def nearest(self, queries: Tensor) -> Tensor:
        block = _CPU_BLOCK if self.x.device.type == "cpu" else _GPU_BLOCK
        size = max(64, block // len(self.columns))
        queries = queries.to(self.x.device)
        return torch.cat([self._block(queries[i : i + size]) for i in range(0, len(queries), size)])

    def _block(self, queries: Tensor) -> Tensor:
        near = self._may_be(queries)
        if self.dtype == torch.float32 and len(near) > _MANY * self.k * len(queries):
            self._products_in(torch.float64)
            near = self._may_be(queries)
        counts = torch.bincount(near[:, 0], minlength=len(queries))
        if bool((counts > self.k).any()):
            near = torch.cat(
                [near[(counts == self.k)[near[:, 0]]], self._decided(queries, near[(counts > self.k)[near[:, 0]]])]
            )
            near = near[torch.argsort(near[:, 0], stable=True)]
        return self.columns[near[:, 1]].view(-1, self.k).cpu()

    def _decided(self, queries: Tensor, near: Tensor) -> Tensor:
        """Of these pairs, those of the nearest ``k`` of each query."""
        distance = squared_differences(self.x, queries[near[:, 0]], self.columns[near[:, 1]], self.scale)
        order = torch.argsort(distance, stable=True)  # by column among equals, as they come
        order = order[torch.argsort(near[order, 0], stable=True)]
        counts = torch.bincount(near[:, 0])
        counts = counts[counts > 0]
        starts = counts.cumsum(0) - counts
        kept = order[starts[:, None] + torch.arange(self.k, device=order.device)]
        return near[kept.sort().values.flatten()]

    def _may_be(self, queries: Tensor) -> Tensor:
        """``[pairs 2]`` queries and columns such that no other column can be among a query's nearest."""
        own = torch.searchsorted(self.columns, queries)
        rows, (_, d) = self.rows[own], self.rows.shape
        # Half of |b|^2 - 2 a b, and the most that it can be off by (Higham 2002, section 3.1).
        u = torch.finfo(self.dtype).eps / 2
        length, longest = self.norms.sqrt(), self.norms[own].max().sqrt()
        slack = 1.01 * (d + 8) * u * length * longest + 8 * u * self.norms + d * 2.0**-120
        with float32_as_it_is():
            low = torch.addmm((self.norms / 2 - slack).to(self.dtype), rows, self.rows.T, alpha=-1)
        low[torch.arange(len(queries), device=own.device), own] = torch.inf
        top = low.topk(self.k, largest=False)
        high = (top.values + 2.01 * slack.to(self.dtype)[top.indices]).amax(1)
        return (low <= high[:, None]).nonzero()


def _labels(labels: Any) -> np.ndarray:
    values = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if len(undefined := np.flatnonzero(values != values)):
        raise InputError(f"the label of example {undefined[0]} is NaN; leave the example out, or label it")
    return values
