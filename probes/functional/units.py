"""Random pairings of examples that are not independent, such as prompts of one template.

A *unit* is a group of examples that belong together. Examples of different units are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from tasks import InputError

FEWEST_ARRANGEMENTS = 20  # relabellings or pairings: with fewer, the smallest p-value exceeds .05


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


def n_unit_pairings(n: int, units: Shaped[Tensor, "example"] | None = None) -> float:
    """Return the number of different orders that ``unit_pairings`` draws from, as a float that may be infinite.

    Example:
        >>> n_unit_pairings(4), n_unit_pairings(4, torch.tensor([3, 3, 7, 7]))
        (24.0, 2.0)
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
