"""How often ``TopicEmbedding`` finds topics in word vectors that ignore them."""

from __future__ import annotations

import torch

from probes import TopicEmbedding

CASES = {  # words per topic, and the length of a vector that all words share
    "5 topics of 8 words": ((8,) * 5, 0.0),
    "topics of 2 to 20 words": ((2, 4, 6, 8, 20), 0.0),
    "5 topics of 8 words, a shared mean": ((8,) * 5, 5.0),
}


def false_positive_rate(draws: int, seed: int, case: str) -> tuple[int, int]:
    """Draw word vectors of 16 dimensions, and count p-values of the difference of cosines that are at most .05."""
    sizes, mean = CASES[case]
    topics = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    calls = 0
    for i in range(draws):
        draw = torch.Generator().manual_seed(seed * 1_000_003 + i)
        vectors = torch.randn(len(topics), 16, generator=draw)
        vectors[:, 0] += mean
        result = TopicEmbedding(topics, seed=i).compare_vectors({"words": vectors})
        calls += float(result.sel("difference_p_value", site="words", similarity="cosine")) <= 0.05
    return calls, draws
