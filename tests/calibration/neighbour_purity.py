"""How often the interval of ``NeighbourPurity`` excludes chance where labels have nothing to do with the states."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from probes.functional.neighbour_purity import nearest_rows, neighbour_purity_chance, purity_interval


class Case(NamedTuple):
    """Sizes of the classes, dimensions of the states, and neighbours."""

    sizes: tuple[int, ...]
    d: int
    k: int


CASES: dict[str, Case] = {
    f"n {n}, {len(shares)} classes, {'equal' if max(shares) == min(shares) else 'unequal'}, d {d}": Case(
        tuple(n * share // 20 for share in shares), d, 5 if n == 40 else 10
    )
    for n in (40, 100, 300)
    for shares in ((10, 10), (2, 18), (4,) * 5, (12, 2, 2, 2, 2), (2,) * 10, (11, *[1] * 9))
    for d in (4, 50)
}


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Draw states and labels independently, and count the intervals that exclude chance."""
    sizes, d, k = CASES[case]
    draw = np.random.default_rng([seed, *case.encode()])
    labels = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
    chance = neighbour_purity_chance(labels)
    called = 0
    for _ in range(draws):
        near = nearest_rows(torch.from_numpy(draw.standard_normal((len(labels), d))), k)
        low, high = purity_interval(near, labels[draw.permutation(len(labels))])
        called += not low <= chance <= high
    return called, draws
