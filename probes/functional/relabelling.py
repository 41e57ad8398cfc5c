"""Permutation tests for clusters by a label, against random relabellings of the points."""

from __future__ import annotations

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, Labels, computed_in_torch
from probes.functional.holm import holm
from probes.functional.permutation_test import permutation_p_value
from probes.functional.preprocess import centred_rows
from probes.functional.units import Relabelling
from tasks.errors import check_count

FEWEST_RELABELLINGS = 999
_RELABELLINGS_PER_TEST = 40  # Holm's smallest adjusted p-value is then 1 / 40
_MAX_NUMBERS_AT_ONCE = 2**22


def enough_permutations(tests: int) -> int:
    """Return the relabellings with which Holm's correction over so many tests can still find one: at least 999.

    The smallest p-value is ``1 / (permutations + 1)``. Times ``tests`` it is at most 1/40.

    Example:
        >>> enough_permutations(4), enough_permutations(270)
        (999, 10799)
    """
    return max(FEWEST_RELABELLINGS, _RELABELLINGS_PER_TEST * tests - 1)


@computed_in_torch()
def relabelling_p_values(
    points: Float[Array, "row head dim"],
    labels: Labels,
    permutations: int = FEWEST_RELABELLINGS,
    *,
    strata: Labels | None = None,
    units: Labels | None = None,
    seed: int = 0,
) -> Float[Array, "head"]:
    """Return, for each head, the share of relabellings whose within-ratio is at most the given labels'.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    The p-value of a permutation test, ``(1 + relabellings as good) / (1 + permutations)``, with ``within_ratio`` as the
    statistic. Exact for any points, as the given labels are one of the equally likely relabellings. All heads share the
    relabellings.

    Time: ``permutations x classes x n x heads x d`` multiplications. Memory: 4 million numbers at once, or one
    relabelling's ``classes x max(n, heads x d)``, and ``permutations x heads``.

    Args:
        points: float32 or float64.
        labels: the class of each point, any integers.
        permutations: number of relabellings.
        strata: labels change places only between points of one stratum.
        units: points that belong together and are not independent. Whole units exchange labels if each has one class.
            Otherwise points exchange them within their unit.
        seed: for the relabellings.

    Returns:
        float64. NaN if the within-ratio is undefined (all points equal, or one class), or if there are fewer than 20
        different relabellings.

    Raises:
        InputError: for no relabellings, or labels or strata of another length than the points.

    Example:
        >>> labels = torch.arange(40) % 2
        >>> clusters = torch.stack([labels * 1.0, torch.arange(40) * 1.0], dim=1)[..., None]  # two heads
        >>> [round(p, 3) for p in relabelling_p_values(clusters, labels).tolist()]
        [0.001, 0.788]
    """
    observed, null = between_shares(points, labels, permutations, strata=strata, units=units, seed=seed)
    if not relabelling_of(labels, strata, units).enough(named=False):
        return torch.full_like(observed, torch.nan)
    return permutation_p_value(observed, null)


def between_shares(
    points: Float[Tensor, "row head dim"],
    labels: Shaped[Tensor, "row"],
    permutations: int,
    *,
    strata: Shaped[Tensor, "row"] | None = None,
    units: Shaped[Tensor, "row"] | None = None,
    seed: int = 0,
) -> tuple[Float[Tensor, "head"], Float[Tensor, "draw head"]]:
    """Return the share of the sum of squares between classes, one minus the within-ratio: as labelled, and relabelled.

    Arguments, errors and cost are as in ``relabelling_p_values``. All heads share the relabellings, so
    ``null.max(dim=1)`` is the largest share over heads when labels have no meaning.

    Returns:
        Float64. NaN if the within-ratio is undefined.
    """
    check_count(permutations=(permutations, 1), seed=(seed, 0))
    n_heads, dim = points.shape[1:]
    x = centred_rows(points)
    total = x.square().sum(dim=(0, 2))
    relabelling = relabelling_of(labels, strata, units)
    classes, class_of_item = torch.unique(torch.from_numpy(relabelling.classes).to(x.device), return_inverse=True)
    if len(classes) < 2:
        return torch.full_like(total, torch.nan), total.new_full((permutations, n_heads), torch.nan)
    n_items = len(class_of_item)
    member = torch.from_numpy(relabelling.member).to(x.device)
    sums = (x / torch.where(total > 0, total, 1).sqrt()[:, None]).flatten(1)
    sums = x.new_zeros(n_items, n_heads * dim).index_add_(0, member, sums)  # [item (head dim)]
    sizes = member.bincount().double()
    one_hot = torch.nn.functional.one_hot(class_of_item).T.double()  # [class item]
    as_labelled = torch.arange(n_items, device=x.device)[None]
    observed = _between(one_hot[:, as_labelled], sums, sizes, n_heads)[0]
    draw = torch.Generator().manual_seed(int(seed))
    exchanged = torch.from_numpy(relabelling.strata) if relabelling.stratified else None
    at_once = max(1, _MAX_NUMBERS_AT_ONCE // (len(classes) * max(n_items, n_heads * dim)))
    null = []
    for start in range(0, permutations, at_once):
        orders = _orders(min(at_once, permutations - start), n_items, exchanged, draw).to(x.device)
        null.append(_between(one_hot[:, orders], sums, sizes, n_heads))
    return torch.where(total > 0, observed, torch.nan), torch.where(total > 0, torch.cat(null), torch.nan)


def _between(
    one_hot: Float[Tensor, "class draw item"],
    sums: Float[Tensor, "item head_dim"],
    sizes: Float[Tensor, "item"],
    n_heads: int,
) -> Float[Tensor, "draw head"]:
    """Return the share of the sum of squares between classes, of items with so many points and these sums of points."""
    means = (one_hot / (one_hot @ sizes).sqrt()[..., None]) @ sums  # each times the root of its class's size
    return reduce(means.square().sum(dim=0), "draw (head dim) -> draw head", "sum", head=n_heads)


def relabelling_of(
    labels: Shaped[Tensor, "row"],
    strata: Shaped[Tensor, "row"] | None = None,
    units: Shaped[Tensor, "row"] | None = None,
) -> Relabelling:
    """Return how labels are shuffled within strata, or between or within units."""
    return Relabelling.from_classes(
        _numbered(labels),
        units=None if units is None else _numbered(units),
        strata=None if strata is None else _numbered(strata),
    )


def _numbered(labels: Shaped[Tensor, "row"]) -> Int[np.ndarray, "row"]:
    return torch.unique(labels.cpu(), return_inverse=True)[1].numpy()


def relabelled_heads(
    points: Float[Tensor, "row head dim"],
    labels: Shaped[Tensor, "row"],
    permutations: int,
    units: Shaped[Tensor, "row"] | None = None,
) -> dict[str, Float[Tensor, "*head"]]:
    """Return ``relabelling_p_values``, and the p-value of the best head against the best head of every relabelling.

    Returns:
        ``p_value`` of each head, NaN as in ``relabelling_p_values``. Scalars: ``best_within_ratio``, the smallest,
            ``best_within_ratio_null_low`` and ``best_within_ratio_null_high``, the central 95% of the smallest under
            relabelling, and ``best_p_value``.
    """
    observed, null = between_shares(points, labels, permutations, units=units)
    best = torch.nan_to_num(observed, nan=0.0).max()
    best_null = torch.nan_to_num(null, nan=0.0).amax(dim=1)
    low, high = torch.quantile(1 - best_null, torch.tensor([0.025, 0.975], dtype=best_null.dtype))
    measures = {
        "p_value": permutation_p_value(observed, null),
        "best_within_ratio": 1 - best,
        "best_within_ratio_null_low": low,
        "best_within_ratio_null_high": high,
        "best_p_value": permutation_p_value(best, best_null),
    }
    undefined = [name for name in measures if name != "p_value"] if bool(observed.isnan().all()) else []
    if not relabelling_of(labels, units=units).enough(named=False):
        undefined += ["p_value", "best_p_value"]
    return measures | {name: torch.full_like(measures[name], torch.nan) for name in undefined}


def _orders(draws: int, n: int, strata: Int[Tensor, "item"] | None, draw: torch.Generator) -> Int[Tensor, "draw item"]:
    """Return random orders of ``n`` items, each within strata."""
    if strata is None:
        return torch.stack([torch.randperm(n, generator=draw) for _ in range(draws)])
    stratum = torch.unique(strata.cpu(), return_inverse=True)[1]
    places = torch.argsort(stratum, stable=True)
    orders = torch.empty(draws, n, dtype=torch.int64)
    keys = torch.rand(draws, n, dtype=torch.float64, generator=draw)  # keys below 1 keep strata apart
    orders[:, places] = torch.argsort(stratum + keys, dim=1)
    return orders


def holm_over_heads(p_values: Float[Tensor, "site head *label"]) -> Float[Tensor, "site head *label"]:
    """Return Holm's p-values over all heads, for each label. A NaN counts as a test with p = 1 and stays NaN.

    Example:
        >>> holm_over_heads(torch.tensor([[0.001, torch.nan], [0.5, 0.02]], dtype=torch.float64))
        tensor([[0.0040,    nan],
                [1.0000, 0.0600]], dtype=torch.float64)
    """
    heads = torch.nan_to_num(p_values, nan=1.0).reshape(p_values.shape[0] * p_values.shape[1], -1)
    adjusted = torch.tensor([holm(p) for p in heads.T.tolist()], dtype=torch.float64).reshape(heads.T.shape).T
    return torch.where(p_values.isnan(), torch.nan, adjusted.reshape(p_values.shape))
