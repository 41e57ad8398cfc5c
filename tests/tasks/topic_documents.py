"""Small topic documents, and how two batches or a count and its share are compared."""

from __future__ import annotations

import math
from typing import Any

import torch

from tasks import Batch, TopicDocuments

PAD, MASK, START, END = range(4)
SMALL: dict[str, Any] = {"n_topics": 4, "words_per_topic": 3, "lengths": (5, 9), "n_documents": 60}
VARIED: list[dict[str, Any]] = [
    {},
    {"boundaries": False},
    {"sampler": "subset", "topics_per_document": 3},
    {"masking": "fresh", "selected_share": 0.9},
    {"exact_shares": True, "selected_share": 0.5, "correct_share": 0.0},
    {"lengths": (1, 2), "selected_share": 0.01},
    {"sampler": "logistic-normal", "topic_correlation": 0.9, "zipf": 1.0},
]


def whole(task: TopicDocuments, split: str = "train") -> Batch:
    return next(task.batches(split, task.n_documents))


def same(a: Batch, b: Batch) -> bool:
    pairs = [(a.tokens, b.tokens), (a.targets, b.targets), (a.loss_mask, b.loss_mask), (a.index, b.index)]
    pairs += [(a.attention_mask, b.attention_mask), (a.labels["topic"], b.labels["topic"])]
    return all(torch.equal(x, y) for x, y in pairs)  # type: ignore[arg-type]


def within(count: int, n: int, share: float) -> bool:
    """A count of successes is within 5 standard deviations of what its share makes it."""
    return abs(count - n * share) <= 5 * math.sqrt(n * share * (1 - share)) + 1e-9
