"""Which words share a topic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from tasks import InputError

_TOPICS_EXPECTED = "expected one integer per word (negative: none) or a [words topics] table of true and false"


@dataclass(frozen=True)
class WordTopics:
    """Which words share a topic. Words with equal sets of topics form a group.

    Attributes:
        row: each word's place among the words that have a topic, -1 for those that have none.
        group: group of each word that has a topic.
        same: whether the topics of two groups meet.
    """

    row: Int[Tensor, "word"]
    group: Int[Tensor, "row"]
    same: Bool[Tensor, "group group"]

    @classmethod
    def from_topics(cls, topics: object) -> WordTopics:
        """Return the groups of words from ``[word]`` integer topics (negative: none) or ``[word topic]`` membership.

        Raises:
            InputError: for another shape or type, or fewer than two topics.
        """
        table = _topic_table(topics)
        if table.ndim == 1:
            has_topic = table >= 0
            sets, group = torch.unique(table[has_topic], return_inverse=True)
            n_topics = len(sets)
            same = torch.eye(n_topics, dtype=torch.bool)
        else:
            members = table.bool()
            has_topic = members.any(dim=1)
            n_topics = int(members.any(dim=0).sum())
            sets, group = torch.unique(members[has_topic], dim=0, return_inverse=True)
            same = sets.float() @ sets.float().T > 0
        if n_topics < 2:
            count = "1 topic" if n_topics else "no topics"
            raise InputError(f"topics has {count}; expected at least 2")
        return cls(torch.where(has_topic, has_topic.cumsum(0) - 1, -1), group, same)

    def rows_of(self, words: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
        """Return each word's place among the words that have a topic; -1 for none and for words below 0.

        Raises:
            InputError: for a word that is not among the topics.
        """
        if bool((words >= len(self.row)).any()):
            raise InputError(
                f"the batch has a word {int(words.max())}, but topics are given for {len(self.row)} words; "
                "give one row per word, in the same numbering"
            )
        return torch.where(words >= 0, self.row.to(words.device)[words.clamp(min=0)], -1)

    def permuted(self, n: int, seed: int) -> Int[Tensor, "{n} row"]:
        """Return ``n`` times the groups, handed out anew to the words that have one."""
        rng = np.random.default_rng([seed, len(self.group)])
        groups = np.broadcast_to(self.group.numpy(), (n, len(self.group)))
        return torch.from_numpy(rng.permuted(groups, axis=1))

    def meet(self, first: Int[Tensor, "*#shape"], second: Int[Tensor, "*#shape"]) -> Bool[Tensor, "*#shape"]:
        """Return whether two groups share a topic; broadcasts."""
        if self.disjoint:
            return first == second
        return self.same.to(first.device)[first, second]

    @cached_property
    def disjoint(self) -> bool:
        """Return whether every word has one topic, so that groups are topics."""
        return bool((self.same == torch.eye(len(self.same), dtype=torch.bool)).all())


def _topic_table(topics: object) -> Shaped[Tensor, "..."]:
    """Return topics as a tensor of integers, one for each word, or of true and false."""
    try:
        table = torch.as_tensor(topics).cpu()
    except (TypeError, ValueError, RuntimeError):
        kind = type(topics).__name__
        raise InputError(f"topics is a {kind} that is not a table of numbers; {_TOPICS_EXPECTED}") from None
    is_odd = table.ndim == 2 and table.dtype is not torch.bool and bool(((table != 0) & (table != 1)).any())
    if table.ndim not in (1, 2) or table.is_floating_point() or table.is_complex() or is_odd:
        raise InputError(f"topics is {table.dtype} of shape {tuple(table.shape)}; {_TOPICS_EXPECTED}")
    return table
