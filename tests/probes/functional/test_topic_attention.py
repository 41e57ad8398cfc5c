from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int

from probes.functional import topic_attention, topic_similarity
from probes.functional.word_topics import WordTopics
from tasks import InputError

Pattern = Float[torch.Tensor, "batch head pos pos"]
Words = Int[torch.Tensor, "batch pos"]

SINGLE = st.lists(st.integers(-1, 3), min_size=2, max_size=9).filter(lambda t: len({x for x in t if x >= 0}) >= 2)
SEVERAL = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=9).filter(
    lambda rows: sum(any(column) for column in zip(*rows, strict=True)) >= 2
)
TOPICS = st.one_of(SINGLE, SEVERAL)


def sets_of(topics: list) -> list[set[int]]:
    """Each word's set of topics."""
    if isinstance(topics[0], list):
        return [{k for k, member in enumerate(row) if member} for row in topics]
    return [{t} if t >= 0 else set() for t in topics]


def patterns(batch: int, heads: int, pos: int, seed: int) -> Pattern:
    return torch.randn(batch, heads, pos, pos, generator=torch.Generator().manual_seed(seed)).softmax(dim=-1)


def triple_loop(
    pattern: Pattern, words: Words, topics: list
) -> tuple[Float[np.ndarray, "head 3"], Int[np.ndarray, "3"]]:
    """Sums ``[head 3]`` and pair counts ``[3]``, pair by pair."""
    known = sets_of(topics)
    (batch, heads, pos, _) = pattern.shape
    total = np.zeros((heads, 3))
    pairs = np.zeros(3, dtype=np.int64)
    for b in range(batch):
        for q in range(pos):
            for k in range(pos):
                one = int(words[b, q])
                other = int(words[b, k])
                if one < 0 or other < 0 or not known[one] or not known[other]:
                    continue
                bucket = 0 if one == other else 1 if known[one] & known[other] else 2
                pairs[bucket] += 1
                total[:, bucket] += pattern[b, :, q, k].double().numpy()
    return total, pairs


def within_loop(
    pattern: Pattern, words: Words, topics: list, counted: list | None = None
) -> Float[np.ndarray, "head 2"]:
    """``[head 2]`` weighted sums of each document's two means; the weights are those of the topics ``counted``."""
    total = np.zeros((pattern.shape[1], 2))
    for document, word in zip(pattern.split(1), words.split(1), strict=True):
        sums, pairs = triple_loop(document, word, topics)
        _, (_, same, different) = triple_loop(document, word, counted or topics)
        if pairs[1] and pairs[2] and same and different:
            total += sums[:, 1:] / pairs[1:] * same * different / (same + different)
    return total


@settings(max_examples=60, deadline=None)
@given(TOPICS, st.integers(1, 3), st.integers(1, 6), st.integers(0, 10**6))
def test_attention_equals_the_triple_loop(topics: list, heads: int, pos: int, seed: int) -> None:
    """Words without a topic, padding (-1), several topics a word: pair by pair the same."""
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(-1, len(topics), (3, pos), generator=draw)
    pattern = patterns(3, heads, pos, seed)
    sums = topic_attention(pattern, words, torch.tensor(topics))
    total, pairs = triple_loop(pattern, words, topics)
    assert sums.pairs.tolist() == pairs.tolist()
    np.testing.assert_allclose(sums.sum, total, rtol=1e-12, atol=1e-12)
    assert (sums.sum.dtype, sums.pairs.dtype) == (torch.float64, torch.int64)
    assert sums.within.shape == (heads, 2, 1)
    np.testing.assert_allclose(sums.within[..., 0], within_loop(pattern, words, topics), rtol=1e-9, atol=1e-12)
    both = [triple_loop(pattern[b : b + 1], words[b : b + 1], topics)[1][1:] for b in range(3)]
    assert sums.documents.tolist() == [sum(any(n) for n in both), sum(all(n) for n in both)]


def test_topics_may_be_any_integers() -> None:
    single = topic_attention(torch.ones(1, 1, 4, 4), torch.tensor([[0, 1, 2, 3]]), torch.tensor([7, 7, 2, -4]))
    table = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 0]])
    both = topic_attention(torch.ones(1, 1, 4, 4), torch.tensor([[0, 1, 2, 3]]), table)
    assert single.pairs.tolist() == both.pairs.tolist() == [3, 2, 4]


def test_no_text_has_no_pairs() -> None:
    none = topic_attention(torch.ones(0, 2, 3, 3), torch.zeros(0, 3, dtype=torch.int64), torch.tensor([-1, 0, 0, 1]))
    assert none.pairs.tolist() == [0, 0, 0]


def test_what_stands_at_padding_does_not_count() -> None:
    pattern = patterns(2, 3, 5, 1)
    words = torch.tensor([[0, 1, 2, 3, 0], [1, 3, 2, -1, -1]])
    expected = topic_attention(pattern, words, [0, 0, 1, 1])
    pattern[1, :, 3:] = torch.nan
    pattern[1, :, :, 3:] = torch.nan
    sums = topic_attention(pattern, words, [0, 0, 1, 1])
    assert torch.equal(sums.sum, expected.sum)
    assert torch.equal(sums.pairs, expected.pairs)
    assert torch.equal(sums.within, expected.within)


def test_a_factor_within_topics_is_found_whatever_the_documents() -> None:
    """Documents of 1, 2 and 4 topics, short and long: uniform attention, times 1.5 within topics, gives 1.5."""
    lengths = (4, 9, 12, 5)
    numbers = (4, 1, 2, 2)
    topics = torch.arange(48) // 12
    words = torch.full((4, 12), -1)
    for row, length, n in zip(words, lengths, numbers, strict=True):
        row[:length] = torch.arange(length) % n * 12 + torch.arange(length) // n
    topic = torch.where(words < 0, -1, topics[words.clamp(min=0)])
    uniform = 1 / torch.tensor(lengths, dtype=torch.float64)[:, None, None].expand(4, 12, 12)
    for times in (1.0, 1.5):
        pattern = uniform * torch.where(topic[:, :, None] == topic[:, None, :], times, 1.0)
        sums = topic_attention(pattern[:, None], words, topics)
        same, different = sums.within_mean[0].tolist()
        assert same / different == pytest.approx(times, rel=1e-12)
        assert sums.documents.tolist() == [4, 2]  # of one topic, or with one word of each: one kind of pair only
        pooled = (sums.sum / sums.pairs)[0]
        assert abs(float(pooled[1] / pooled[2]) - times) > 0.1


def test_what_attention_refuses() -> None:
    words = torch.tensor([[0, 1, 2]])
    topics = torch.tensor([0, 0, 1])
    message = "pattern has shape (1, 2, 3); expected real numbers [batch head query key], at least one of each"
    with pytest.raises(InputError, match=re.escape(message)):
        topic_attention(torch.ones(1, 2, 3), words, topics)
    with pytest.raises(InputError, match="pattern has 2 examples and words 1; give both for the same examples"):
        topic_attention(torch.ones(2, 1, 3, 3), words, topics)
    with pytest.raises(InputError, match="pattern has negative weights; give attention probabilities"):
        topic_attention(torch.ones(1, 1, 3, 3).log() - 1, words, topics)
    for shape in ((1, 2, 3, 4), (1, 1, 5, 5), (1, 1, 2, 2)):
        with pytest.raises(InputError, match=re.escape(f"pattern has shape {shape}; expected [batch head query key]")):
            topic_attention(torch.ones(shape), words, topics)
    message = "the batch has a word 3, but topics are given for 3 words; give one row per word, in the same"
    with pytest.raises(InputError, match=message):
        topic_attention(torch.ones(1, 1, 3, 3), torch.tensor([[0, 3, 1]]), topics)


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (
            torch.tensor([0.0, 1.0]),
            "topics is torch.float32 of shape (2,); expected one integer per word (negative: none)",
        ),
        (torch.zeros(2, 2, 2, dtype=torch.int64), "topics is torch.int64 of shape (2, 2, 2); expected one integer"),
        (torch.tensor(3), "topics is torch.int64 of shape (); expected one integer per word"),
        ([0, 0, -1], "topics has 1 topic; expected at least 2"),
        ([-1, -1], "topics has no topics; expected at least 2"),
        (torch.tensor([[True, False]] * 2), "topics has 1 topic; expected at least 2"),
        (torch.zeros(3, 2, dtype=torch.bool), "topics has no topics; expected at least 2"),
    ],
    ids=str,
)
def test_topics_of_another_form_are_refused(topics: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        topic_similarity(torch.ones(3, 2), topics)


# ---- word vectors ----


def double_loop(
    vectors: Float[torch.Tensor, "word dim"], topics: list, self_pairs: bool
) -> tuple[Float[np.ndarray, "2 2"], list[int]]:
    """Means ``[2 2]`` (cosine and dot by same and different) and pair counts, pair by pair."""
    known = sets_of(topics)
    rows = vectors.double().numpy()
    kept: tuple[list, list] = ([], [])
    for i in range(len(rows)):
        for j in range(len(rows)):
            if not known[i] or not known[j] or (i == j and not self_pairs):
                continue
            dot = float(rows[i] @ rows[j])
            kept[0 if known[i] & known[j] else 1].append(
                (dot / np.sqrt((rows[i] ** 2).sum() * (rows[j] ** 2).sum()), dot)
            )
    means = [np.mean(pairs, axis=0) if pairs else np.full(2, np.nan) for pairs in kept]
    return np.stack(means, axis=1), [len(pairs) for pairs in kept]


@settings(max_examples=60, deadline=None)
@given(TOPICS, st.booleans(), st.integers(0, 10**6))
def test_similarity_equals_the_double_loop(topics: list, self_pairs: bool, seed: int) -> None:
    vectors = torch.randn(len(topics), 4, generator=torch.Generator().manual_seed(seed)) + 0.3
    similarity = topic_similarity(vectors, torch.tensor(topics), self_pairs)
    mean, pairs = double_loop(vectors, topics, self_pairs)
    assert similarity.pairs.tolist() == pairs
    np.testing.assert_allclose(similarity.mean, mean, atol=1e-9)
    np.testing.assert_allclose(similarity.ratio, mean[:, 0] / mean[:, 1], rtol=1e-6)
    np.testing.assert_allclose(similarity.difference, mean[:, 0] - mean[:, 1], atol=1e-9)
    assert similarity.mean.dtype == torch.float64


def test_vectors_and_topics_must_be_as_many() -> None:
    with pytest.raises(InputError, match="there are 3 vectors but topics for 4 words; give one row each"):
        topic_similarity(torch.ones(3, 2), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize("topics", [["a", "b"], [[0], [0, 1]], torch.tensor([[1, -1], [0, 1]])])
def test_topics_that_are_no_table_are_refused(topics: Any) -> None:
    with pytest.raises(InputError, match="expected one integer per word"):
        WordTopics.from_topics(topics)
