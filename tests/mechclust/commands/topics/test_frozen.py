"""What the command concludes from attention and embeddings made by hand, at every threshold another number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mechclust.commands.topics import tables
from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.measurements import ModelMeasures
from mechclust.commands.topics.result import TopicsResult
from mechclust.commands.topics.variants import Variant
from probes import ProbeResult
from tasks import TopicModel
from tasks.text.encoded_corpus import EncodedCorpus
from tests.frozen import check_frozen, made_probe, said_by

SITES = [f"blocks.{i}.attn.hook_pattern" for i in range(3)]
STREAM = ["hook_embed", *(f"blocks.{i}.hook_resid_post" for i in range(3))]
LAYERS = {**dict(zip(SITES, range(3), strict=True)), **dict(zip(STREAM, range(4), strict=True))}
TOKENIZATION = {"tokenizer": "GPT2Tokenizer", "bos": "no", "chat": False, "adds": "none"}
WORDS = [f"w{i}" for i in range(12)]
N_PERMUTATIONS = 999


def attention(draw: np.random.Generator, shown: bool) -> ProbeResult:
    """Attention of 3 layers of 5 heads; p-values are near 0 if topics are shown."""
    buckets = ["same_word", "same_topic", "different_topic"]
    coords = {"site": SITES, "head": list("01234"), "bucket": buckets}
    per_head = [f"ratio{end}" for end in ("", "_low", "_high", "_null_low", "_null_high")]
    axes = dict.fromkeys([*per_head, "p_value", "same_topic_within", "different_topic_within"], ("site", "head"))
    overall = [f"overall_{name}" for name in (*per_head, "p_value", "same_topic_within", "different_topic_within")]
    axes |= dict.fromkeys([*overall, "highest_ratio", "highest_ratio_low", "highest_ratio_high"], ())
    axes |= {"mean": ("site", "head", "bucket"), "pairs": ("bucket",)}
    made = made_probe("TopicAttention", coords, draw, axes, LAYERS, {"model": "tiny"})
    made.values["ratio"][:] += 1.5 * shown
    made.values["pairs"][:] = torch.tensor([3, 40, 200])
    return with_p(made, shown)


def embedding(draw: np.random.Generator, sites: list[str], shown: bool) -> ProbeResult:
    names = [f"{name}{end}" for name in ("ratio", "difference") for end in ("", "_null_low", "_null_high")]
    axes = dict.fromkeys([*names, "p_value", "difference_p_value"], ("site", "similarity"))
    coords = {"site": sites, "similarity": ["cosine", "dot"]}
    made = made_probe("TopicEmbedding", coords, draw, axes, LAYERS, {"tokenization": TOKENIZATION})
    made.notes.append("2 words were not seen" if shown else "too few pairs of one topic")
    return with_p(made, shown)


def with_p(made: ProbeResult, shown: bool) -> ProbeResult:
    for name, values in made.values.items():
        if name.endswith("p_value"):
            values.mul_(0.01 if shown else 1.0)
    return made


def measures(seed: int, n: int, shown: bool) -> ModelMeasures:
    draw = np.random.default_rng(seed)
    return ModelMeasures(
        [attention(draw, shown) for _ in range(n)],
        [embedding(draw, STREAM, shown) for _ in range(n)],
        [embedding(draw, STREAM[:1], shown) for _ in range(n)],
    )


def corpus() -> EncodedCorpus:
    return EncodedCorpus(
        words=WORDS,
        windows=[np.arange(5), np.arange(3), np.arange(4)],
        labels=[np.arange(5), np.arange(3), np.arange(4)],
        token_of_word=torch.tensor([*range(10), -1, -1]),
        n_documents=2,
        n_cut=1,
        occurrences=80,
        lost=7,
        documents=np.array([0, 0, 1]),
    )


def result(seed: int, *, shown: bool, copies: int, thresholds: tuple[float, ...], **fields: Any) -> TopicsResult:
    draw = torch.Generator().manual_seed(seed)
    weights = torch.rand(3, 12, generator=draw, dtype=torch.float64)
    topics = TopicModel(WORDS, weights / weights.sum(dim=1, keepdim=True), torch.tensor([0.6, 0.02, 0.38]).double())
    variants = [
        Variant(t, overlap, topics.membership(t, overlap=overlap)) for overlap in (False, True) for t in thresholds
    ]
    config = TopicsConfig((Path("corpus"),), thresholds=thresholds, n_permutations=N_PERMUTATIONS)
    return TopicsResult(
        "tiny",
        config,
        topics,
        50,
        4,
        corpus(),
        variants,
        measures(seed, len(variants), shown),
        [measures(seed + 1 + i, len(variants), False) for i in range(copies)],
        **fields,
    )


def with_tables(found: TopicsResult) -> dict[str, Any]:
    heads = tables.first_measured(found.tables["attention"])
    return {
        **said_by(found),
        "measures": found.by_measure(),
        "with intervals": tables.shown_measures(found.by_measure(), with_intervals=True),
        "best heads": tables.best_heads(heads),
    }


def of_shown_topics() -> dict[str, Any]:
    notes = {"empty_files": ("a.txt", "b.txt"), "corpus_notes": ("1 document was cut",)}
    return with_tables(result(0, shown=True, copies=2, thresholds=(0.1, 0.2, 0.4), **notes))


def of_topics_not_shown() -> dict[str, Any]:
    """Nothing is above chance; the first threshold keeps one word per topic, and nothing is measured there."""
    found = result(10, shown=False, copies=0, thresholds=(0.05, 0.3), empty_files=("a.txt",))
    lost = {kind: [None, *of[1:]] for kind, of in vars(found.trained).items()}
    return with_tables(replace(found, trained=ModelMeasures(**lost), n_files=1))


CASES = {"topics": of_shown_topics, "topics not shown": of_topics_not_shown}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
