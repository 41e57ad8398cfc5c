"""How often a most similar layer is named where there is none."""

from __future__ import annotations

import torch
from torch import Tensor

from probes.functional.best_pair import LEVEL, BestPairs, best_pairs

N, D, LAYERS = 30, 6, 3
CASES = ("independent", "heavy tails", "equally similar")
"""Unrelated models, with Gaussian rows and with rows of three degrees of freedom: a false call is a p-value of at most
.05 for any layer. Layers that are all equally similar to each tuned layer: one that is said to be elsewhere."""


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Return in how many of the draws something was called, family-wise over the tuned layers, and the draws."""
    calls = 0
    for i in range(draws):
        found = _drawn(case, torch.Generator().manual_seed(seed * 1_000_003 + i), i)
        called = found.elsewhere if case == "equally similar" else found.adjusted <= LEVEL
        calls += bool(called.any())
    return calls, draws


def _drawn(case: str, draw: torch.Generator, seed: int) -> BestPairs:
    tuned = [_rows(draw, case) for _ in range(LAYERS)]
    base = [_rows(draw, case) for _ in range(LAYERS)]
    if case == "equally similar":
        common = _rows(draw, case)
        tuned, base = ([common + 0.5 * rows for rows in side] for side in (tuned, base))
    return best_pairs(tuned, base, range(LAYERS), n_resamples=40, seed=seed)


def _rows(draw: torch.Generator, case: str) -> Tensor:
    rows = torch.randn(N, D, generator=draw, dtype=torch.float64)
    if case != "heavy tails":
        return rows
    return rows / torch.randn(N, 3, generator=draw, dtype=torch.float64).square().mean(dim=1, keepdim=True).sqrt()
