"""How often ``HeadRoles`` calls a role in untrained models."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mechclust.models import ModelConfig, build_model
from probes import HeadRoles, run
from tasks import Batch, RepeatedTokens

N_SYMBOLS = 50
LENGTH = 32
N_EXAMPLES = 16
N_MODELS = 200  # at least; each has 8 heads, and 56 pairs of a head and a role
REPEATED = RepeatedTokens(N_SYMBOLS, LENGTH, periods=(6, 12), n_test=N_EXAMPLES)


class Case(NamedTuple):
    """Standard deviation of the initial weights, whether tokens repeat, and relabellings of the probe."""

    init_std: float
    repeated: bool
    n_permutations: int | None = None


CASES = {
    "weights .02, repeated tokens": Case(0.02, repeated=True),
    "weights .02, words by Zipf's law": Case(0.02, repeated=False),
    "weights .1, repeated tokens": Case(0.1, repeated=True),
    "weights .1, words by Zipf's law": Case(0.1, repeated=False),
    "weights .3, repeated tokens": Case(0.3, repeated=True),
    "weights .3, words by Zipf's law": Case(0.3, repeated=False),
    "weights .3, repeated tokens, by interval alone": Case(0.3, repeated=True, n_permutations=0),
}


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Return how many pairs of a head and a role are called in untrained models, and how many pairs there are."""
    init_std, repeated, n_permutations = CASES[case]
    calls = 0
    pairs = 0
    for number in range(max(draws, N_MODELS)):
        model_seed = seed * 1_003 + number
        shape = {"n_ctx": LENGTH, "n_layers": 2, "d_model": 32, "n_heads": 4}
        model = build_model(ModelConfig(d_vocab=N_SYMBOLS, init_std=init_std, seed=model_seed, **shape))
        batch = next(REPEATED.batches("test")) if repeated else Batch(words_by_zipf(model_seed))
        called = run(model, batch, HeadRoles(n_permutations=n_permutations))["called"]
        calls += int(called.sum())
        pairs += called.numel()
    return calls, pairs


def words_by_zipf(seed: int) -> Tensor:
    """Return sequences of independent words, the r-th of which has a share proportional to ``1 / r``."""
    draw = torch.Generator().manual_seed(seed)
    share = 1 / torch.arange(1, N_SYMBOLS + 1)
    return torch.multinomial(share.expand(N_EXAMPLES, -1), LENGTH, replacement=True, generator=draw)
