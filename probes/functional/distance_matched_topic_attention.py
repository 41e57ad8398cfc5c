"""Attention within topics against attention between topics, at equal distance in the same document.

The buckets are those of Li, Li & Risteski (ICML 2023); the comparison at equal distance is ours, with the weights of
Mantel & Haenszel (1959).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.topic_attention import WordTopics, check_patterns, exact_dtype, pair_weight

DIFFERENT_WORDS = ("same_topic", "different_topic")


@dataclass(frozen=True)
class DistancePairs:
    """The ordered (query, key) pairs of one batch whose words differ and both have a topic.

    Attributes:
        example: of each pair.
        query: its query position.
        key: its key position.
        cell: its place in the ``2 x max_distance`` table of buckets and distances.
        beyond: how many pairs are farther apart than ``max_distance``, and left out.
        shape: of the batch, ``(examples, positions)``.
        max_distance: largest distance, in tokens.
    """

    example: Int[Tensor, "pair"]
    query: Int[Tensor, "pair"]
    key: Int[Tensor, "pair"]
    cell: Int[Tensor, "pair"]
    beyond: int
    shape: tuple[int, int]
    max_distance: int

    @classmethod
    def from_words(cls, words: Int[Tensor, "batch pos"], topics: WordTopics, max_distance: int) -> DistancePairs:
        """Return the pairs of a batch of words.

        Raises:
            InputError: for a word that is not among the topics.
        """
        row = topics.rows_of(words)
        real = row >= 0
        differ = (real[:, :, None] & real[:, None, :]) & (row[:, :, None] != row[:, None, :])
        pairs = differ.nonzero()
        is_near = (pairs[:, 1] - pairs[:, 2]).abs() <= max_distance
        example, query, key = pairs[is_near].T.contiguous()
        distance = (query - key).abs()
        group = topics.group.to(words.device)
        same = topics.meet(group[row[example, query]], group[row[example, key]])
        return cls(
            example=example,
            query=query,
            key=key,
            cell=torch.where(same, 0, max_distance) + distance - 1,
            beyond=int((~is_near).sum()),
            shape=(words.shape[0], words.shape[1]),
            max_distance=max_distance,
        )

    def pairs(self) -> Int[Tensor, "example 2 distance"]:
        """Return how many pairs there are of each example, bucket and distance."""
        n = self.shape[0]
        return torch.bincount(self._place, minlength=2 * n * self.max_distance).view(n, 2, self.max_distance)

    @cached_property
    def _place(self) -> Int[Tensor, "pair"]:
        """Return each pair's place in the table ``[example 2 distance]``, flattened."""
        return self.example * 2 * self.max_distance + self.cell

    def sums(
        self, patterns: Mapping[str, Float[Tensor, "batch _ query key"]]
    ) -> dict[str, Float[Tensor, "_ example 2 distance"]]:
        """Sum the attention at each site by head, example, bucket and distance."""
        n, n_pos = self.shape
        check_patterns(patterns, n, n_pos)
        sums = {}
        for site, pattern in patterns.items():
            n_heads = pattern.shape[1]
            flat = pattern.reshape(-1)
            of_first_head = (self.example * n_heads * n_pos + self.query) * n_pos + self.key
            by_head = []
            for head in range(n_heads):
                attention = flat[head * n_pos**2 :].index_select(0, of_first_head)
                by_head.append(_added(2 * n * self.max_distance, self._place, attention))
            sums[site] = torch.stack(by_head).view(n_heads, n, 2, self.max_distance)
        return sums


def _added(size: int, place: Int[Tensor, "pair"], values: Float[Tensor, "pair"]) -> Float[Tensor, "{size}"]:
    """Return the sums of the values at each place. They have the same bits on every run, also on a GPU."""
    if values.device.type == "cpu":
        return torch.bincount(place, weights=values.double(), minlength=size).double()  # of no values: integers
    exact = exact_dtype(values.device)
    return values.new_zeros(size, dtype=exact).index_put_((place,), values.to(exact), accumulate=True)


def matched_means(
    total: Float[Tensor, "... example 2 distance"], pairs: Int[Tensor, "example 2 distance"]
) -> Float[Tensor, "... 2"]:
    """Return the mean attention of both buckets over the same documents and distances.

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
    """Return the mean attention of both buckets over the same documents at any distance, as ``TopicAttention`` does."""
    return matched_means(total.sum(dim=-1, keepdim=True), pairs.sum(dim=-1, keepdim=True))


def matched_sums(
    total: Float[Tensor, "... example 2 distance"], pairs: Int[Tensor, "example 2 distance"]
) -> tuple[Float[Tensor, "... example 2"], Float[Tensor, "example"]]:
    """Sum the weighted means of both buckets over each example's distances, and sum the weights."""
    weight = pair_weight(pairs[..., 0, :], pairs[..., 1, :])
    share = weight[..., None, :] / pairs.clamp(min=1)
    return (total * share).sum(dim=-1), weight.sum(dim=-1)
