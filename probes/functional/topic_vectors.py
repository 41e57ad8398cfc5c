"""Word vectors and word-by-word matrices, sorted by topic: closed forms over all pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.topics import WordTopics
from tasks import InputError

SIMILARITIES = ("cosine", "dot")
_LARGEST = 2**22  # elements of the largest intermediate tensor
_LARGEST_GRAM = 2**25


@dataclass(frozen=True)
class TopicSimilarity:
    """Similarity of word vectors of the same topic and of different topics.

    Attributes:
        mean: ``[2 2]`` float64, ``SIMILARITIES`` by (same topic, different topic). NaN without pairs.
        pairs: ``[2]`` int64, how many ordered pairs.
    """

    mean: Float[Tensor, "2 2"]
    pairs: Int[Tensor, "2"]

    @property
    def ratio(self) -> Float[Tensor, "2"]:
        """Same topic over different topic, by ``SIMILARITIES``. Explodes when the denominator nears 0."""
        return self.mean[:, 0] / self.mean[:, 1]

    @property
    def difference(self) -> Float[Tensor, "2"]:
        """Same topic minus different topic, by ``SIMILARITIES``."""
        return self.mean[:, 0] - self.mean[:, 1]


def topic_similarity(vectors: Float[Tensor, "n d"], topics: object, self_pairs: bool = False) -> TopicSimilarity:
    """Mean cosine and dot product over all pairs of words of the same topic, and of different topics.

    All pairs ``i != j`` of words that have a topic, in closed form from sums over groups of words, not
    from sampled pairs. Cost: O(n d + groups^2 d).

    Args:
        vectors: a vector a word.
        topics: as in ``topic_attention``, one row a vector.
        self_pairs: also count ``i = j`` as the same topic, as the paper's published code does.

    Raises:
        InputError: when topics and vectors differ in number, or topics has another form.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        >>> found = topic_similarity(vectors, torch.tensor([0, 0, 1, 1]))
        >>> found.mean.tolist(), found.pairs.tolist()
        ([[1.0, 0.0], [2.5, 0.0]], [4, 8])
    """
    known = WordTopics.of(topics)
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
        return TopicSimilarity(self._means(vectors, torch.arange(len(vectors))[None])[:, 0], self.pairs)

    def null_ratios(self, vectors: Float[Tensor, "n d"], n: int, seed: int) -> Float[Tensor, "2 orders"]:
        """Ratios when the vectors are handed out anew, ``n`` times."""
        order = np.broadcast_to(np.arange(len(vectors)), (n, len(vectors)))
        permuted = torch.from_numpy(np.random.default_rng([seed, len(vectors)]).permuted(order, axis=1))
        means = self._means(vectors, permuted)
        return means[..., 0] / means[..., 1]

    def _means(self, vectors: Tensor, orders: Int[Tensor, "orders n"]) -> Float[Tensor, "2 orders 2"]:
        rows, found = vectors.double(), []
        for x in (rows / rows.norm(dim=1, keepdim=True), rows):
            whole, own = x.sum(dim=0).square().sum(), x.square().sum()
            same = self._same_totals(x, orders)  # pairs i = j included
            totals = torch.stack([same if self.self_pairs else same - own, whole - same], dim=-1)
            found.append(torch.where(self.pairs > 0, totals / self.pairs, torch.nan))
        return torch.stack(found)

    def _same_totals(self, x: Tensor, orders: Tensor) -> Float[Tensor, "orders"]:
        """Sum of the products of all same-topic pairs, the words in each order: from the groups' sums, or,
        where groups overlap and may be as many as words, pair by pair."""
        if not len(orders):
            return x.new_zeros(0)
        if self.topics.disjoint:
            empty = x.new_zeros(len(self.topics.same), x.shape[1])
            return torch.stack([empty.index_add(0, self.group, x[order]).square().sum() for order in orders])
        first, second = self._meeting
        if len(x) ** 2 <= _LARGEST_GRAM:
            gram = x @ x.T
            pairs = [gram[order[first], order[second]].sum() for order in orders]
        else:
            step = max(1, _LARGEST // x.shape[1])
            parts = [slice(start, start + step) for start in range(0, len(first), step)]
            pairs = [torch.stack([(x[o[first[p]]] * x[o[second[p]]]).sum() for p in parts]).sum() for o in orders]
        return x.square().sum() + 2 * torch.stack(pairs)

    @cached_property
    def _meeting(self) -> tuple[Tensor, Tensor]:
        """Places of the pairs ``i < j`` that share a topic."""
        same = torch.triu(self.topics.same[self.group][:, self.group], 1).nonzero()
        return same[:, 0], same[:, 1]


@dataclass(frozen=True)
class TopicBlocks:
    """A matrix over words, sorted into blocks of topics.

    Attributes:
        means: ``[n_topics n_topics]`` float64 mean entry of each block.
        same: mean over all entries of two words of one topic, the diagonal included.
        same_off_diagonal: the same without the diagonal.
        different: mean over all entries of two words of different topics.
    """

    means: Float[Tensor, "n_topics n_topics"]
    same: float
    same_off_diagonal: float
    different: float

    @property
    def gap(self) -> float:
        """Mean same-topic entry minus mean different-topic entry."""
        return self.same - self.different

    @property
    def separation(self) -> float:
        """Least same-topic block mean minus greatest different-topic block mean."""
        other = self.means[~torch.eye(len(self.means), dtype=torch.bool)]
        return float(self.means.diagonal().min() - other.max())


def topic_blocks(matrix: Float[Tensor, "n n"], topics: Int[Tensor, "n"]) -> TopicBlocks:
    """Block means of a matrix over words, such as ``W_V`` or ``W_E^T W_E``.

    Args:
        matrix: one row and one column a word.
        topics: topic of each word; negative: left out.

    Raises:
        InputError: for a matrix of another size, or fewer than two topics.

    Example:
        >>> blocks = topic_blocks(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> blocks.means.tolist(), blocks.gap, blocks.same_off_diagonal
        ([[0.5, 0.0], [0.0, 0.5]], 0.5, 0.0)
    """
    known = WordTopics.of(topics)
    if matrix.shape != (len(known.row), len(known.row)):
        raise InputError(f"the matrix has shape {tuple(matrix.shape)}; expected {len(known.row)} words both ways")
    has = known.row.cpu() >= 0
    words = matrix.detach().cpu().double()[has][:, has]
    member = torch.nn.functional.one_hot(known.group).double()
    size = member.sum(dim=0)
    same = known.group[:, None] == known.group[None, :]
    off = same & ~torch.eye(len(words), dtype=torch.bool)
    return TopicBlocks(
        means=(member.T @ words @ member) / (size[:, None] * size[None, :]),
        same=float(words[same].mean()),
        same_off_diagonal=float(words[off].mean()),
        different=float(words[~same].mean()),
    )
