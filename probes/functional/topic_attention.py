"""Attention between words of the same topic and of different topics, in one vectorised pass.

The measurement of Li, Li & Risteski, "How Do Transformers Learn Topic Structure" (ICML 2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks import InputError

_EXPECTED = "expected one integer per word (negative: none) or a [words topics] table of true and false"
BUCKETS = ("same_word", "same_topic", "different_topic")
_LARGEST = 2**22  # elements of the largest intermediate tensor


@dataclass(frozen=True)
class WordTopics:
    """Which words share a topic. Words with the same set of topics form a group.

    Attributes:
        row: ``[n_words]`` each word's place among the words that have a topic, -1 for those that have none.
        group: ``[n_rows]`` group of each of those.
        same: ``[n_groups n_groups]`` bool: the two sets of topics meet.
    """

    row: Int[Tensor, "n_words"]
    group: Int[Tensor, "n_rows"]
    same: Bool[Tensor, "n_groups n_groups"]

    @classmethod
    def of(cls, topics: object) -> WordTopics:
        """From ``[n_words]`` integer topics (negative: none) or ``[n_words n_topics]`` membership.

        Raises:
            InputError: for another shape or type, or fewer than two topics.
        """
        try:
            table = torch.as_tensor(topics).cpu()
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"topics is a {type(topics).__name__} that is not a table of numbers; {_EXPECTED}"
            ) from None
        odd = table.ndim == 2 and table.dtype is not torch.bool and bool(((table != 0) & (table != 1)).any())
        if table.ndim not in (1, 2) or table.is_floating_point() or odd:
            raise InputError(f"topics is {table.dtype} of shape {tuple(table.shape)}; {_EXPECTED}")
        if table.ndim == 1:
            has = table >= 0
            found, group = torch.unique(table[has], return_inverse=True)
            n_topics, same = len(found), torch.eye(len(found), dtype=torch.bool)
        else:
            members = table.bool()
            has, n_topics = members.any(dim=1), int(members.any(dim=0).sum())
            sets, group = torch.unique(members[has], dim=0, return_inverse=True)
            same = sets.float() @ sets.float().T > 0
        if n_topics < 2:
            raise InputError(f"topics has {n_topics or 'no'} topic{'' if n_topics else 's'}; expected at least 2")
        row = torch.where(has, has.cumsum(0) - 1, -1)
        return cls(row, group, same)

    def permuted(self, n: int, seed: int) -> Int[Tensor, "n n_rows"]:
        """Groups handed out anew to the words that have one, ``n`` times."""
        rng = np.random.default_rng([seed, len(self.group)])
        groups = np.broadcast_to(self.group.numpy(), (n, len(self.group)))
        return torch.from_numpy(rng.permuted(groups, axis=1))

    def meet(self, first: Int[Tensor, "..."], second: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Whether two groups share a topic; broadcasts."""
        if self.disjoint:
            return first == second
        return self.same.to(first.device)[first, second]

    @cached_property
    def disjoint(self) -> bool:
        """Whether every word has one topic, so that groups are topics."""
        return bool((self.same == torch.eye(len(self.same), dtype=torch.bool)).all())


@dataclass(frozen=True)
class PairSums:
    """Attention summed over ordered (query, key) pairs.

    Attributes:
        sum: ``[head 3]`` float64, by ``BUCKETS``.
        pairs: ``[3]`` int64, how many pairs.
        null_sum: ``[head n]`` the sum over same-topic pairs under each relabelling.
        null_pairs: ``[n]`` how many.
    """

    sum: Float[Tensor, "head 3"]
    pairs: Int[Tensor, "3"]
    null_sum: Float[Tensor, "head n"]
    null_pairs: Int[Tensor, "n"]


def topic_attention(
    pattern: Float[Tensor, "batch head query key"],
    words: Int[Tensor, "batch pos"],
    topics: object,
) -> PairSums:
    """Attention between words of the same topic and of different topics, summed over a batch.

    Every ordered (query, key) pair of positions whose words both have a topic falls into one bucket:
    ``same_word`` (the diagonal included), ``same_topic`` (a different word), ``different_topic``. Pairs
    with any other position are left out, and nothing is renormalised. Cost: the positions that count,
    squared.

    Args:
        pattern: attention probabilities, rows sum to 1 over keys.
        words: each position's word; negative: left out.
        topics: ``[n_words]`` integer topic of each word (negative: none), or ``[n_words n_topics]``
            membership; two words share a topic when their sets meet.

    Returns:
        Sums and pair counts; the mean attention is ``sum / pairs``.

    Raises:
        InputError: for topics of another form, or a word that is not among them.

    Example:
        >>> pattern = torch.tensor([[[[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]]]])
        >>> found = topic_attention(pattern, torch.tensor([[0, 1, 2]]), torch.tensor([0, 0, 1]))
        >>> (found.sum / found.pairs)[0].round(decimals=3).tolist()
        [0.533, 0.25, 0.225]
    """
    return PairTable.of(words, WordTopics.of(topics)).sums({"": pattern})[""]


@dataclass(frozen=True)
class PairTable:
    """The pairs of one batch, sorted into buckets once for all layers.

    Attributes:
        place: ``[batch n]`` the positions that count, filled up with others.
        real: ``[batch n]`` which of them do count.
        word: ``[batch n]`` their words, as rows of the topics.
        topics: whose groups.
        permuted: ``[n_permutations n_rows]`` relabelled groups.
        n_pos: length of the sequences.
    """

    place: Int[Tensor, "batch n"]
    real: Bool[Tensor, "batch n"]
    word: Int[Tensor, "batch n"]
    topics: WordTopics
    permuted: Int[Tensor, "n_permutations n_rows"]
    n_pos: int

    @classmethod
    def of(cls, words: Tensor, topics: WordTopics, permuted: Tensor | None = None) -> PairTable:
        """Raises ``InputError`` for a word that is not among the topics."""
        if bool((words >= len(topics.row)).any()):
            raise InputError(
                f"the batch has a word {int(words.max())}, but topics are given for {len(topics.row)} words; "
                "give one row per word, in the same numbering"
            )
        row = torch.where(words >= 0, topics.row.to(words.device)[words.clamp(min=0)], -1)
        real = row >= 0
        n = int(real.sum(dim=1).max()) if len(real) else 0
        place = torch.arange(n, device=words.device).expand(len(words), n)
        if n < words.shape[1]:
            place = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)[:, :n]
        none = torch.empty(0, len(topics.group), dtype=torch.int64)
        relabelled = (none if permuted is None else permuted).to(words.device)
        return cls(place, real.gather(1, place), row.gather(1, place).clamp(min=0), topics, relabelled, words.shape[1])

    def sums(self, patterns: Mapping[str, Float[Tensor, "batch head query key"]]) -> dict[str, PairSums]:
        """Sort the attention of each layer."""
        for pattern in patterns.values():
            if pattern.ndim != 4 or (pattern.shape[0], *pattern.shape[2:]) != (len(self.place), self.n_pos, self.n_pos):
                raise InputError(
                    f"an activation has shape {tuple(pattern.shape)}; expected attention patterns "
                    "[batch head query key]: measure at attention_pattern()"
                )
        device, (n_examples, n) = self.place.device, self.place.shape
        exact = torch.float32 if device.type == "mps" else torch.float64
        heads = [pattern.shape[1] for pattern in patterns.values()]
        columns = 3 + len(self.permuted)
        total = torch.zeros(sum(heads), columns, dtype=exact, device=device)
        pairs = torch.zeros(columns, dtype=torch.int64, device=device)
        step = max(1, _LARGEST // max(1, n * n * columns))
        for start in range(0, n_examples if n else 0, step):
            here = slice(start, start + step)
            bucket = self._buckets(here).flatten(1)
            parts = [self._counting(pattern[here], here).flatten(1) for pattern in patterns.values()]
            total += torch.cat(parts).to(exact) @ bucket.T.to(exact)
            pairs += bucket.sum(dim=1)
        split = zip(patterns, torch.split(total, heads), strict=True)
        return {site: PairSums(part[:, :3], pairs[:3], part[:, 3:], pairs[3:]) for site, part in split}

    def _counting(self, pattern: Tensor, here: slice) -> Float[Tensor, "head examples n n"]:
        """Attention between the positions that count, and 0 elsewhere, where a model may give NaN."""
        place, real = self.place[here], self.real[here]
        if place.shape[1] < self.n_pos:
            pattern = torch.take_along_dim(pattern, place[:, None, :, None], dim=2)
            pattern = torch.take_along_dim(pattern, place[:, None, None, :], dim=3)
        if not bool(real.all()):
            pattern = torch.where(real[:, None, :, None] & real[:, None, None, :], pattern, 0)
        return pattern.transpose(0, 1)

    def _buckets(self, here: slice) -> Bool[Tensor, "columns examples n n"]:
        """A row for each bucket, and one for each relabelling of the same-topic bucket."""
        word, real = self.word[here], self.real[here]
        group = self.topics.group.to(word.device)[word]
        pair = real[:, :, None] & real[:, None, :]
        same_word = word[:, :, None] == word[:, None, :]
        other = pair & ~same_word
        same_topic = other & self._meet(group)
        buckets = torch.stack([pair & same_word, same_topic, other & ~same_topic])
        return buckets if not len(self.permuted) else torch.cat([buckets, self._meet(self.permuted[:, word]) & other])

    def _meet(self, group: Tensor) -> Bool[Tensor, "... n n"]:
        """Which pairs of groups share a topic."""
        return self.topics.meet(group[..., :, None], group[..., None, :])
