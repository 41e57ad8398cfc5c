"""Topic measurements against what one would write by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from tests.benchmarks.memory import printed
from tests.benchmarks.ratio import alternate

if TYPE_CHECKING:
    from probes import Probe

_WORDS = 20_000


def attention_loop(lists: bool = False) -> float:
    """A loop over (document, query, key) that sorts each pair, against ``TopicAttention``.

    The loop reads the pattern as a tensor, as one would; with ``lists``, from Python lists made beforehand.
    """
    from mechclust.models import build_model
    from mechclust.studies.topic_structure.config import TopicTransformerConfig
    from probes import TopicAttention
    from probes.engine.hooked_model import forward
    from tasks import TopicDocuments

    task = TopicDocuments(n_documents=100)
    model = build_model(TopicTransformerConfig(d_vocab=task.d_vocab, embedding="one-hot"))
    (batch,) = task.text("dev", 100, 100)
    topics, kept = task.token_topics.tolist(), []
    with torch.no_grad(), model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", lambda x, hook: kept.append(x))]):
        forward(model, batch)
    tokens = batch.tokens.tolist()
    pattern = kept[0][:, 0].tolist() if lists else kept[0][:, 0]

    def theirs() -> None:
        sums, counts = [0.0] * 3, [0] * 3
        for example, words in enumerate(tokens):
            for i, query in enumerate(words):
                for j, key in enumerate(words):
                    if topics[query] >= 0 and topics[key] >= 0:
                        bucket = 0 if query == key else 1 if topics[query] == topics[key] else 2
                        sums[bucket] += pattern[example][i][j] if lists else float(pattern[example, i, j])
                        counts[bucket] += 1

    probe = TopicAttention(task.token_topics, n_permutations=0)
    (site,) = probe.bind(model)

    def ours() -> None:
        probe.reset()
        probe.update({site.name: kept[0]}, batch)
        probe.compute()

    return alternate(theirs, ours, rounds=3)


def attention_overhead(*kinds: str) -> float:
    """Probes, intervals included, on a model of BERT-base's size: 8 sequences of 128 tokens."""
    import probes

    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1000, (8, 128), generator=draw)
    topics = torch.randint(-1, 100, (1000,), generator=draw)
    return _overhead(1000, [tokens], lambda: [getattr(probes, kind)(topics) for kind in kinds], rounds=5)


def embedding_overhead() -> float:
    """``TopicEmbedding`` of 20,000 words at 13 sites of BERT-base's size, against bare forward passes: 12 x 8 x 128."""
    from probes import TopicEmbedding, residual

    draw = torch.Generator().manual_seed(0)
    tokens = [torch.randint(_WORDS, (8, 128), generator=draw) for _ in range(12)]
    topics = torch.randint(100, (_WORDS,), generator=draw)
    return _overhead(_WORDS, tokens, lambda: [TopicEmbedding(topics, residual(), n_permutations=0)], rounds=3)


def _overhead(d_vocab: int, tokens: Sequence[torch.Tensor], probes: Callable[[], list[Probe]], rounds: int) -> float:
    """``run`` with probes against bare forward passes of a model of BERT-base's size."""
    from mechclust import ModelConfig, build_model
    from probes import run
    from tasks import Batch

    shape = {"n_layers": 12, "d_model": 768, "n_heads": 12, "attention": "bidirectional"}
    model = build_model(ModelConfig(d_vocab=d_vocab, n_ctx=128, **shape)).eval()
    batches = [Batch(of, index=torch.arange(len(of)) + i * len(of)) for i, of in enumerate(tokens)]

    def bare() -> None:
        with torch.inference_mode():
            for batch in batches:
                model(batch.tokens)

    return alternate(lambda: run(model, batches, probes()), bare, rounds=rounds)


def embedding_memory() -> float:
    """MiB of that probe at the peak of four batches; its sums, a float64 vector per word and site, are 1,523."""
    return printed(
        f"""
import torch
from mechclust import ModelConfig, build_model
from probes import TopicEmbedding, residual
from tasks import Batch
from tests.benchmarks.memory import forget_peak, held, peak

shape = {{"n_layers": 12, "d_model": 768, "n_heads": 12, "attention": "bidirectional", "n_ctx": 128}}
probe = TopicEmbedding(torch.arange({_WORDS}) % 100, residual(), n_permutations=0)
sites = [site.name for site in probe.bind(build_model(ModelConfig(d_vocab={_WORDS}, **shape)))]
probe.reset()
batches = [Batch(torch.randint({_WORDS}, (8, 128))) for _ in range(4)]
states = {{site: torch.randn(8, 128, 768) for site in sites}}
before = held()
forget_peak()
for batch in batches:
    probe.update(states, batch)
print(peak() - before)
""",
        rounds=3,
    )[0]


def similarity_loop() -> float:
    """A loop over pairs of words against the closed form."""
    from probes.functional import topic_similarity

    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(400, 128, generator=draw)
    topics = torch.randint(10, (400,), generator=draw)

    def theirs() -> None:
        unit, totals = vectors / vectors.norm(dim=1, keepdim=True), torch.zeros(2, 2)
        for i in range(len(vectors)):
            for j in range(len(vectors)):
                if i != j:
                    totals[:, int(topics[i] != topics[j])] += torch.stack([unit[i] @ unit[j], vectors[i] @ vectors[j]])

    return alternate(theirs, lambda: topic_similarity(vectors, topics), rounds=1)


def attention_table() -> float:
    """Five optimiser rows x five seeds, ten steps each: every query in full against what the loss needs."""
    from mechclust import TrainConfig, build_model, train
    from mechclust.studies.topic_structure.config import ROWS, TopicTransformerConfig
    from tasks import TopicDocuments

    tasks = [TopicDocuments(n_documents=400, seed=seed) for seed in range(5)]
    for task in tasks:
        task.train_batch(0, 40)

    def every_run(full: bool) -> None:
        for optimizer, lr in ROWS.values():
            for task in tasks:
                shape = {"embedding": "one-hot", "decoder": "identity", "bias": False, "seed": task.seed}
                model = build_model(TopicTransformerConfig(d_vocab=task.d_vocab, **shape))
                if full:
                    model.logits_at_loss = None
                settings = {"lr": lr, "optimizer": optimizer, "schedule": "constant", "clip": None}
                train(model, task, TrainConfig(steps=10, batch_size=40, **settings))

    return alternate(lambda: every_run(True), lambda: every_run(False), rounds=1)
