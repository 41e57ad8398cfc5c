"""Attention at equal distance, against loops over pairs, and where the answer is known."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int

from probes import DistanceMatchedTopicAttention
from probes.engine.attention import EagerAttention
from probes.functional import distance_matched_topic_attention as functional
from probes.functional import topic_attention
from probes.functional.distance_matched_topic_attention import DistanceMatchedPairs, matched_means, unmatched_means
from probes.functional.word_topics import WordTopics
from tasks import Batch, InputError

SINGLE = st.lists(st.integers(-1, 3), min_size=2, max_size=9).filter(lambda t: len({x for x in t if x >= 0}) >= 2)
SEVERAL = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=9).filter(
    lambda rows: sum(any(column) for column in zip(*rows, strict=True)) >= 2
)


def patterns(batch: int, heads: int, pos: int, seed: int) -> Float[torch.Tensor, "batch head pos pos"]:
    return torch.randn(batch, heads, pos, pos, generator=torch.Generator().manual_seed(seed)).softmax(dim=-1)


def by_loop(
    pattern: Float[torch.Tensor, "batch head pos pos"],
    words: Int[torch.Tensor, "batch pos"],
    topics: list,
    longest: int,
) -> dict:
    """Attention of all heads, pair by pair: ``{(example, same topic, distance): [per-head arrays]}``."""
    known = [{k for k, m in enumerate(row) if m} if isinstance(row, list) else {row} - {-1} for row in topics]
    attention = defaultdict(list)
    for b, row in enumerate(words.tolist()):
        for q, one in enumerate(row):
            for k, other in enumerate(row):
                if one == other or min(one, other) < 0 or not known[one] or not known[other] or abs(q - k) > longest:
                    continue
                attention[b, bool(known[one] & known[other]), abs(q - k)].append(pattern[b, :, q, k].double().numpy())
    return attention


def matched_by_loop(attention: dict, heads: int) -> Float[np.ndarray, "head 2"]:
    """Mantel-Haenszel, written as in a textbook: sums of ``a n0 / n`` and ``b n1 / n`` over the strata."""
    top = np.zeros(heads)
    bottom = np.zeros(heads)
    weight = 0.0
    for example, d in {(example, distance) for example, _, distance in attention}:
        same = attention.get((example, True, d), [])
        other = attention.get((example, False, d), [])
        if same and other:
            n = len(same) + len(other)
            top += sum(same) * len(other) / n
            bottom += sum(other) * len(same) / n
            weight += len(same) * len(other) / n
    return np.stack([top, bottom], axis=1) / weight if weight else np.full((heads, 2), np.nan)


def measured(
    pattern: Float[torch.Tensor, "batch head pos pos"], words: Int[torch.Tensor, "batch pos"], topics: Any, longest: int
) -> tuple[Float[torch.Tensor, "head example 2 distance"], Int[torch.Tensor, "example 2 distance"]]:
    pairs = DistanceMatchedPairs.from_words(words, WordTopics.from_topics(topics), longest)
    return pairs.sums(EagerAttention(pattern).rows, pattern.shape[1]), pairs.pairs()


@settings(max_examples=50, deadline=None)
@given(st.one_of(SINGLE, SEVERAL), st.integers(1, 3), st.integers(1, 7), st.integers(1, 8), st.integers(0, 10**6))
def test_it_equals_the_loop_over_pairs(topics: list, heads: int, pos: int, longest: int, seed: int) -> None:
    words = torch.randint(-1, len(topics), (3, pos), generator=torch.Generator().manual_seed(seed))
    pattern = patterns(3, heads, pos, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "_QUERIES_AT_ONCE", 3)
        total, pairs = measured(pattern, words, torch.tensor(topics), longest)
    attention = by_loop(pattern, words, topics, longest)
    assert total.shape == (heads, 3, 2, longest)
    for b in range(3):
        for bucket, same in enumerate((True, False)):
            for distance in range(1, longest + 1):
                parts = attention.get((b, same, distance), [])
                assert int(pairs[b, bucket, distance - 1]) == len(parts)
                summed = sum(parts) if parts else 0.0
                np.testing.assert_allclose(total[:, b, bucket, distance - 1], summed, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        matched_means(total, pairs), matched_by_loop(attention, heads), rtol=1e-9, equal_nan=True
    )


def test_all_pairs_together_are_what_topic_attention_finds() -> None:
    words = torch.randint(-1, 7, (4, 9), generator=torch.Generator().manual_seed(0))
    pattern = patterns(4, 2, 9, 3)
    topics = torch.tensor([0, 0, 1, -1, 2, 1, 0])
    total, pairs = measured(pattern, words, topics, 8)
    known = topic_attention(pattern, words, topics)
    assert pairs.sum(dim=(0, 2)).tolist() == known.pairs[1:].tolist()
    torch.testing.assert_close(total.sum(dim=(1, 3)), known.sum[:, 1:])
    torch.testing.assert_close(unmatched_means(total, pairs), known.within_mean)


def clustered(n: int, pos: int, run: int = 8) -> Int[torch.Tensor, "batch pos"]:
    """Words of 4 topics with 6 words each, in runs of one topic."""
    draw = np.random.default_rng(0)
    topic = np.repeat(draw.integers(0, 4, (n, -(-pos // run))), run, axis=1)[:, :pos]
    return torch.from_numpy(6 * topic + draw.integers(0, 6, (n, pos)))


@pytest.mark.parametrize("times", [1.0, 1.5, 0.8])
def test_attention_that_falls_with_distance_is_told_from_topics(times: float) -> None:
    """Attention is 1 / (1 + distance), times a factor within topics: the factor is found, to the last digits."""
    words = clustered(30, 40)
    topics = torch.arange(24) // 6
    place = torch.arange(40, dtype=torch.float64)
    falls = 1 / (1 + (place[:, None] - place).abs())
    same = topics[words][:, :, None] == topics[words][:, None, :]
    pattern = (falls * torch.where(same, torch.tensor(times, dtype=torch.float64), 1.0))[:, None]
    total, pairs = measured(pattern, words, topics, 40)
    one, other = matched_means(total, pairs)[0]
    assert float(one / other) == pytest.approx(times, rel=1e-12)
    near, far = unmatched_means(total, pairs)[0]
    assert float(near / far) > 1.5 * times  # by distance alone


def test_documents_are_matched_too() -> None:
    """Short documents of one topic, long ones of four, and attention of their own: the factor within topics is 1."""
    words = torch.full((2, 20), -1)
    topics = torch.arange(24) // 6
    words[0, :10] = torch.arange(10) % 6
    words[1] = torch.arange(20)
    words[0, 0] = 23  # one word of another topic
    level = torch.tensor([1 / 10, 1 / 20])[:, None, None, None].expand(2, 1, 20, 20)
    total, pairs = measured(level, words, topics, 20)
    one, other = matched_means(total, pairs)[0].tolist()
    assert one / other == pytest.approx(1, rel=1e-12)
    together = total.sum(dim=(1, 3))[0] / pairs.sum(dim=(0, 2))
    assert float(together[0] / together[1]) > 1.2


def test_distances_that_one_bucket_lacks_do_not_count() -> None:
    total = torch.tensor([[6.0, 100.0, 4.0, 0.0], [2.0, 0.0, 8.0, 50.0]], dtype=torch.float64)
    pairs = torch.tensor([[2, 5, 4, 0], [1, 0, 8, 5]])
    assert matched_means(total[None], pairs[None]).tolist() == pytest.approx([1.4, 1.2])
    assert bool(matched_means(total[None, :, [1, 3]], pairs[None, :, [1, 3]]).isnan().all())


def test_pairs_too_far_apart_are_counted() -> None:
    pairs = DistanceMatchedPairs.from_words(
        torch.tensor([[0, 2, 1, 0]]), WordTopics.from_topics(torch.tensor([0, 0, 1])), 1
    )
    assert pairs.beyond() == 4  # two apart, both ways; the same word three apart is no pair
    assert pairs.pairs().tolist() == [[[2], [4]]]


def test_refusals() -> None:
    topics = WordTopics.from_topics(torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"^the batch has a word 2, but topics are given for 2 words; give one"):
        DistanceMatchedPairs.from_words(torch.tensor([[2]]), topics, 3)
    probe = DistanceMatchedTopicAttention(torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"has shape \(1, 2, 3, 3\); expected attention patterns \[batch head query k"):
        probe.readout(torch.zeros(1, 2, 3, 3), Batch(torch.tensor([[0, 1]])))
