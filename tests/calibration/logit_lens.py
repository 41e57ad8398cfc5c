"""How often the interval of ``LogitLens`` lies above chance if answers do not depend on the prompts."""

from __future__ import annotations

import torch

from mechclust import ModelConfig, build_model
from probes import LogitLens, run
from tasks import Batch

CASES = {  # how often each of four answers occurs
    "50 prompts, answers equally common": (50, (1.0, 1.0, 1.0, 1.0)),
    "50 prompts, one answer in 7 of 10": (50, (7.0, 1.0, 1.0, 1.0)),
    "300 prompts, answers equally common": (300, (1.0, 1.0, 1.0, 1.0)),
}


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Draw prompts and answers independently, and count intervals above chance at the last layer (one-sided, 2.5%)."""
    n, shares = CASES[case]
    model = build_model(ModelConfig(d_vocab=4, n_ctx=5, n_layers=2, d_model=16, n_heads=2, init_std=0.3))
    calls = 0
    for i in range(draws):
        draw = torch.Generator().manual_seed(seed * 1_000_003 + i)
        tokens = torch.randint(0, 4, (n, 5), generator=draw)
        answers = torch.multinomial(torch.tensor(shares), n, replacement=True, generator=draw)
        lens = run(model, Batch(tokens, labels={"answer": answers}), LogitLens("answer"))
        calls += bool(lens["probability_low"][-1] > lens["probability_chance"][-1])
    return calls, draws
