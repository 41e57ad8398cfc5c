"""How often random weights match a planar lattice as well as ``planar_match`` asks: it is no test, and has no p-value.

The p-value that ``ClusteringHead`` had took all weights to be equally large. Where those off the support are small, it
called random weights in 44% to 80% of draws, and weights on a line with noise across in 65% and more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from probes.clustering_head import INTEGER_DEVIATION
from probes.functional.planar_lattice import planar_lattice


class Case(NamedTuple):
    """Digits, how many of them count, the modulus, and the size of the weights of the others."""

    length: int
    n_support: int
    modulus: int
    off: float


CASES: dict[str, Case] = {
    f"{length} digits, p = {p}, {name}": Case(length, n_support, p, off)
    for length, n_support, p in ((12, 5, 2), (8, 3, 2), (6, 3, 3))
    for name, off in (("spread", 1.0), ("small", 0.03))
}


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Draw weights at random, and count how often they match with a deviation below the threshold."""
    length, n_support, modulus, off = CASES[case]
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(modulus, (20 * length * modulus, length), generator=draw)
    one_hot = torch.nn.functional.one_hot(tokens, modulus)[..., 1:].double()
    called = 0
    for _ in range(draws):
        weights = torch.randn(length, modulus - 1, 2, dtype=torch.float64, generator=draw)
        weights[n_support:] *= off
        fit = planar_lattice(torch.einsum("npv,pvd->nd", one_hot, weights), tokens, range(n_support), modulus)
        called += bool(fit.matches) and float(fit.deviation) < INTEGER_DEVIATION
    return called, draws
