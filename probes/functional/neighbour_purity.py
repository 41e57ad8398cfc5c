"""Neighbour purity: the share of near rows with an example's label."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import (
    ROW_LABELS,
    ROW_MATRIX,
    Array,
    Labels,
    as_numpy,
    checked_tensor,
    computed_in_numpy,
    computed_in_torch,
    in_float64,
)
from probes.functional.distances import (
    centre_for_distances,
    first_at_distance_zero,
    float64_device,
    squared_differences,
)
from probes.functional.products import full_float32_products
from probes.functional.relabelling import Relabelling
from probes.functional.wilson_interval import ends_around, wilson_ends
from tasks import InputError

PRODUCTS_AT_ONCE_CPU = 2**22
_PRODUCTS_AT_ONCE_GPU = 2**27
NUMBERS_PREPARED_AT_ONCE = 2**18
_NEAR = 2.0**-20  # of the squared norms: a squared distance below has lost digits in a difference of products
_MAX_CANDIDATES = 16  # multiple of k: if more rows may be among the nearest, products are repeated in float64


@computed_in_torch()
def neighbour_purity(x: Shaped[Array, "row dim"], labels: Labels, k: int = 10, *, device: str | None = None) -> float:
    """Return the mean share of an example's ``k`` nearest neighbours (Euclidean distance) that have its label.

    Takes tensors, NumPy arrays or lists.

    Its value by chance is ``neighbour_purity_chance``. ``purity_interval(nearest_rows(x, k), labels)`` is its interval.

    Args:
        x: rows.
        labels: label of each row.
        k: neighbours, fewer than there are rows.
        device: as in ``nearest_rows``.

    Raises:
        InputError: for another number of labels than of rows, a label that is NaN, and as ``nearest_rows`` does.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> neighbour_purity(x, torch.tensor([5, 5, 7, 7]), k=1)
        1.0
    """
    return float(purity_by_query(nearest_rows(x, k, device=device), labels).mean())


@computed_in_numpy
def neighbour_purity_chance(labels: Labels, units: Labels | None = None) -> float:
    """Return ``neighbour_purity`` for neighbours drawn at random: the share of pairs with one label. NaN for one row.

    Takes tensors, NumPy arrays or lists.

    With ``units``, pairs are of different units.

    Example:
        >>> neighbour_purity_chance(torch.tensor([0, 0, 1, 1]))
        0.3333333333333333
    """
    unit = np.arange(len(labels)) if units is None else units
    n_pairs = len(labels) ** 2 - _pairs(unit)
    same = _pairs(labels) - _pairs(np.stack([labels, unit], axis=1))
    return same / n_pairs if n_pairs else math.nan


def _pairs(values: Shaped[np.ndarray, "row *label"]) -> int:
    """Return the number of ordered pairs of rows that are equal, each with itself included."""
    return int(np.square(np.unique(values, axis=0, return_counts=True)[1]).sum())


def purity_by_query(
    near: Int[Tensor, "query k"], labels: Labels, queries: Int[Tensor, "query"] | None = None
) -> Float[np.ndarray, "query"]:
    """Return for each query the share of its neighbours that have its label.

    Args:
        near: its neighbours, from ``nearest_rows``.
        labels: label of every row.
        queries: places of the rows that are queries. All if not given.

    Example:
        >>> purity_by_query(torch.tensor([[1, 2], [0, 2], [1, 0]]), torch.tensor([5, 5, 7])).tolist()
        [0.5, 0.5, 0.0]
    """
    return _has_same_label(near, _labels(labels), _places(near, queries)).mean(1)


def relabelled_purity(
    near: Int[Tensor, "query k"],
    relabelling: Relabelling,
    n_permutations: int,
    seed: int,
    queries: Int[Tensor, "query"] | None = None,
) -> Float[np.ndarray, "n_permutations"]:
    """Return the purity of randomly permuted labels, with neighbours unchanged.

    Args:
        near: neighbours of each query.
        relabelling: the permutations, ``Relabelling.from_classes(labels, units)``.
        n_permutations: number of permutations.
        seed: for the permutations.
        queries: places of the rows that are queries. All if not given.

    Example:
        >>> near = nearest_rows(torch.tensor([[0.0], [1.0], [10.0], [11.0]]), 1)
        >>> relabelled_purity(near, Relabelling.from_classes(np.array([5, 5, 7, 7])), 4, seed=0).tolist()
        [1.0, 1.0, 0.0, 0.0]
    """
    rng = np.random.default_rng(seed)
    places = _places(near, queries)
    purity = np.empty(n_permutations)
    for draw in range(n_permutations):
        purity[draw] = _has_same_label(near, relabelling.draw(rng), places).mean()
    return purity


def _has_same_label(
    near: Int[Tensor, "query k"], names: Shaped[np.ndarray, "row"], queries: Int[np.ndarray, "query"]
) -> Bool[np.ndarray, "query k"]:
    return names[near.cpu().numpy()] == names[queries][:, None]


def _places(near: Int[Tensor, "query k"], queries: Int[Tensor, "query"] | None) -> Int[np.ndarray, "query"]:
    return np.arange(len(near)) if queries is None else queries.cpu().numpy()


def purity_interval(
    near: Int[Tensor, "query k"],
    labels: Labels,
    queries: Int[Tensor, "query"] | None = None,
    units: Labels | None = None,
) -> tuple[float, float]:
    """Return a 95% interval of the purity over examples, each of which is a query and a neighbour of others.

    The variance comes from the jackknife over examples: each contributes the deviations from the mean of all its pairs
    of query and neighbour. A pair counts for both of its examples. If labels are independent of the rows, this doubles
    the variance or more, so that the interval excludes chance in about 1 of 100 cases.

    The interval is Wilson's for a share of binary outcomes, with n divided by the ratio of the mean's variance to that
    for independent outcomes. A purity of 0 or 1 counts as one outcome for each unit of the queries. NaN for fewer than
    two queries.

    Source: Efron & Stein 1981, for the variance. Wilson 1927, with Kish's design effect (1965).

    Args:
        near: neighbours of each query, from ``nearest_rows``.
        labels: label of every row.
        queries: places of the rows that are queries. All if not given.
        units: unit of every row. The jackknife is then over units, which are independent.

    Raises:
        InputError: for a label that is NaN.

    Example:
        >>> x = torch.arange(60.0)[:, None]
        >>> [round(end, 2) for end in purity_interval(nearest_rows(x, 2), torch.arange(60) % 5 // 3)]
        [0.5, 0.71]
    """
    names = _labels(labels)
    places = _places(near, queries)
    same = _has_same_label(near, names, places)
    unit = np.arange(len(names)) if units is None else np.unique(_labels(units, "units"), return_inverse=True)[1]
    n_units = int(unit.max()) + 1
    if len(places) < 2 or n_units < 2:
        return math.nan, math.nan
    deviation = (same - same.mean()) / same.size
    as_query = np.bincount(places, deviation.sum(axis=1), len(names))
    as_neighbour = np.bincount(near.cpu().numpy().ravel(), deviation.ravel(), len(names))
    of_unit = np.bincount(unit, as_query + as_neighbour)
    variance = np.square(of_unit).sum() * n_units / (n_units - 1)
    return _wilson(float(same.mean()), float(variance), len(np.unique(unit[places])))


def _wilson(share: float, variance: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share with this variance, or of ``n`` binary outcomes if it is 0."""
    independent = share * (1 - share)
    z2 = 1.959963984540054**2 * (variance / independent if variance > 0 else 1 / n)
    return ends_around(share, *wilson_ends(share, z2))


def _labels(labels: Labels, name: str = "labels") -> Shaped[np.ndarray, "row"]:
    return as_numpy(checked_tensor(labels, name, ROW_LABELS))


# ---- the nearest rows ----


def nearest_rows(
    x: Shaped[Tensor, "row dim"],
    k: int,
    queries: Int[Tensor, "query"] | None = None,
    *,
    device: str | None = None,
) -> Int[Tensor, "query {k}"]:
    """Return the ``k`` nearest other rows (Euclidean distance), in the order of the rows, on the CPU.

    Candidates are found from matrix products in float32, with a bound on their rounding. If they are more than ``k``,
    the nearest of them are found by subtraction in float64. Of rows equally near, the first count. So the result does
    not depend on blocks, threads or precision.

    Memory: the rows on the device in their own dtype and in float32, and blocks of 4 million products (128 million on a
    GPU). Cost: ``queries n d``. Rows with ``k`` or more equal others are free.

    Args:
        x: rows, in any dtype.
        k: neighbours, fewer than there are rows.
        queries: places of the rows whose neighbours are found. All if not given.
        device: where to multiply. The CPU if not given.

    Raises:
        InputError: for too few rows for ``k``, and rows that are not finite.

    Example:
        >>> nearest_rows(torch.tensor([[0.0], [1.0], [10.0], [2.0]]), 2).tolist()
        [[1, 3], [0, 3], [1, 3], [0, 1]]
    """
    x = checked_tensor(x, "x", ROW_MATRIX).detach()
    n = len(x)
    if not 1 <= k < n:
        raise InputError(f"k is {k} for {n} examples; expected 1 to {n - 1}")
    queries = torch.arange(n) if queries is None else queries.cpu()
    alike = first_at_distance_zero(x)
    order = torch.argsort(alike, stable=True)  # equal examples are next to each other, by their place
    counts = torch.bincount(alike, minlength=n)
    starts = counts.cumsum(0) - counts
    place = torch.empty(n, dtype=torch.int64)
    place[order] = torch.arange(n)
    neighbours = torch.empty(len(queries), k, dtype=torch.int64)
    group = alike[queries]
    is_many = counts[group] > k
    # The first k equal others: of the first k + 1, without itself or without the last.
    first = order[starts[group[is_many]][:, None] + torch.arange(k + 1)]
    is_left_out = first == queries[is_many, None]
    is_left_out[:, -1] |= ~is_left_out.any(1)
    neighbours[is_many] = first[~is_left_out].view(-1, k)
    if not bool(is_many.all()):
        columns = (place - starts[alike] <= k).nonzero()[:, 0]  # further equal rows cannot be neighbours
        neighbours[~is_many] = _Search(x, columns, k, device).nearest(queries[~is_many])
    return neighbours


def nearest_rows_of_other_units(
    x: Shaped[Tensor, "row dim"],
    k: int,
    units: Shaped[Tensor, "row"],
    queries: Int[Tensor, "query"] | None = None,
    *,
    device: str | None = None,
) -> Int[Tensor, "query {k}"]:
    """Return the ``k`` nearest rows of other units, in the order of the rows, on the CPU.

    Neighbours of one unit, such as prompts of one template, are near because of their unit. Of equal rows, the first
    count. Of others equally near, the first up to rounding in float64. Memory: the rows in float64 twice, and blocks of
    4 million distances (128 million on a GPU).

    Args:
        x: rows, in any dtype.
        k: neighbours, at most as many as there are rows of other units.
        units: unit of each row.
        queries: places of the rows whose neighbours are found. All if not given.
        device: where to multiply, and the CPU for MPS. The CPU if not given.

    Raises:
        InputError: for too few rows of other units for ``k``, and rows that are not finite.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [2.0]])
        >>> nearest_rows_of_other_units(x, 1, torch.tensor([0, 0, 1, 1])).tolist()
        [[3], [3], [1], [1]]
    """
    queries = torch.arange(len(x)) if queries is None else queries.cpu()
    member = torch.unique(units.cpu(), return_inverse=True)[1]
    n_others = len(x) - int(member.bincount().max())
    if k > n_others:
        raise InputError(f"k is {k}, but the largest unit leaves {n_others} examples of others; give a lower k")
    x = checked_tensor(x, "x", ROW_MATRIX)
    home = float64_device(device or "cpu")
    middle, scale = centre_for_distances(x)
    rows = (in_float64(x).to(home) - middle.to(home)) * scale
    firsts, row_of = torch.unique(first_at_distance_zero(x), return_inverse=True)  # equal rows get one distance
    distinct = rows[firsts.to(home)]
    row_of = row_of.to(home)
    at_once = PRODUCTS_AT_ONCE_CPU if rows.device.type == "cpu" else _PRODUCTS_AT_ONCE_GPU
    neighbours = torch.empty(len(queries), k, dtype=torch.int64)
    for places in torch.split(torch.arange(len(queries)), max(64, at_once // len(x))):
        asked = rows[queries[places].to(home)]
        norms = asked.square().sum(1)[:, None] + distinct.square().sum(1)
        squared = (norms - 2 * asked @ distinct.T).clamp_(min=0)
        i, j = (squared < _NEAR * norms).nonzero().T
        squared[i, j] = squared_differences(torch.cat([asked, distinct]), i, j + len(asked))
        is_own_unit = (member[queries[places], None] == member).to(home)
        distance = squared[:, row_of].masked_fill_(is_own_unit, torch.inf)
        neighbours[places] = distance.sort(dim=1, stable=True).indices[:, :k].sort(dim=1).values.cpu()
    return neighbours


class _Search:
    """Search for neighbours among some rows, the columns, which include all queries.

    Args:
        x: all rows.
        columns: places of the rows that may be neighbours.
        k: neighbours.
        device: where to multiply. The CPU if not given.
    """

    def __init__(
        self, x: Shaped[Tensor, "row dim"], columns: Int[Tensor, "column"], k: int, device: str | None
    ) -> None:
        home = float64_device(device or "cpu")
        self.x = x.to(home)
        self.columns = columns.to(home)
        self.k = k
        self.middle, self.scale = centre_for_distances(self.x)
        self._prepare(torch.float32)

    def _prepare(self, dtype: torch.dtype) -> None:
        """Centre and scale the columns for products in ``dtype``."""
        self.dtype = dtype
        self.rows = torch.empty(len(self.columns), self.x.shape[1], dtype=dtype, device=self.x.device)
        self.norms = torch.empty(len(self.columns), dtype=torch.float64, device=self.x.device)
        step = max(1, NUMBERS_PREPARED_AT_ONCE // self.x.shape[1])
        for start in range(0, len(self.columns), step):
            part = slice(start, start + step)
            rows = in_float64(self.x[self.columns[part]]).sub_(self.middle).mul_(self.scale)
            self.rows[part] = rows
            self.norms[part] = rows.square_().sum(1)

    def nearest(self, queries: Int[Tensor, "query"]) -> Int[Tensor, "query k"]:
        """Return the nearest columns of each query, as places of rows, on the CPU."""
        at_once = PRODUCTS_AT_ONCE_CPU if self.x.device.type == "cpu" else _PRODUCTS_AT_ONCE_GPU
        size = max(64, at_once // len(self.columns))
        queries = queries.to(self.x.device)
        return torch.cat([self._block(queries[i : i + size]) for i in range(0, len(queries), size)])

    def _block(self, queries: Int[Tensor, "query"]) -> Int[Tensor, "query k"]:
        candidates = self._candidates(queries)
        if self.dtype == torch.float32 and len(candidates) > _MAX_CANDIDATES * self.k * len(queries):
            self._prepare(torch.float64)
            candidates = self._candidates(queries)
        counts = torch.bincount(candidates[:, 0], minlength=len(queries))
        has_more = (counts > self.k)[candidates[:, 0]]
        if bool(has_more.any()):
            near = torch.cat([candidates[~has_more], self._decided(queries, candidates[has_more])])
            candidates = near[torch.argsort(near[:, 0], stable=True)]
        return self.columns[candidates[:, 1]].view(-1, self.k).cpu()

    def _decided(self, queries: Int[Tensor, "query"], candidates: Int[Tensor, "pair 2"]) -> Int[Tensor, "near 2"]:
        """Return the pairs of each query and its nearest ``k`` candidates, in their order."""
        distance = squared_differences(self.x, queries[candidates[:, 0]], self.columns[candidates[:, 1]], self.scale)
        order = torch.argsort(distance, stable=True)  # ties keep the order of columns
        order = order[torch.argsort(candidates[order, 0], stable=True)]
        counts = torch.bincount(candidates[:, 0])
        counts = counts[counts > 0]
        starts = counts.cumsum(0) - counts
        kept = order[starts[:, None] + torch.arange(self.k, device=order.device)]
        return candidates[kept.sort().values.flatten()]

    def _candidates(self, queries: Int[Tensor, "query"]) -> Int[Tensor, "pair 2"]:
        """Return pairs of queries and columns such that no other column can be among a query's nearest."""
        itself = torch.searchsorted(self.columns, queries)
        dim = self.rows.shape[1]
        # Half of |b|^2 - 2 a b, and the most that it can be off by (Higham 2002, section 3.1).
        u = torch.finfo(self.dtype).eps / 2
        length = self.norms.sqrt()
        longest = self.norms[itself].max().sqrt()
        slack = 1.01 * (dim + 8) * u * length * longest + 8 * u * self.norms + dim * 2.0**-120
        with full_float32_products():
            low = torch.addmm((self.norms / 2 - slack).to(self.dtype), self.rows[itself], self.rows.T, alpha=-1)
        low[torch.arange(len(queries), device=itself.device), itself] = torch.inf
        top = low.topk(self.k, largest=False)
        high = (top.values + 2.01 * slack.to(self.dtype)[top.indices]).amax(1)
        return (low <= high[:, None]).nonzero()
