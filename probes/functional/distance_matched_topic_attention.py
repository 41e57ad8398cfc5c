"""Attention within topics against attention between topics, at equal distance.

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

from probes.functional.topic_attention import WordTopics
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
    def of(cls, words: Int[Tensor, "batch pos"], topics: WordTopics, max_distance: int) -> DistancePairs:
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
    ) -> dict[str, tuple[Float[Tensor, "head 2 distance"], Float[Tensor, "example 2 distance"]]]:
        """At each site the attention summed by head, bucket and distance, and its mean over heads by example."""
        found = {}
        for site, pattern in patterns.items():
            n, pos = self.shape
            if pattern.ndim != 4 or (pattern.shape[0], *pattern.shape[2:]) != (n, pos, pos):
                raise InputError(
                    f"an activation has shape {tuple(pattern.shape)}; expected attention patterns "
                    "[batch head query key]: measure at attention_pattern()"
                )
            heads, flat = pattern.shape[1], pattern.reshape(-1)
            where = (self.example * heads * pos + self.query) * pos + self.key  # of the first head
            size = 2 * n * self.max_distance
            rows = [_added(size, self._place, flat[head * pos * pos :].index_select(0, where)) for head in range(heads)]
            each = torch.stack(rows).view(heads, n, 2, self.max_distance)
            found[site] = (each.sum(dim=1), each.mean(dim=0))
        return found


def _added(size: int, place: Tensor, values: Tensor) -> Tensor:
    """``[size]`` the sums of the values at each place. The same bits on every run, also on a GPU."""
    if values.device.type == "cpu":
        return torch.bincount(place, weights=values.double(), minlength=size).double()  # of no values: integers
    exact = torch.float32 if values.device.type == "mps" else torch.float64
    return values.new_zeros(size, dtype=exact).index_put_((place,), values.to(exact), accumulate=True)


def matched_means(
    total: Float[Tensor, "... 2 distance"], pairs: Float[Tensor, "... 2 distance"]
) -> Float[Tensor, "... 2"]:
    """Mean attention of both buckets over the same distances.

    Each distance ``d`` at which both buckets have pairs counts with ``n_s(d) n_d(d) / (n_s(d) + n_d(d))``, for
    both alike. Where attention is some function of distance, times a factor within topics, the ratio of the two is
    that factor, whatever the distances at which words of a topic stand.

    Args:
        total: summed attention, by bucket (same topic, different topic) and distance.
        pairs: how many pairs, broadcast to ``total``.

    Returns:
        The two means; NaN where no distance has both.

    Example:
        >>> total = torch.tensor([[6.0, 4.0], [2.0, 8.0]], dtype=torch.float64)
        >>> matched_means(total, torch.tensor([[2, 4], [1, 8]])).round(decimals=6).tolist()  # 3 and 1, against 2 and 1
        [1.4, 1.2]
    """
    number = pairs.to(total.dtype)
    n_same, n_other = number[..., 0, :], number[..., 1, :]
    both = (n_same > 0) & (n_other > 0)
    weight = torch.where(both, n_same * n_other / (n_same + n_other), 0.0)
    mean = torch.where(both[..., None, :], total / number, 0.0)
    return (mean * weight[..., None, :]).sum(dim=-1) / weight.sum(dim=-1)[..., None]


def pooled_means(
    total: Float[Tensor, "... 2 distance"], pairs: Float[Tensor, "... 2 distance"]
) -> Float[Tensor, "... 2"]:
    """Mean attention of both buckets over all their pairs; NaN where there are none."""
    return total.sum(dim=-1) / pairs.to(total.dtype).sum(dim=-1)
