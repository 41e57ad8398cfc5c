"""Permutation tests and half-samples of examples that are not independent, such as prompts of one template.

A *unit* is a group of examples that belong together. Examples of different units are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from probes.functional.strata import log_shuffles, single_class, strata_of
from tasks import InputError

FEWEST_ARRANGEMENTS = 20  # relabellings or pairings: with fewer, the smallest p-value exceeds .05


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
        strata = np.zeros(n, dtype=np.int64) if strata is None else strata
        if units is None:
            return cls(classes, np.arange(n), strata, whole_units=False)
        unit = np.unique(units, return_inverse=True)[1]
        within_unit = strata_of({"strata": strata, "units": unit})
        assert within_unit is not None
        whole = _one_class(unit, classes)
        if not whole.any():
            return cls(classes, np.arange(n), within_unit, whole_units=False)
        stratum = within_unit + n  # numbered after the classes of whole units
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
        return single_class(self.strata, self.classes)

    def n_distinct(self, *, named: bool) -> float:
        """Return the number of different relabellings, as a float that may be infinite.

        Args:
            named: whether a measure tells the classes by name. For the adjusted Rand index, which does not,
                relabellings that exchange the names of two classes are one.
        """
        log = log_shuffles(self.strata, self.classes)
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


def _one_class(unit: Int[np.ndarray, "example"], classes: Int[np.ndarray, "example"]) -> Bool[np.ndarray, "example"]:
    """Return, for each example, whether all examples of its unit have its class."""
    pairs = np.unique(np.stack([unit, classes]), axis=1)
    return np.bincount(pairs[0])[unit] == 1


def _unit_strata(member: Int[np.ndarray, "example"], strata: Int[np.ndarray, "example"]) -> Int[np.ndarray, "example"]:
    """Return, for each example, the stratum within which its unit may exchange its label."""
    member = np.unique(member, return_inverse=True)[1]
    if single_class(member, strata) == 1:
        return strata
    by_unit = np.split(strata[np.lexsort((strata, member))], np.cumsum(np.bincount(member))[:-1])
    numbers: dict[tuple[int, ...], int] = {}
    number_of_unit = np.array([numbers.setdefault(tuple(values.tolist()), len(numbers)) for values in by_unit])
    return number_of_unit[member]


def units_needed(n_classes: int, *, named: bool) -> int:
    """Return how many units each of at least 2 classes needs for the smallest p-value to be at most .05.

    With ``k`` units in each of ``c`` classes there are ``(c k)! / (k!)^c`` relabellings, and ``c!`` times fewer for a
    measure that ignores the names of classes.

    Example:
        >>> units_needed(2, named=False), units_needed(2, named=True), units_needed(6, named=False)
        (4, 3, 2)
    """
    if n_classes < 2:
        raise ValueError(f"n_classes is {n_classes}; expected at least 2")
    k = 1
    while _log_relabellings(n_classes, k, named) < math.log(FEWEST_ARRANGEMENTS) - 1e-9:
        k += 1
    return k


def _log_relabellings(n_classes: int, k: int, named: bool) -> float:
    log = math.lgamma(n_classes * k + 1) - n_classes * math.lgamma(k + 1)
    return log if named else log - math.lgamma(n_classes + 1)


def unit_pairings(
    n: int, times: int, seed: int, units: Shaped[Tensor, "example"] | None = None
) -> Iterator[Int[Tensor, "example"]]:
    """Yield random orders of ``n`` examples that keep units together: a unit changes places with one of its size.

    Example:
        >>> [order.tolist() for order in unit_pairings(4, 2, 0, torch.tensor([3, 3, 7, 7]))]
        [[0, 1, 2, 3], [2, 3, 0, 1]]
    """
    generator = torch.Generator().manual_seed(seed)
    if units is None:
        for _ in range(times):
            yield torch.randperm(n, generator=generator)
        return
    groups = list(_units_by_size(units).values())
    for _ in range(times):
        order = torch.arange(n)
        for members in groups:  # [unit example]
            order[members.flatten()] = members[torch.randperm(len(members), generator=generator)].flatten()
        yield order


def n_pairings(n: int, units: Shaped[Tensor, "example"] | None = None) -> float:
    """Return the number of different orders that ``unit_pairings`` draws from, as a float that may be infinite.

    Example:
        >>> n_pairings(4), n_pairings(4, torch.tensor([3, 3, 7, 7])), n_pairings(4, torch.tensor([3, 3, 3, 7]))
        (24.0, 2.0, 1.0)
    """
    n_exchangeable = [n] if units is None else [len(members) for members in _units_by_size(units).values()]
    log = sum(math.lgamma(k + 1) for k in n_exchangeable)
    return float(round(math.exp(log))) if log < 30 else math.inf


def _units_by_size(units: Shaped[Tensor, "example"]) -> dict[int, Int[Tensor, "_ _"]]:
    """Return, for each size of units, the indices of the examples of each unit of that size."""
    member, counts = torch.unique(units.cpu(), return_inverse=True, return_counts=True)[1:]
    indices = torch.split(torch.argsort(member, stable=True), counts.tolist())
    sizes = sorted(set(counts.tolist()))
    return {size: torch.stack([of_unit for of_unit in indices if len(of_unit) == size]) for size in sizes}


def half_samples(
    n: int, times: int, seed: int, units: Shaped[Tensor, "example"] | None = None
) -> Iterator[Int[Tensor, "half"]]:
    """Yield random halves of ``n`` examples, or all examples of random halves of their units, rounded down.

    Example:
        >>> [half.tolist() for half in half_samples(5, 2, 0, torch.tensor([3, 7, 3, 7, 7]))]
        [[0, 2], [1, 3, 4]]
    """
    generator = torch.Generator().manual_seed(seed)
    if units is None:
        for _ in range(times):
            yield torch.randperm(n, generator=generator)[: n // 2]
        return
    member = torch.unique(units.cpu(), return_inverse=True)[1]
    n_units = int(member.max()) + 1
    for _ in range(times):
        chosen = torch.zeros(n_units, dtype=torch.bool)
        chosen[torch.randperm(n_units, generator=generator)[: n_units // 2]] = True
        yield chosen[member].nonzero()[:, 0]


def check_units(units: str | None, resampling: Mapping[str, object]) -> None:
    """Refuse units if no shuffling or resampling is on.

    Args:
        units: name of the label, if any.
        resampling: whether each kind of shuffling or resampling is on, or how often it is done, by setting.

    Raises:
        InputError: naming the settings.
    """
    if units is not None and not any(resampling.values()):
        raise InputError(
            f"units is {units!r}, but nothing is shuffled or resampled; set {' or '.join(resampling)} above 0, or "
            "leave out units"
        )
