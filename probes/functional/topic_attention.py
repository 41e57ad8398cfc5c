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

from probes.functional.arrays import Array, computed_in_torch
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
    def from_topics(cls, topics: object) -> WordTopics:
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
    """Attention summed over ordered (query, key) pairs of a batch, and compared within each document.

    Attributes:
        sum: ``[head 3]`` float64, by ``BUCKETS``.
        pairs: ``[3]`` int64, how many pairs.
        within: ``[head 2 labelling]`` the mean of a document's same-topic and of its different-topic pairs, times the
            document's weight, summed over documents: for the topics as they are, then under each relabelling.
        weight: ``[labelling]`` the sum of those weights.
        documents: ``[2]`` int64, how many documents have pairs of different words, and how many have both kinds.
    """

    sum: Float[Array, "head 3"]
    pairs: Int[Array, "3"]
    within: Float[Array, "head 2 labelling"]
    weight: Float[Array, "labelling"]
    documents: Int[Array, "2"]

    @property
    def within_mean(self) -> Float[Array, "head 2"]:
        """Mean attention over same-topic and over different-topic pairs of the same documents; NaN for none."""
        return self.within[..., 0] / self.weight[0]


def pair_weight(n_same: Tensor, n_different: Tensor) -> Float[Tensor, "..."]:
    """Return the Mantel-Haenszel weight of strata with these numbers of pairs: 0 where one of them is 0.

    Example:
        >>> pair_weight(torch.tensor([2, 6, 0]), torch.tensor([2, 3, 5])).tolist()
        [1.0, 2.0, 0.0]
    """
    exact = exact_dtype(n_same.device)
    return n_same.to(exact) * n_different.to(exact) / (n_same + n_different).clamp(min=1)


def exact_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@computed_in_torch("pattern", "words")
def topic_attention(
    pattern: Float[Array, "batch head query key"],
    words: Int[Array, "batch pos"],
    topics: object,
) -> PairSums:
    """Attention between words of the same topic and of different topics, summed over a batch.

    Takes tensors or NumPy arrays, and returns the same kind.

    Every ordered (query, key) pair of positions whose words both have a topic falls into one bucket:
    ``same_word`` (the diagonal included), ``same_topic`` (a different word), ``different_topic``. Pairs
    with any other position are left out, and nothing is renormalised. Cost: the positions that count,
    squared.

    ``sum / pairs`` is the plain average over the pairs of all documents. It compares documents of few topics with
    documents of many: where these differ in length, it differs from bucket to bucket whatever attention does.
    ``within_mean`` compares the two buckets in each document, and weighs the document by
    ``n_same n_different / (n_same + n_different)`` in both.

    Args:
        pattern: attention probabilities, rows sum to 1 over keys; one document per example.
        words: each position's word; negative: left out.
        topics: ``[n_words]`` integer topic of each word (negative: none), or ``[n_words n_topics]``
            membership; two words share a topic when their sets meet.

    Raises:
        InputError: for topics of another form, or a word that is not among them.

    Example:
        >>> pattern = torch.tensor([[[[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]]]])
        >>> sums = topic_attention(pattern, torch.tensor([[0, 1, 2]]), torch.tensor([0, 0, 1]))
        >>> (sums.sum / sums.pairs)[0].round(decimals=3).tolist()
        [0.533, 0.25, 0.225]
        >>> sums.within_mean[0].round(decimals=3).tolist()  # the same, for one document
        [0.25, 0.225]
    """
    return PairTable.from_words(words, WordTopics.from_topics(topics)).sums({"": pattern})[""]


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
    def from_words(cls, words: Tensor, topics: WordTopics, permuted: Tensor | None = None) -> PairTable:
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
        exact = exact_dtype(device)
        heads = [pattern.shape[1] for pattern in patterns.values()]
        columns = 3 + len(self.permuted)
        total = torch.zeros(sum(heads), 3, dtype=exact, device=device)
        within = torch.zeros(sum(heads), 2, columns - 2, dtype=exact, device=device)
        pairs = torch.zeros(n_examples, columns, dtype=torch.int64, device=device)
        step = max(1, _LARGEST // max(1, max(n * n, sum(heads)) * columns))
        for start in range(0, n_examples if n else 0, step):
            here = slice(start, start + step)
            bucket = self._buckets(here).flatten(2).permute(1, 2, 0)  # [examples pairs columns]
            parts = [self._counting(pattern[here], here).flatten(2) for pattern in patterns.values()]
            each = torch.cat(parts, dim=1).to(exact) @ bucket.to(exact)  # [examples heads columns]
            pairs[here] = bucket.sum(dim=1)
            total += each[..., :3].sum(dim=0)
            within += _within(each, pairs[here])
        weight, documents = _document_weights(pairs)
        split = zip(patterns, torch.split(total, heads), torch.split(within, heads), strict=True)
        counts = pairs[:, :3].sum(dim=0)
        return {site: PairSums(part, counts, mean, weight.sum(dim=0), documents) for site, part, mean in split}

    def _counting(self, pattern: Tensor, here: slice) -> Float[Tensor, "examples head n n"]:
        """Attention between the positions that count, and 0 elsewhere, where a model may give NaN."""
        place, real = self.place[here], self.real[here]
        if place.shape[1] < self.n_pos:
            pattern = torch.take_along_dim(pattern, place[:, None, :, None], dim=2)
            pattern = torch.take_along_dim(pattern, place[:, None, None, :], dim=3)
        if not bool(real.all()):
            pattern = torch.where(real[:, None, :, None] & real[:, None, None, :], pattern, 0)
        return pattern

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


def _kinds(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Split ``[... 3+n]`` into same-topic and different-topic ``[... 1+n]``: as they are, then for each relabelling.

    A relabelling moves pairs between these two buckets; what they hold together stays.
    """
    relabelled = columns[..., 3:]
    both = columns[..., 1:2] + columns[..., 2:3]
    return torch.cat([columns[..., 1:2], relabelled], dim=-1), torch.cat([columns[..., 2:3], both - relabelled], dim=-1)


def _document_weights(
    pairs: Int[Tensor, "examples columns"],
) -> tuple[Float[Tensor, "examples labelling"], Int[Tensor, "2"]]:
    """Return each document's weight under each labelling, and how many documents have pairs and have both kinds.

    A document has the same weight under every relabelling that leaves it both kinds of pairs: if the relabelled
    counts gave the weights, documents of one topic would not count in the ratio but would in its chance interval.
    """
    n_same, n_different = _kinds(pairs)
    weight = pair_weight(n_same[:, :1], n_different[:, :1])
    documents = torch.stack([(n_same[:, 0] + n_different[:, 0] > 0).sum(), (weight > 0).sum()])
    return torch.where((n_same > 0) & (n_different > 0), weight, 0.0), documents


def _within(
    total: Float[Tensor, "examples head columns"], pairs: Int[Tensor, "examples columns"]
) -> Float[Tensor, "head 2 labelling"]:
    """Sum the weighted means of both kinds of pairs over documents."""
    weight = _document_weights(pairs)[0]
    shares = [weight / number.clamp(min=1) for number in _kinds(pairs)]
    kinds = _kinds(total)
    return torch.stack([torch.einsum("ehr,er->hr", *each) for each in zip(kinds, shares, strict=True)], dim=1)
