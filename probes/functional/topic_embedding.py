"""Word vectors and word-by-word matrices, sorted by topic: closed forms over all pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch
from probes.functional.word_topics import WordTopics
from tasks import InputError

SIMILARITIES = ("cosine", "dot")
_MAX_NUMBERS_AT_ONCE = 2**22  # numbers in the largest intermediate tensor
_MAX_GRAM_ENTRIES = 2**25


@dataclass(frozen=True)
class TopicSimilarity:
    """Similarity of word vectors within a topic and between topics.

    Attributes:
        sum: ``SIMILARITIES`` by (one topic, different topics), over ordered pairs, in float64.
        pairs: numbers of pairs within a topic and between topics.

    Example:
        >>> similarity = topic_similarity(torch.eye(3), torch.tensor([0, 0, 1]))
        >>> similarity.difference.tolist(), similarity.pairs.tolist()
        ([0.0, 0.0], [2, 4])
    """

    sum: Float[Array, "2 *draw 2"]
    pairs: Int[Array, "2"]

    @property
    def mean(self) -> Float[Array, "2 *draw 2"]:
        """Return ``sum / pairs``, or NaN without pairs."""
        return _mean(self.sum, self.pairs)

    @property
    def ratio(self) -> Float[Array, "2 *draw"]:
        """Return same topic over different topic, by ``SIMILARITIES``. It explodes when the denominator nears 0."""
        mean = self.mean
        return mean[..., 0] / mean[..., 1]

    @property
    def difference(self) -> Float[Array, "2 *draw"]:
        """Return same topic minus different topic, by ``SIMILARITIES``."""
        mean = self.mean
        return mean[..., 0] - mean[..., 1]


@computed_in_torch(not_finite=["sums"])
def _mean(sums: Float[Array, "*batch 2"], pairs: Int[Array, "2"]) -> Float[Array, "*batch 2"]:
    return torch.where(pairs > 0, sums / pairs, torch.nan)


@computed_in_torch()
def topic_similarity(vectors: Float[Array, "word dim"], topics: object, self_pairs: bool = False) -> TopicSimilarity:
    """Return the mean cosine and dot product over all pairs of words, within a topic and between topics.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    All pairs ``i != j`` of words that have a topic, not sampled pairs. In closed form: the dot products of all pairs
    within a group, ``i = j`` included, sum to the squared length of the group's summed vector. Cost: O(n d +
    groups^2 d).

    Args:
        vectors: a vector for each word.
        topics: as in ``topic_attention``, one row per vector.
        self_pairs: also count ``i = j`` as within a topic, as the paper's published code does.

    Raises:
        InputError: when topics and vectors differ in number, or topics has another form.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        >>> similarity = topic_similarity(vectors, torch.tensor([0, 0, 1, 1]))
        >>> similarity.mean.tolist(), similarity.pairs.tolist()
        ([[1.0, 0.0], [2.5, 0.0]], [4, 8])
    """
    words = WordTopics.from_topics(topics)
    if len(words.row) != len(vectors):
        raise InputError(f"there are {len(vectors)} vectors but topics for {len(words.row)} words; give one row each")
    with_topic = vectors[(words.row >= 0).to(vectors.device)].cpu()
    return TopicSimilarityGroups(words.group, words, self_pairs).similarity(with_topic)


@dataclass(frozen=True)
class TopicSimilarityGroups:
    """Groups of words, to compute ``topic_similarity`` for many vectors or many orders of them.

    Attributes:
        group: group of each word.
        topics: topics that define the groups.
        self_pairs: as in ``topic_similarity``.
    """

    group: Int[Tensor, "word"]
    topics: WordTopics
    self_pairs: bool = False

    @cached_property
    def pairs(self) -> Int[Tensor, "2"]:
        """Return the numbers of ordered pairs within a topic and between topics."""
        count = torch.bincount(self.group, minlength=len(self.topics.same))
        product = count[:, None] * count[None, :]
        same = product[self.topics.same].sum()
        return torch.stack([same if self.self_pairs else same - len(self.group), product.sum() - same])

    def similarity(self, vectors: Float[Tensor, "word dim"]) -> TopicSimilarity:
        """Return the similarity of the vectors as they are."""
        totals = [self._totals(x, self._same_by_group(x)) for x in _unit_and_whole(vectors)]
        return TopicSimilarity(torch.stack(totals), self.pairs)

    def null(self, vectors: Float[Tensor, "word dim"], n: int, seed: int) -> TopicSimilarity:
        """Return the similarities of the vectors permuted among the words ``n`` times."""
        places = np.broadcast_to(np.arange(len(vectors)), (n, len(vectors)))
        orders = torch.from_numpy(np.random.default_rng([seed, len(vectors)]).permuted(places, axis=1))
        totals = [self._totals_in_orders(x, orders) for x in _unit_and_whole(vectors)]
        return TopicSimilarity(torch.stack(totals), self.pairs)

    def _totals_in_orders(
        self, x: Float[Tensor, "word dim"], orders: Int[Tensor, "draw word"]
    ) -> Float[Tensor, "draw 2"]:
        """Return the totals of the vectors in each order.

        Overlapping groups may be as many as words: then the pairs that meet are less work.
        """
        gram = None
        if not self.topics.disjoint and len(x) ** 2 <= _MAX_GRAM_ENTRIES:
            gram = x @ x.T
        squares = x.square().sum()
        same = x.new_empty(len(orders))
        for draw, order in enumerate(orders):
            if self.topics.disjoint:
                same[draw] = self._same_by_group(x[order])
            else:
                same[draw] = squares + 2 * self._sum_over_meeting(x, order, gram)
        return self._totals(x, same)

    def _totals(self, x: Float[Tensor, "word dim"], same: Float[Tensor, "*draw"]) -> Float[Tensor, "*draw 2"]:
        """Return the sums over both kinds of pairs, from the sum over same-topic pairs, ``i = j`` included."""
        of_selves = 0.0 if self.self_pairs else x.square().sum()
        return torch.stack([same - of_selves, x.sum(dim=0).square().sum() - same], dim=-1)

    def _same_by_group(self, x: Float[Tensor, "word dim"]) -> Float[Tensor, ""]:
        """Return the sum over same-topic pairs, ``i = j`` included, from sums over groups."""
        sums = x.new_zeros(len(self.topics.same), x.shape[1]).index_add_(0, self.group, x)
        return sums.square().sum() if self.topics.disjoint else (sums @ sums.T)[self.topics.same].sum()

    def _sum_over_meeting(
        self, x: Float[Tensor, "word dim"], order: Int[Tensor, "word"], gram: Float[Tensor, "word word"] | None
    ) -> Float[Tensor, ""]:
        """Return the sum of dot products over the pairs ``i < j`` that share a topic, in parts if there is no Gram."""
        first, second = order[self._meeting]
        if gram is not None:
            return gram[first, second].sum()
        at_once = max(1, _MAX_NUMBERS_AT_ONCE // x.shape[1])
        parts = zip(torch.split(first, at_once), torch.split(second, at_once), strict=True)
        return torch.stack([(x[i] * x[j]).sum() for i, j in parts]).sum()

    @cached_property
    def _meeting(self) -> Int[Tensor, "2 pair"]:
        """Return the places of the pairs ``i < j`` that share a topic."""
        return torch.triu(self.topics.same[self.group][:, self.group], 1).nonzero().T


def _unit_and_whole(vectors: Float[Tensor, "word dim"]) -> tuple[Float[Tensor, "word dim"], Float[Tensor, "word dim"]]:
    """Return vectors of length one, whose dot products are cosines, and the vectors themselves."""
    rows = vectors.double()
    return rows / rows.norm(dim=1, keepdim=True), rows
