"""Examples that belong together: how their labels may be shuffled, and how they may be paired anew."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from probes.strata import log_shuffles, single_class, strata_of
from tasks import InputError

FEWEST = 20  # relabellings or pairings: with fewer, no p-value is below .05


@dataclass(frozen=True)
class Relabelling:
    """The ways to hand out labels anew that are equally likely when a label means nothing.

    Without units, any two examples of one stratum may exchange their labels. If every unit has one class, whole units
    exchange them, because examples of a unit are not independent. If classes vary within units, examples exchange them
    within their unit.

    Attributes:
        classes: class of each unit, or of each example if examples exchange their labels.
        member: to which of these each example belongs.
        strata: of each of these; labels are exchanged within a stratum only.
        whole_units: whether whole units exchange their labels.

    Example:
        >>> templates = Relabelling.of(np.array([0, 0, 0, 1, 1, 1]), units=np.array([5, 5, 6, 7, 7, 8]))
        >>> templates.whole_units, templates.classes.tolist(), templates.member.tolist()
        (True, [0, 0, 1, 1], [0, 0, 1, 2, 2, 3])
    """

    classes: Int[np.ndarray, "units"]
    member: Int[np.ndarray, "n"]
    strata: Int[np.ndarray, "units"]
    whole_units: bool

    @classmethod
    def of(
        cls,
        classes: Int[np.ndarray, "n"],
        units: Int[np.ndarray, "n"] | None = None,
        strata: Int[np.ndarray, "n"] | None = None,
    ) -> Relabelling:
        """Return the relabellings of ``classes`` within strata that respect units.

        Whole units exchange their labels only with units of the same composition: as many examples of each stratum.
        """
        n = len(classes)
        strata = np.zeros(n, dtype=np.int64) if strata is None else strata
        if units is None:
            return cls(classes, np.arange(n), strata, whole_units=False)
        member = np.unique(units, return_inverse=True)[1]
        if single_class(member, classes) < 1:
            within_units = strata_of({"strata": strata, "units": member})
            assert within_units is not None
            return cls(classes, np.arange(n), within_units, whole_units=False)
        first = np.unique(member, return_index=True)[1]
        return cls(classes[first], member, _compositions(member, strata)[first], whole_units=True)

    @property
    def stratified(self) -> bool:
        """Whether there is more than one stratum."""
        return bool(self.strata.any())

    @property
    def fixed_share(self) -> float:
        """Share of what could be relabelled that is in strata with one class only, and so keeps its label."""
        return single_class(self.strata, self.classes)

    def n_distinct(self, *, named: bool) -> float:
        """Return the number of different relabellings, as a float that may be infinite.

        Args:
            named: whether a measure tells the classes by name. For the adjusted Rand index, which does not,
                relabellings that exchange the names of two classes are one.
        """
        log = log_shuffles(self.strata, self.classes)
        if not named and not self.stratified:
            counts = np.unique(self.classes, return_counts=True)[1]
            log -= sum(math.lgamma(k + 1) for k in np.unique(counts, return_counts=True)[1].tolist())
        return math.exp(log) if log < 700 else math.inf

    def draw(self, rng: np.random.Generator) -> Int[np.ndarray, "n"]:
        """Return the class of each example after a random relabelling."""
        order = np.argsort(self.strata, kind="stable")
        shuffled = np.empty_like(self.classes)
        shuffled[order] = self.classes[np.lexsort((rng.random(len(self.classes)), self.strata))]
        return shuffled[self.member]

    def too_few(self, label: str, *, named: bool, units: str | None = None) -> str:
        """Return why no p-value can be given, with the way out; empty if there are enough relabellings."""
        count = self.n_distinct(named=named)
        if count >= FEWEST - 1e-6:
            return ""
        n_classes = len(np.unique(self.classes))
        if n_classes < 2:
            return f"label {label!r} has one class, so no relabelling changes it"
        needed = "more" if self.stratified else units_needed(n_classes, named=named)
        what = f"units ({units!r})" if self.whole_units else "examples"
        return (
            f"label {label!r} can be relabelled in only {round(count)} ways, too few for a p-value, which is NaN; "
            f"give {needed} {what} in each of {n_classes} classes"
        )


def _compositions(member: Int[np.ndarray, "n"], strata: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """Return the kind of each example's unit: the stratum if units have one each, else how many examples of each."""
    if single_class(member, strata) == 1:
        return strata
    by_unit = np.split(strata[np.lexsort((strata, member))], np.cumsum(np.bincount(member))[:-1])
    kinds: dict[tuple[int, ...], int] = {}
    kind_of_unit = np.array([kinds.setdefault(tuple(values.tolist()), len(kinds)) for values in by_unit])
    return kind_of_unit[member]


def units_needed(n_classes: int, *, named: bool) -> int:
    """Return how many units each of at least 2 classes needs for a p-value below .05.

    With ``k`` units in each of ``c`` classes there are ``(c k)! / (k!)^c`` relabellings, and ``c!`` times fewer for a
    measure that does not tell the classes by name.

    Example:
        >>> units_needed(2, named=False), units_needed(2, named=True), units_needed(6, named=False)
        (4, 3, 2)
    """
    k = 1
    while _log_relabellings(n_classes, k, named) < math.log(FEWEST) - 1e-9:
        k += 1
    return k


def _log_relabellings(n_classes: int, k: int, named: bool) -> float:
    log = math.lgamma(n_classes * k + 1) - n_classes * math.lgamma(k + 1)
    return log if named else log - math.lgamma(n_classes + 1)


def pairings(n: int, times: int, seed: int, units: Shaped[Tensor, "n"] | None = None) -> Iterator[Int[Tensor, "n"]]:
    """Yield random orders of ``n`` examples that keep units together: a unit takes the place of one of the same size.

    Example:
        >>> [order.tolist() for order in pairings(4, 2, 0, torch.tensor([3, 3, 7, 7]))]
        [[0, 1, 2, 3], [2, 3, 0, 1]]
    """
    draw = torch.Generator().manual_seed(seed)
    if units is None:
        for _ in range(times):
            yield torch.randperm(n, generator=draw)
        return
    of_size = list(_units_by_size(units).values())
    for _ in range(times):
        order = torch.arange(n)
        for members in of_size:  # [units size]
            order[members.flatten()] = members[torch.randperm(len(members), generator=draw)].flatten()
        yield order


def n_pairings(n: int, units: Shaped[Tensor, "n"] | None = None) -> float:
    """Return the number of different orders that ``pairings`` draws from, as a float that may be infinite.

    Example:
        >>> n_pairings(4), n_pairings(4, torch.tensor([3, 3, 7, 7])), n_pairings(4, torch.tensor([3, 3, 3, 7]))
        (24.0, 2.0, 1.0)
    """
    sizes = [n] if units is None else [len(members) for members in _units_by_size(units).values()]
    log = sum(math.lgamma(size + 1) for size in sizes)
    return float(round(math.exp(log))) if log < 30 else math.inf


def _units_by_size(units: Shaped[Tensor, "n"]) -> dict[int, Int[Tensor, "units size"]]:
    """Return the places of the examples of all units of one size, a row per unit, by size."""
    member, counts = torch.unique(units.cpu(), return_inverse=True, return_counts=True)[1:]
    places = torch.split(torch.argsort(member, stable=True), counts.tolist())
    sizes = sorted(set(counts.tolist()))
    return {size: torch.stack([place for place in places if len(place) == size]) for size in sizes}


def half_samples(
    n: int, times: int, seed: int, units: Shaped[Tensor, "n"] | None = None
) -> Iterator[Int[Tensor, "half"]]:
    """Yield random halves of ``n`` examples, or the examples of random halves of their units.

    Example:
        >>> [half.tolist() for half in half_samples(5, 2, 0, torch.tensor([3, 7, 3, 7, 7]))]
        [[0, 2], [1, 3, 4]]
    """
    draw = torch.Generator().manual_seed(seed)
    if units is None:
        for _ in range(times):
            yield torch.randperm(n, generator=draw)[: n // 2]
        return
    member = torch.unique(units.cpu(), return_inverse=True)[1]
    n_units = int(member.max()) + 1
    for _ in range(times):
        chosen = torch.zeros(n_units, dtype=torch.bool)
        chosen[torch.randperm(n_units, generator=draw)[: n_units // 2]] = True
        yield chosen[member].nonzero()[:, 0]


def check_units(units: str | None, asked: Mapping[str, object]) -> None:
    """Refuse units where nothing is shuffled or resampled.

    Args:
        units: name of the label, if any.
        asked: settings of which one at least must be above 0, by name.

    Raises:
        InputError: naming the settings.
    """
    if units is not None and not any(asked.values()):
        raise InputError(
            f"units is {units!r}, but nothing is shuffled or resampled; set {' or '.join(asked)} above 0, or leave out "
            "units"
        )
