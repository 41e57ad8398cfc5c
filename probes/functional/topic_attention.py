"""Attention between words of one topic and of different topics.

The measurement of Li, Li & Risteski, "How Do Transformers Learn Topic Structure" (ICML 2023).
"""

from __future__ import annotations

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch, exact_dtype
from probes.functional.topic_pairs import (
    BUCKETS,
    PairSums,
    topic_pair_document_weights,
    topic_pair_shares,
    topic_pair_sums_within_documents,
)
from probes.functional.word_topics import WordTopics
from tasks import InputError


@computed_in_torch(not_finite=["pattern"])
def topic_attention(
    pattern: Float[Array, "batch head query key"],
    words: Int[Array, "batch pos"],
    topics: object,
) -> PairSums:
    """Sum attention between words of one topic and of different topics over a batch.

    Takes tensors, NumPy arrays or lists, and returns the kind that it was given (arrays for lists).

    Every ordered (query, key) pair of positions whose words both have a topic falls into one bucket: ``same_word`` (the
    diagonal included), ``same_topic`` (a different word), ``different_topic``. Pairs with any other position are left
    out, and weights are not renormalised. Cost: the positions that count, squared.

    ``sum / pairs`` is the plain average over the pairs of all documents. It compares documents of few topics with
    documents of many: where these differ in length, it differs from bucket to bucket whatever attention does.
    ``within_mean`` compares the two buckets in each document, and weighs the document by
    ``n_same n_different / (n_same + n_different)`` in both.

    Args:
        pattern: attention probabilities, rows sum to 1 over keys; one document per example.
        words: each position's word; negative: left out.
        topics: integer topic of each word (negative: none), or a table of membership with a row for each word and a
            column for each topic; two words share a topic when their sets meet.

    Raises:
        InputError: for topics of another form, a word that is not among them, or negative weights.

    Example:
        >>> import torch
        >>> pattern = torch.tensor([[[[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]]]])
        >>> sums = topic_attention(pattern, torch.tensor([[0, 1, 2]]), torch.tensor([0, 0, 1]))
        >>> (sums.sum / sums.pairs)[0].round(decimals=3).tolist()
        [0.533, 0.25, 0.225]
        >>> sums.within_mean[0].round(decimals=3).tolist()  # the same, for one document
        [0.25, 0.225]
    """
    _check_weights(pattern)
    groups = WordTopics.from_topics(topics)
    rows = groups.rows_of(words)
    _check_positions(pattern, words.shape[1])
    exact = exact_dtype(pattern.device)
    sums = pattern.new_zeros(len(pattern), pattern.shape[1], len(BUCKETS), dtype=exact)
    pairs = rows.new_zeros(len(rows), len(BUCKETS))
    for example, row in enumerate(rows):
        has_topic = row >= 0
        buckets = _buckets(row[has_topic], groups)
        attention = pattern[example][:, has_topic][:, :, has_topic].to(exact)
        sums[example] = einsum(attention, buckets.to(exact), "head query key, bucket query key -> head bucket")
        pairs[example] = buckets.sum(dim=(1, 2))
    weight, documents = topic_pair_document_weights(pairs)
    within = topic_pair_sums_within_documents(sums, topic_pair_shares(pairs, weight))
    return PairSums(sums.sum(dim=0), pairs.sum(dim=0), within, weight.sum(dim=0), documents)


def _buckets(row: Int[Tensor, "word"], topics: WordTopics) -> Bool[Tensor, "3 word word"]:
    """Return which pairs of an example's words are in each of ``BUCKETS``."""
    group = topics.group.to(row.device)[row]
    same_word = row[:, None] == row
    same_topic = topics.meet(group[:, None], group) & ~same_word
    return torch.stack([same_word, same_topic, ~(same_word | same_topic)])


def _check_positions(pattern: Float[Tensor, "batch head query key"], n_pos: int) -> None:
    """Refuse anything but attention between the positions of the words."""
    if pattern.shape[2:] != (n_pos, n_pos):
        raise InputError(
            f"pattern has shape {tuple(pattern.shape)}; expected [batch head query key] over the {n_pos} positions of "
            "words"
        )


def _check_weights(pattern: Float[Tensor, "batch head query key"]) -> None:
    """Refuse negative weights, such as logits. Weights of positions that do not count may be NaN."""
    if bool((pattern < 0).any()):
        raise InputError("pattern has negative weights; give attention probabilities")
