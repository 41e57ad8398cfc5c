"""Random relabellings of examples: which are equally likely, and permutation tests of clusters by a label."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probes.functional.arrays import Array, Labels, computed_in_torch
from probes.functional.permutation_test import FEWEST_RELABELLINGS, permutation_p_value
from probes.functional.preprocess import centred_rows
from probes.functional.strata import in_single_class_stratum, log_shuffles_in_strata, single_class_strata, strata_of
from probes.functional.units import FEWEST_ARRANGEMENTS, units_needed
from tasks.settings import check_count

_MAX_NUMBERS_AT_ONCE = 2**22
_UNEQUAL_UNITS = 1.5  # ratio of mean sizes from which on p-values may be too small


@dataclass(frozen=True)
class Relabelling:
    """The permutations of labels that are equally likely if labels and hidden states are unrelated.

    Without units, any two examples of one stratum may exchange their labels. Examples of one unit are not independent.
    With units, units of one class exchange their labels as a whole. The examples of a unit with several classes
    exchange labels within the unit.

    Attributes:
        classes: class of each permuted item: a unit, or an example.
        member: index of the item that each example belongs to.
        strata: stratum of each item. Labels are permuted within strata.
        whole_units: whether items are units.

    Example:
        >>> templates = Relabelling.from_classes(np.array([0, 0, 0, 1, 1, 1]), units=np.array([5, 5, 6, 7, 7, 8]))
        >>> templates.whole_units, templates.classes.tolist(), templates.member.tolist()
        (True, [0, 0, 1, 1], [0, 0, 1, 2, 2, 3])
    """

    classes: Int[np.ndarray, "item"]
    member: Int[np.ndarray, "example"]
    strata: Int[np.ndarray, "item"]
    whole_units: bool

    @classmethod
    def from_classes(
        cls,
        classes: Int[np.ndarray, "example"],
        units: Int[np.ndarray, "example"] | None = None,
        strata: Int[np.ndarray, "example"] | None = None,
    ) -> Relabelling:
        """Return the relabellings of ``classes`` within strata that respect units.

        If each unit lies in one stratum, whole units of a stratum exchange their labels, whatever their sizes. If any
        unit spans strata, units exchange labels only with units that have as many examples in each stratum.
        """
        n = len(classes)
        strata = np.zeros(n, dtype=np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]
        if units is None:
            return cls(classes, np.arange(n), strata, whole_units=False)
        unit = np.unique(units, return_inverse=True)[1]
        within_unit = strata_of({"strata": strata, "units": unit})
        assert within_unit is not None
        whole = in_single_class_stratum(unit, classes)
        if not whole.any():
            return cls(classes, np.arange(n), within_unit, whole_units=False)
        stratum = within_unit + n  # numbered after the strata of whole units
        stratum[whole] = _unit_strata(unit[whole], strata[whole])
        item = np.where(whole, unit, n + np.arange(n))
        first, member = np.unique(item, return_index=True, return_inverse=True)[1:]
        return cls(classes[first], member, stratum[first], whole_units=True)

    @property
    def stratified(self) -> bool:
        """Return whether there is more than one stratum."""
        return len(np.unique(self.strata)) > 1

    @property
    def fixed_share(self) -> float:
        """Return the share of items in strata with one class, whose label no permutation changes."""
        return single_class_strata(self.strata, self.classes)

    def n_distinct(self, *, named: bool) -> float:
        """Return the number of different relabellings, as a float that may be infinite.

        Args:
            named: whether a measure tells the classes by name. For the adjusted Rand index, which does not,
                relabellings that exchange the names of two classes are one.
        """
        log = log_shuffles_in_strata(self.strata, self.classes)
        if not named:
            log -= sum(math.lgamma(k + 1) for k in self._interchangeable_classes())
        return math.exp(log) if log < 700 else math.inf

    def _interchangeable_classes(self) -> list[int]:
        """Return the sizes of the groups of classes that have as many items in every stratum."""
        columns = np.unique(self.strata, return_inverse=True)[1]
        n_strata = int(columns.max()) + 1
        strata_by_class = [columns[self.classes == name] for name in np.unique(self.classes)]
        table = np.stack([np.bincount(strata, minlength=n_strata) for strata in strata_by_class])  # [class stratum]
        return np.unique(table, axis=0, return_counts=True)[1].tolist()

    def enough(self, *, named: bool) -> bool:
        """Return whether a p-value of .05 is possible."""
        return self.n_distinct(named=named) >= FEWEST_ARRANGEMENTS - 1e-6

    def draw(self, rng: np.random.Generator) -> Int[np.ndarray, "example"]:
        """Return the class of each example after a random relabelling."""
        order = np.argsort(self.strata, kind="stable")
        shuffled = np.empty_like(self.classes)
        shuffled[order] = self.classes[np.lexsort((rng.random(len(self.classes)), self.strata))]
        return shuffled[self.member]

    def unequal_units(self, label: str, units: str) -> str:
        """Return a caveat if the units of one class are larger than those of another, or ``""``.

        Relabelled classes then have other sizes than the observed ones, on which accuracies and purities depend.
        """
        if not self.whole_units:
            return ""
        is_unit = self.strata < len(self.member)  # not an example of a unit with several classes
        sizes = np.bincount(self.member)[is_unit]
        classes = self.classes[is_unit]
        means = [sizes[classes == name].mean() for name in np.unique(classes)]
        ratio = max(means) / min(means)
        if ratio <= _UNEQUAL_UNITS:
            return ""
        return (
            f"the units ({units!r}) of one class of {label!r} are {ratio:.1f} times as large as those of another, so "
            "p-values are too small; give each class units of about equal size"
        )

    def too_few(self, label: str, *, named: bool, units: str | None = None) -> str:
        """Return why no p-value can be given, with the way out, or ``""`` if there are enough relabellings."""
        if self.enough(named=named):
            return ""
        count = round(self.n_distinct(named=named))
        ways = "way" if count == 1 else "ways"
        n_classes = len(np.unique(self.classes))
        if n_classes < 2:
            return f"label {label!r} has one class, so no relabelling changes it"
        needed = "more" if self.stratified else units_needed(n_classes, named=named)
        what = f"units ({units!r})" if self.whole_units else "examples"
        return (
            f"label {label!r} can be relabelled in only {count} {ways}, too few for a p-value, which is NaN; "
            f"give {needed} {what} in each of {n_classes} classes"
        )


def _unit_strata(member: Int[np.ndarray, "example"], strata: Int[np.ndarray, "example"]) -> Int[np.ndarray, "example"]:
    """Return, for each example, the stratum within which its unit may exchange its label."""
    member = np.unique(member, return_inverse=True)[1]
    if single_class_strata(member, strata) == 1:
        return strata
    by_unit = np.split(strata[np.lexsort((strata, member))], np.cumsum(np.bincount(member))[:-1])
    numbers: dict[tuple[int, ...], int] = {}
    number_of_unit = np.array([numbers.setdefault(tuple(values.tolist()), len(numbers)) for values in by_unit])
    return number_of_unit[member]


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
        units: points that belong together and are not independent. Units of one class exchange labels as a
            whole. Points of a unit with several classes exchange labels within the unit.
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
    observed, null = relabelled_shares(points, labels, permutations, strata=strata, units=units, seed=seed)
    if not relabelling_of(labels, strata, units).enough(named=False):
        return torch.full_like(observed, torch.nan)
    return permutation_p_value(observed, null)


def relabelled_shares(
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


def relabelling_measures(
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
    observed, null = relabelled_shares(points, labels, permutations, units=units)
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
