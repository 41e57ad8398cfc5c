"""The topic probes as objects: the contract, what they refuse, how they are shown."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from probes import (
    TopicAttention,
    TopicEmbedding,
    attention,  # noqa: F401 - in the repr
    attention_pattern,
    head_output,
    residual,
    run,
)
from probes.extend import check_probe
from tasks import Batch, InputError
from tests.probes.topic_documents import TOPICS

# ---- the contract ----


@pytest.mark.parametrize("probe", [TopicAttention, TopicEmbedding])
def test_the_contract_on_a_transformer(probe: Any, model: Any, batch: Batch, token_topics: torch.Tensor) -> None:
    check_probe(probe(token_topics, n_permutations=9), model, batch)


@pytest.mark.parametrize(
    "probe",
    [
        TopicAttention(TOPICS, n_permutations=0),
        TopicAttention(torch.randint(0, 2, (16, 5), generator=torch.Generator().manual_seed(0)), n_permutations=3),
        TopicAttention(TOPICS, words="word", at="blocks.0.attn.hook_pattern", seed=3),
        TopicEmbedding(TOPICS, self_pairs=True),
        TopicEmbedding(TOPICS, n_permutations=0, words="word"),
        TopicEmbedding(TOPICS, at=[residual(), head_output()], n_permutations=3),
    ],
    ids=lambda p: f"{type(p).__name__}-{p.n_permutations}",
)
def test_the_contract_on_the_topic_transformer(probe: Any, topic_model: Any, documents: Batch) -> None:
    batch = Batch(documents.tokens, documents.attention_mask, labels={"word": documents.targets})  # type: ignore[dict-item]
    check_probe(probe, topic_model(init_std=0.5), batch)


def test_two_processes_agree_with_one(forked: None, topic_model: Any, documents: Batch) -> None:
    check_probe(TopicAttention(TOPICS, n_permutations=5), topic_model(init_std=0.5), documents, processes=True)


# ---- refusals ----


@pytest.mark.parametrize("probe", [TopicAttention, TopicEmbedding])
def test_what_is_refused(probe: Any, model: Any, topic_model: Any, documents: Batch) -> None:
    cases: list[tuple[Any, Any, str]] = [
        (
            topic_model(),
            {"topics": torch.arange(5) % 2},
            "topics are given for 5 words, but the model's vocabulary has "
            "16 tokens; give one row per token, or name a per-token label with words=",
        ),
        (topic_model(), {"topics": torch.arange(3) % 2, "words": "topic"}, "the batch has a word 3, but"),
        (topic_model(), {"topics": TOPICS, "words": "wrd"}, "no label 'wrd' in this batch"),
        (
            topic_model(),
            {"topics": TOPICS, "words": "one"},
            "label 'one' is per example; give a label with one value per token",
        ),
    ]
    labels = {"topic": torch.full_like(documents.tokens, 3), "one": torch.zeros(12, dtype=torch.int64)}
    for given, arguments, message in cases:
        batch = Batch(documents.tokens, documents.attention_mask, labels=labels)
        with pytest.raises(InputError, match=re.escape(message)):
            run(given, batch, probe(**arguments))
    for arguments, message in (
        ({"topics": TOPICS * 0}, "topics has 1 topic; expected at least 2"),
        ({"topics": TOPICS, "n_permutations": -1}, "n_permutations is -1; expected at least 0"),
        ({"topics": TOPICS, "seed": -1}, "seed is -1; expected at least 0"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            probe(**arguments)


@pytest.mark.parametrize("at", [residual(), head_output(), "blocks.0.attn.hook_q"], ids=repr)
def test_attention_is_measured_at_patterns_only(topic_model: Any, documents: Batch, at: Any) -> None:
    with pytest.raises(
        InputError, match=r"expected attention patterns \[batch head query key\] for 11 tokens: measure at"
    ):
        run(topic_model(), documents, TopicAttention(TOPICS, at=at))


def test_vectors_are_measured_at_vectors_only(topic_model: Any, documents: Batch) -> None:
    message = "'blocks.0.attn.hook_pattern' has shape (12, 1, 11, 11); expected a vector per token [batch pos ...]"
    with pytest.raises(InputError, match=re.escape(message)):
        run(topic_model(), documents, TopicEmbedding(TOPICS, at=attention_pattern()))


# ---- the probe as an object ----


@pytest.mark.parametrize("probe", [TopicAttention, TopicEmbedding])
@pytest.mark.parametrize("n", [16, 200])
def test_probes_with_other_topics_do_not_merge(probe: Any, n: int) -> None:
    topics = torch.arange(n) % 3
    other = topics.clone()
    other[-1] += 1
    first, same, second = probe(topics), probe(topics.clone()), probe(other)
    assert repr(first) == repr(same) != repr(second)
    assert repr(first) != repr(probe(topics.int()))
    first.merge(same)
    with pytest.raises(InputError, match=r"cannot merge .* merge probes with the same parameters"):
        first.merge(second)


def test_small_topics_are_shown_whole_and_large_ones_by_their_digest() -> None:
    small = TopicAttention(torch.tensor([[True, False], [False, True]]), n_permutations=2)
    assert repr(small) == (
        "TopicAttention(topics=torch.tensor([[True, False], [False, True]], dtype=torch.bool), "
        "at=attention(), words=None, n_permutations=2, seed=0, n_resamples=0, units=None)"
    )
    assert torch.equal(eval(repr(small), {"torch": torch, **globals()}).topics, small.topics)
    assert re.match(r"TopicEmbedding\(topics=<int64 \[65\] [0-9a-f]{12}>, at", repr(TopicEmbedding(torch.arange(65))))
    assert "topics=torch.tensor([0, 1," in repr(TopicEmbedding(torch.arange(64)))
    assert re.match(r"TopicEmbedding\(topics=<int64 \[3\] [0-9a-f]{12}>, at", repr(TopicEmbedding(np.arange(3))))
