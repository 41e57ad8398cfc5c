"""Attention within topics against attention between topics, at equal distance in one document.

The buckets are those of Li, Li & Risteski (ICML 2023); the comparison at equal distance is ours, with the weights of
Mantel & Haenszel (1959).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.arrays import exact_dtype
from probes.functional.topic_pairs import topic_pair_weight
from probes.functional.word_topics import WordTopics

DIFFERENT_WORDS = ("same_topic", "different_topic")
_QUERIES_AT_ONCE = 256

# The attention [batch head query key] of some queries to some keys.
RowsOf: TypeAlias = Callable[[Int[Tensor, "query"], Int[Tensor, "key"]], Float[Tensor, "batch head query key"]]


@dataclass(frozen=True)
class DistanceMatchedPairs:
    """The ordered (query, key) pairs of one batch whose words differ, both have a topic, and are not too far apart.

    Memory is linear in the length of the texts: the pairs are found again whenever they are needed, a block of queries
    at a time.

    Attributes:
        word: at each position, as a row of the topics; -1 where it has none.
        topics: whose groups.
        max_distance: largest distance, in tokens.
    """

    word: Int[Tensor, "batch pos"]
    topics: WordTopics
    max_distance: int

    @classmethod
    def from_words(cls, words: Int[Tensor, "batch pos"], topics: WordTopics, max_distance: int) -> DistanceMatchedPairs:
        """Return the pairs of a batch of words.

        Raises:
            InputError: for a word that is not among the topics.
        """
        return cls(topics.rows_of(words), topics, max_distance)

    def pairs(self) -> Int[Tensor, "example 2 distance"]:
        """Return how many pairs there are of each example, bucket and distance."""
        n = len(self.word)
        size = 2 * n * self.max_distance
        counts = torch.zeros(size, dtype=torch.int64, device=self.word.device)
        for block in self._blocks():
            counts += torch.bincount(block.place, minlength=size)
        return counts.view(n, 2, self.max_distance)

    def beyond(self) -> int:
        """Return how many pairs are farther apart than ``max_distance``, and left out."""
        n_all = 0
        for words in self.word:
            counts = torch.unique(words[words >= 0], return_counts=True)[1]
            n_all += int(counts.sum() ** 2 - counts.square().sum())
        return n_all - int(self.pairs().sum())

    def sums(self, rows_of: RowsOf, n_heads: int) -> Float[Tensor, "{n_heads} example 2 distance"]:
        """Sum attention by head, example, bucket and distance, in float64.

        Args:
            rows_of: returns the attention of some queries to some keys.
            n_heads: how many heads it has.
        """
        n = len(self.word)
        size = 2 * n * self.max_distance
        total = torch.zeros(n_heads, size, dtype=exact_dtype(self.word.device), device=self.word.device)
        for block in self._blocks():
            rows = rows_of(block.queries, block.keys)
            for head in range(n_heads):
                attention = rows[:, head].reshape(-1).index_select(0, block.pair)
                total[head] += _added(size, block.place, attention)
        return total.view(n_heads, n, 2, self.max_distance)

    def _blocks(self) -> Iterator[_Block]:
        """Yield the pairs of a block of queries at a time."""
        n_pos = self.word.shape[1]
        device = self.word.device
        group = self.topics.group.to(device)
        for start in range(0, n_pos, _QUERIES_AT_ONCE):
            stop = min(start + _QUERIES_AT_ONCE, n_pos)
            queries = torch.arange(start, stop, device=device)
            keys = torch.arange(max(0, start - self.max_distance), min(n_pos, stop + self.max_distance), device=device)
            one = self.word[:, queries, None]
            other = self.word[:, None, keys]
            distance = (queries[:, None] - keys).abs()
            counts = (one >= 0) & (other >= 0) & (one != other) & (distance <= self.max_distance)
            example, query, key = counts.nonzero().T
            same = self.topics.meet(group[one[example, query, 0]], group[other[example, 0, key]])
            bucket = torch.where(same, 0, 1)
            yield _Block(
                queries=queries,
                keys=keys,
                pair=(example * len(queries) + query) * len(keys) + key,
                place=(example * 2 + bucket) * self.max_distance + distance[query, key] - 1,
            )


@dataclass(frozen=True)
class _Block:
    """The pairs of a few queries.

    Attributes:
        queries: positions.
        keys: positions that are not too far from any of these.
        pair: each pair's place in ``[example query key]``, flattened.
        place: each pair's place in the table ``[example 2 distance]`` of buckets and distances, flattened.
    """

    queries: Int[Tensor, "query"]
    keys: Int[Tensor, "key"]
    pair: Int[Tensor, "pair"]
    place: Int[Tensor, "pair"]


def _added(size: int, place: Int[Tensor, "pair"], values: Float[Tensor, "pair"]) -> Float[Tensor, "{size}"]:
    """Return the sums of the values at each place. Their bits are equal on every run, also on a GPU."""
    if values.device.type == "cpu":
        return torch.bincount(place, weights=values.double(), minlength=size).double()  # of no values: integers
    exact = exact_dtype(values.device)
    return values.new_zeros(size, dtype=exact).index_put_((place,), values.to(exact), accumulate=True)


def matched_means(
    total: Float[Tensor, "... example 2 distance"], pairs: Int[Tensor, "example 2 distance"]
) -> Float[Tensor, "... 2"]:
    """Return the mean attention of both buckets over matched documents and distances.

    Each distance ``d`` in each document in which both buckets have pairs counts with
    ``n_same n_different / (n_same + n_different)``, for both alike. If attention is some function of document and
    distance, times a factor within topics, the ratio of the two means is that factor, wherever words of a topic stand.

    Args:
        total: summed attention, by example, bucket (same topic, different topic) and distance.
        pairs: how many pairs.

    Returns:
        The two means; NaN if no distance in any document has both.

    Example:
        >>> total = torch.tensor([[[6.0, 4.0], [2.0, 8.0]]], dtype=torch.float64)
        >>> pairs = torch.tensor([[[2, 4], [1, 8]]])
        >>> matched_means(total, pairs).round(decimals=6).tolist()  # 3 and 1, against 2 and 1
        [1.4, 1.2]
    """
    sums, weight = matched_sums(total, pairs)
    return sums.sum(dim=-2) / weight.sum()


def unmatched_means(
    total: Float[Tensor, "... example 2 distance"], pairs: Int[Tensor, "example 2 distance"]
) -> Float[Tensor, "... 2"]:
    """Return the mean attention of both buckets over matched documents at any distance, as ``TopicAttention`` does."""
    return matched_means(total.sum(dim=-1, keepdim=True), pairs.sum(dim=-1, keepdim=True))


def matched_sums(
    total: Float[Tensor, "... example 2 distance"], pairs: Int[Tensor, "example 2 distance"]
) -> tuple[Float[Tensor, "... example 2"], Float[Tensor, "example"]]:
    """Sum the weighted means of both buckets over each example's distances, and sum the weights."""
    weight = topic_pair_weight(pairs[..., 0, :], pairs[..., 1, :])
    share = weight[..., None, :] / pairs.clamp(min=1)
    return (total * share).sum(dim=-1), weight.sum(dim=-1)
