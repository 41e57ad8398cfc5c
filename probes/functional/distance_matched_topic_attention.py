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

from probes.functional.topic_attention import WordTopics, exact_dtype, pair_weight
from tasks import InputError

DIFFERENT_WORDS = ("same_topic", "different_topic")


@dataclass(frozen=True)
class DistancePairs:
    """The ordered (query, key) pairs of one batch whose words differ and both have a topic.

    Attributes:
        example, query, key: ``[n]`` where each pair stands.
        cell: ``[n]`` its place in the ``2 x max_distance`` table of buckets and distances.
        beyond: how many pairs stand farther apart than ``max_distance``, and are not among these.
        shape: of the batch, ``(examples, positions)``.
        max_distance: largest distance, in tokens.
    """

    example: Int[Tensor, "n"]
    query: Int[Tensor, "n"]
    key: Int[Tensor, "n"]
    cell: Int[Tensor, "n"]
    beyond: int
    shape: tuple[int, int]
    max_distance: int

    @classmethod
    def from_words(cls, words: Int[Tensor, "batch pos"], topics: WordTopics, max_distance: int) -> DistancePairs:
        """Raises ``InputError`` for a word that is not among the topics."""
        if bool((words >= len(topics.row)).any()):
            raise InputError(
                f"the batch has a word {int(words.max())}, but topics are given for {len(topics.row)} words; "
                "give one row per word, in the same numbering"
            )
        row = torch.where(words >= 0, topics.row.to(words.device)[words.clamp(min=0)], -1)
        real = row >= 0
        example, query, key = ((real[:, :, None] & real[:, None, :]) & (row[:, :, None] != row[:, None, :])).nonzero(
            as_tuple=True
        )
        distance = (query - key).abs()
        near = distance <= max_distance
        beyond = int((~near).sum())
        example, query, key, distance = (x[near] for x in (example, query, key, distance))
        group = topics.group.to(words.device)
        same = topics.meet(group[row[example, query]], group[row[example, key]])
        cell = torch.where(same, 0, max_distance) + distance - 1
        return cls(example, query, key, cell, beyond, (words.shape[0], words.shape[1]), max_distance)

    def pairs(self) -> Int[Tensor, "example 2 distance"]:
        """How many pairs there are of each example, bucket and distance."""
        n = self.shape[0]
        return torch.bincount(self._place, minlength=2 * n * self.max_distance).view(n, 2, self.max_distance)

    @cached_property
    def _place(self) -> Int[Tensor, "n"]:
        """In the table ``[example 2 distance]``, flattened."""
        return self.example * 2 * self.max_distance + self.cell

    def sums(
        self, patterns: Mapping[str, Float[Tensor, "batch head query key"]]
    ) -> dict[str, Float[Tensor, "head example 2 distance"]]:
        """Sum the attention at each site by head, example, bucket and distance."""
        sums = {}
        n, pos = self.shape
        size = 2 * n * self.max_distance
        for site, pattern in patterns.items():
            if pattern.ndim != 4 or (pattern.shape[0], *pattern.shape[2:]) != (n, pos, pos):
                raise InputError(
                    f"an activation has shape {tuple(pattern.shape)}; expected attention patterns "
                    "[batch head query key]: measure at attention_pattern()"
                )
            heads, flat = pattern.shape[1], pattern.reshape(-1)
            where = (self.example * heads * pos + self.query) * pos + self.key  # of the first head
            rows = [_added(size, self._place, flat[head * pos * pos :].index_select(0, where)) for head in range(heads)]
            sums[site] = torch.stack(rows).view(heads, n, 2, self.max_distance)
        return sums


def _added(size: int, place: Tensor, values: Tensor) -> Tensor:
    """``[size]`` the sums of the values at each place. The same bits on every run, also on a GPU."""
    if values.device.type == "cpu":
        return torch.bincount(place, weights=values.double(), minlength=size).double()  # of no values: integers
    exact = exact_dtype(values.device)
    return values.new_zeros(size, dtype=exact).index_put_((place,), values.to(exact), accumulate=True)


def matched_means(
    total: Float[Tensor, "... example 2 distance"], pairs: Int[Tensor, "example 2 distance"]
) -> Float[Tensor, "... 2"]:
    """Mean attention of both buckets over the same documents and distances.

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
    """Mean attention of both buckets over the same documents, whatever the distances, as ``TopicAttention`` has it."""
    return matched_means(total.sum(dim=-1, keepdim=True), pairs.sum(dim=-1, keepdim=True))


def matched_sums(
    total: Float[Tensor, "... example 2 distance"], pairs: Int[Tensor, "example 2 distance"]
) -> tuple[Float[Tensor, "... example 2"], Float[Tensor, "example"]]:
    """Sum the weighted means of both buckets over each example's distances, and sum the weights."""
    weight = pair_weight(pairs[..., 0, :], pairs[..., 1, :])
    share = weight[..., None, :] / pairs.clamp(min=1)
    return (total * share).sum(dim=-1), weight.sum(dim=-1)
