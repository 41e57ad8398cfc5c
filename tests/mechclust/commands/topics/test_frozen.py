"""What is concluded from encoders made by hand: some measured, with or without random twins, and others not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mechclust.commands.topics import tables
from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.job import Measured
from mechclust.commands.topics.models import TopicsModel
from mechclust.commands.topics.result import TopicsResult
from mechclust.commands.topics.texts import Texts
from mechclust.commands.topics.topic_file import FittedTopics
from mechclust.commands.topics.vectors import PARTS, VECTORS
from tasks import TopicModel
from tests.frozen import check_frozen, made_probe, said_by

THRESHOLDS = (0.0005, 0.001, 0.002)
VARIANTS = [[threshold, overlap] for overlap in (False, True) for threshold in THRESHOLDS]
SITES = ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]
TOKENIZATION = {"tokenizer": "BertTokenizer", "bos": "model", "chat": False, "adds": "none"}


def coords(seeds: int) -> dict[str, list[str]]:
    sizes = {"topic_seed": seeds, "variant": len(VARIANTS), "resample": 20, "distance": 9, "kind": 2, "part": PARTS}
    numbered = {axis: [str(i) for i in range(1, size + 1)] for axis, size in sizes.items()}
    return {**numbered, "site": SITES, "head": list("0123"), "vectors": list(VECTORS), "similarity": ["cosine", "dot"]}


def measured(draw: np.random.Generator, model: TopicsModel, twin: int | None, higher: float, seeds: int) -> Measured:
    """Ratios of attention and of vectors, near 1 or higher by some share; lost ones are NaN."""
    about = {
        "variants": VARIANTS,
        "tokenization": TOKENIZATION,
        "lost": 5,
        "occurrences": 60,
        "words_seen": 7,
        "cut": 0,
    }
    about |= {"name": model.name, "published": model.published, "twin": twin}
    of_head = ("topic_seed", "variant", "site", "head")
    axes: dict[str, tuple[str, ...]] = {"ratio": of_head, "matched": of_head}
    for name in ("overall_ratio", "overall_matched"):
        axes |= {name: of_head[:2], f"{name}_resampled": (*of_head[:2], "resample")}
    axes["other"] = (*of_head[:2], "kind", "distance")  # is drawn only to leave the numbers below as they are
    attention = made_probe(
        "TopicsSuiteAttention", coords(seeds), draw, axes, dict(zip(SITES, (0, 1), strict=True)), about
    )
    for name in axes:
        attention.values[name].mul_(0.1).add_(1 + higher)
    place = ("topic_seed", "variant", "vectors", "similarity")
    measures = {**dict.fromkeys(("ratio", "difference", "mean"), place), "ratio_without": (*place, "part")}
    embedding = made_probe("TopicsSuiteEmbedding", coords(seeds), draw, measures, {}, about)
    return Measured(attention, embedding)


def result(higher: tuple[float, ...], twins: int, *, seeds: int = 2, failed: bool = True) -> TopicsResult:
    draw = np.random.default_rng(len(higher) + twins)
    models = [TopicsModel(f"hub/{name}", name, twins, row) for name, row in (("b", "BERT"), ("a", "ALBERT"), ("x", ""))]
    weights = torch.from_numpy(draw.dirichlet(np.ones(8), size=(seeds, 3)))
    words = [f"w{i}" for i in range(8)]
    topics = [TopicModel(words, of_seed, torch.tensor([0.2, 0.5, 0.3]).double()) for of_seed in weights]
    fitted = FittedTopics(topics, list(range(seeds)), {"weights": "tfidf"}, "digest", undercount=seeds - 1)
    there = models[: len(higher)]
    return TopicsResult(
        TopicsConfig((Path("corpus"),), thresholds=THRESHOLDS[::-1]),
        models,
        Texts(fitted, "digest", ["one", "two", "three"], 77, ["4 files hold no word"]),
        {one.name: measured(draw, one, None, share, seeds) for one, share in zip(there, higher, strict=True)},
        {one.name: [measured(draw, one, twin, 0.0, seeds) for twin in range(twins)] for one in there},
        {model.name: "it has no attention" for model in models[len(higher) :]} if failed else {},
    )


def with_tables(found: TopicsResult) -> dict[str, Any]:
    return {
        **said_by(found),
        **{finding.id: finding for finding in found.findings},
        "best heads": tables.best_heads(found.heads(), THRESHOLDS[1]),
        **{f"vectors {name}": found.shown_embeddings(name == "dot", name) for name in ("cosine", "dot")},
    }


def of_two_encoders() -> dict[str, Any]:
    return with_tables(result((0.3, 0.05), twins=2))


def of_one_topic_model() -> dict[str, Any]:
    return with_tables(result((0.02, -0.1, 0.4), twins=1, seeds=1))


def of_no_twins() -> dict[str, Any]:
    return with_tables(result((0.2,), twins=0))


CASES = {
    "topics": of_two_encoders,
    "topics of one topic model": of_one_topic_model,
    "topics without twins": of_no_twins,
}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
