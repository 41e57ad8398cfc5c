"""Word vectors and word-by-word matrices, sorted by topic: closed forms over all pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch
from probes.functional.topic_attention import WordTopics
from tasks import InputError

SIMILARITIES = ("cosine", "dot")
_LARGEST = 2**22  # elements of the largest intermediate tensor
_LARGEST_GRAM = 2**25


@dataclass(frozen=True)
class TopicSimilarity:
    """Similarity of word vectors of the same topic and of different topics.

    Attributes:
        sum: ``[2 2]`` float64, ``SIMILARITIES`` by (same topic, different topic), over ordered pairs.
        pairs: ``[2]`` int64, how many.
    """

    sum: Float[Array, "2 2"]
    pairs: Int[Array, "2"]

    @property
    def mean(self) -> Float[Array, "2 2"]:
        """``sum / pairs``; NaN without pairs."""
        return _mean(self.sum, self.pairs)

    @property
    def ratio(self) -> Float[Array, "2"]:
        """Same topic over different topic, by ``SIMILARITIES``. Explodes when the denominator nears 0."""
        return self.mean[..., 0] / self.mean[..., 1]

    @property
    def difference(self) -> Float[Array, "2"]:
        """Same topic minus different topic, by ``SIMILARITIES``."""
        return self.mean[..., 0] - self.mean[..., 1]


@computed_in_torch("sums", "pairs")
def _mean(sums: Float[Array, "*batch 2"], pairs: Int[Array, "2"]) -> Float[Array, "*batch 2"]:
    return torch.where(pairs > 0, sums / pairs, torch.nan)


@computed_in_torch("vectors")
def topic_similarity(vectors: Float[Array, "n d"], topics: object, self_pairs: bool = False) -> TopicSimilarity:
    """Mean cosine and dot product over all pairs of words of the same topic, and of different topics.

    Takes tensors or NumPy arrays, and returns the same kind.

    All pairs ``i != j`` of words that have a topic, in closed form from sums over groups of words, not
    from sampled pairs. Cost: O(n d + groups^2 d).

    Args:
        vectors: a vector for each word.
        topics: as in ``topic_attention``, one row per vector.
        self_pairs: also count ``i = j`` as the same topic, as the paper's published code does.

    Raises:
        InputError: when topics and vectors differ in number, or topics has another form.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        >>> found = topic_similarity(vectors, torch.tensor([0, 0, 1, 1]))
        >>> found.mean.tolist(), found.pairs.tolist()
        ([[1.0, 0.0], [2.5, 0.0]], [4, 8])
    """
    known = WordTopics.from_topics(topics)
    if len(known.row) != len(vectors):
        raise InputError(f"there are {len(vectors)} vectors but topics for {len(known.row)} words; give one row each")
    kept = vectors[(known.row >= 0).to(vectors.device)].cpu()
    return GroupSums(known.group, known, self_pairs).similarity(kept)


@dataclass(frozen=True)
class GroupSums:
    """``topic_similarity`` of words sorted into groups, for many vectors or many orders of them."""

    group: Int[Tensor, "n"]
    topics: WordTopics
    self_pairs: bool = False

    @cached_property
    def pairs(self) -> Int[Tensor, "2"]:
        """How many ordered pairs of the same topic, and of different topics."""
        count = torch.bincount(self.group, minlength=len(self.topics.same))
        product = count[:, None] * count[None, :]
        same = product[self.topics.same].sum()
        return torch.stack([same if self.self_pairs else same - len(self.group), product.sum() - same])

    def similarity(self, vectors: Float[Tensor, "n d"]) -> TopicSimilarity:
        """Of the vectors as they are."""
        totals = [self._totals(x, self._from_groups(x)) for x in _unit_and_whole(vectors)]
        return TopicSimilarity(torch.stack(totals), self.pairs)

    def null(self, vectors: Float[Tensor, "n d"], n: int, seed: int) -> TopicSimilarity:
        """Of the vectors handed out anew, ``n`` times: its sums are ``[2 n 2]``."""
        order = np.broadcast_to(np.arange(len(vectors)), (n, len(vectors)))
        orders = torch.from_numpy(np.random.default_rng([seed, len(vectors)]).permuted(order, axis=1))
        found = vectors.new_empty(2, n, 2, dtype=torch.float64)
        for i, x in enumerate(_unit_and_whole(vectors)):
            same = self._in_order(x)
            for j, o in enumerate(orders):
                found[i, j] = self._totals(x, same(o))
        return TopicSimilarity(found, self.pairs)

    def _totals(self, x: Tensor, same: Tensor) -> Float[Tensor, "2"]:
        """From the sum over same-topic pairs, ``i = j`` included."""
        own = 0.0 if self.self_pairs else x.square().sum()
        return torch.stack([same - own, x.sum(dim=0).square().sum() - same])

    def _from_groups(self, x: Tensor) -> Tensor:
        sums = x.new_zeros(len(self.topics.same), x.shape[1]).index_add_(0, self.group, x)
        return sums.square().sum() if self.topics.disjoint else (sums @ sums.T)[self.topics.same].sum()

    def _in_order(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """Order of the vectors to the sum over same-topic pairs. Overlapping groups may be as many as words:
        then the pairs that meet are less work."""
        if self.topics.disjoint:
            return lambda order: self._from_groups(x[order])
        first, second = self._meeting
        own = x.square().sum()
        if len(x) ** 2 <= _LARGEST_GRAM:
            gram = x @ x.T
            return lambda order: own + 2 * gram[order[first], order[second]].sum()
        step = max(1, _LARGEST // x.shape[1])

        def by_parts(order: Tensor) -> Tensor:
            parts = zip(torch.split(order[first], step), torch.split(order[second], step), strict=True)
            return own + 2 * torch.stack([(x[i] * x[j]).sum() for i, j in parts]).sum()

        return by_parts

    @cached_property
    def _meeting(self) -> tuple[Tensor, Tensor]:
        """Places of the pairs ``i < j`` that share a topic."""
        same = torch.triu(self.topics.same[self.group][:, self.group], 1).nonzero()
        return same[:, 0], same[:, 1]


def _unit_and_whole(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors of length one, whose dot products are cosines, and the vectors themselves."""
    rows = vectors.double()
    return rows / rows.norm(dim=1, keepdim=True), rows
