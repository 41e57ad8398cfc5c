"""``TopicAttention`` against bare forward passes."""

from __future__ import annotations

import torch

from tests.benchmarks.ratio import alternate


def attention_overhead() -> float:
    """The probe, intervals included, on a model of BERT-base's size: 8 sequences of 128 tokens."""
    from mechclust import ModelConfig, build_model
    from probes import TopicAttention, run
    from tasks import Batch

    draw = torch.Generator().manual_seed(0)
    batch = Batch(torch.randint(1000, (8, 128), generator=draw))
    topics = torch.randint(-1, 100, (1000,), generator=draw)
    shape = {"n_layers": 12, "d_model": 768, "n_heads": 12, "attention": "bidirectional"}
    model = build_model(ModelConfig(d_vocab=1000, n_ctx=128, **shape)).eval()

    def bare() -> None:
        with torch.inference_mode():
            model(batch.tokens)

    return alternate(lambda: run(model, batch, TopicAttention(topics)), bare, rounds=5)
