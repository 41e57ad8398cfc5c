"""Same-topic against different-topic pairs: attention between tokens, similarity between word vectors.

The measurements of Li, Li & Risteski, "How Do Transformers Learn Topic Structure" (ICML 2023), each as one
vectorised pass or a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks import InputError

BUCKETS = ("same_word", "same_topic", "different_topic")
SIMILARITIES = ("cosine", "dot")
_LARGEST = 2**24  # elements of the largest intermediate tensor


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
        table = torch.as_tensor(topics).cpu()
        if table.ndim not in (1, 2) or table.is_floating_point():
            raise InputError(
                f"topics is {table.dtype} of shape {tuple(table.shape)}; expected one integer a word (negative: none) "
                "or a [words topics] table of true and false"
            )
        if table.ndim == 1:
            has = table >= 0
            n_topics, group = len(torch.unique(table[has])), torch.unique(table[has], return_inverse=True)[1]
            same = torch.eye(n_topics, dtype=torch.bool)
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

    def meet(self, first: Int[Tensor, "*n"], second: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        """Whether two groups share a topic."""
        if self._disjoint:
            return first == second
        return self.same.to(first.device)[first, second]

    @cached_property
    def _disjoint(self) -> bool:
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
    return PairTable.of(words, WordTopics.of(topics)).sums(pattern)


@dataclass(frozen=True)
class PairTable:
    """The pairs of one batch, sorted into buckets once for all layers.

    Attributes:
        place: ``[batch n]`` the positions that count, filled up with others.
        real: ``[batch n]`` which of them do count.
        word: ``[batch n]`` their words, as rows of the topics.
        pos: length of the sequences.
        topics: whose groups.
        permuted: ``[n_permutations n_rows]`` relabelled groups, or ``None``.
    """

    place: Int[Tensor, "batch n"]
    real: Bool[Tensor, "batch n"]
    word: Int[Tensor, "batch n"]
    pos: int
    topics: WordTopics
    permuted: Int[Tensor, "n_permutations n_rows"] | None = None

    @classmethod
    def of(cls, words: Tensor, topics: WordTopics, permuted: Tensor | None = None) -> PairTable:
        """Raises ``InputError`` for a word that is not among the topics."""
        if bool((words >= len(topics.row)).any()):
            raise InputError(
                f"there is a word {int(words.max())} in the batch, but topics are given for {len(topics.row)} words; "
                "give one row a word, in the same numbering"
            )
        row = torch.where(words >= 0, topics.row.to(words.device)[words.clamp(min=0)], -1)
        real = row >= 0
        n = int(real.sum(dim=1).max()) if len(real) else 0
        place = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)[:, :n]
        return cls(place, real.gather(1, place), row.gather(1, place).clamp(min=0), words.shape[1], topics, permuted)

    @property
    def n_permutations(self) -> int:
        return 0 if self.permuted is None else len(self.permuted)

    @cached_property
    def _parts(self) -> list[tuple[slice, Tensor]]:
        """``(examples, [examples*n*n 3+n_permutations])``: a bool column a bucket, and one a relabelling."""
        n, parts = self.place.shape[1], []
        step = max(1, _LARGEST // max(1, n * n * (3 + self.n_permutations)))
        group = self.topics.group.to(self.word.device)
        permuted = None if self.permuted is None else self.permuted.to(self.word.device)
        for start in range(0, len(self.place) if n else 0, step):
            here = slice(start, start + step)
            word, real = self.word[here], self.real[here]
            pair = real[:, :, None] & real[:, None, :]
            same_word = word[:, :, None] == word[:, None, :]
            other = pair & ~same_word
            same_topic = other & self._meet(group[word])
            columns = torch.stack([pair & same_word, same_topic, other & ~same_topic]).flatten(1)
            if permuted is not None:
                relabelled = self._meet(permuted[:, word]) & other
                columns = torch.cat([columns, relabelled.flatten(1)])
            parts.append((here, columns.T))
        return parts

    def _meet(self, group: Tensor) -> Tensor:
        """``[... n]`` groups to ``[... n n]``: whether two of them share a topic."""
        return self.topics.meet(*torch.broadcast_tensors(group[..., :, None], group[..., None, :]))

    def sums(self, pattern: Float[Tensor, "batch head query key"]) -> PairSums:
        """Sort one layer's attention."""
        batch, pos = len(self.place), self.pos
        if pattern.ndim != 4 or (pattern.shape[0], *pattern.shape[2:]) != (batch, pos, pos):
            raise InputError(
                f"an activation has shape {tuple(pattern.shape)}; expected attention patterns [batch head query key]: "
                "measure at attention_pattern()"
            )
        heads, device = pattern.shape[1], pattern.device
        exact = torch.float32 if device.type == "mps" else torch.float64
        total = torch.zeros(heads, 3 + self.n_permutations, dtype=exact, device=device)
        pairs = torch.zeros(3 + self.n_permutations, dtype=torch.int64, device=device)
        for here, buckets in self._parts:
            place, of_here = self.place[here], pattern[here]
            example = torch.arange(len(place), device=device)[None, :, None, None]
            head = torch.arange(heads, device=device)[:, None, None, None]
            part = of_here[example, head, place[None, :, :, None], place[None, :, None, :]]  # [head example n n]
            total += part.flatten(1).to(exact) @ buckets.to(exact)
            pairs += buckets.sum(dim=0)
        return PairSums(total[:, :3], pairs[:3], total[:, 3:], pairs[3:])


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
    return group_similarity(kept, known.group, known.same, self_pairs)


def group_similarity(
    vectors: Float[Tensor, "n d"],
    group: Int[Tensor, "n"],
    same: Bool[Tensor, "n_groups n_groups"],
    self_pairs: bool = False,
) -> TopicSimilarity:
    """``topic_similarity`` for words sorted into groups, ``same`` saying which groups share a topic."""
    rows = vectors.double()
    means, n_groups = [], len(same)
    count = torch.bincount(group, minlength=n_groups)
    pairs = torch.stack([(count[:, None] * count[None, :])[mask].sum() for mask in (same, ~same)])
    if not self_pairs:
        pairs[0] -= len(rows)
    for x in (rows / rows.norm(dim=1, keepdim=True), rows):
        sums = torch.zeros(n_groups, x.shape[1], dtype=x.dtype).index_add_(0, group, x)
        products = sums @ sums.T
        totals = torch.stack([products[same].sum(), products[~same].sum()])
        if not self_pairs:
            totals[0] -= (x * x).sum()
        means.append(torch.where(pairs > 0, totals / pairs, torch.nan))
    return TopicSimilarity(torch.stack(means), pairs)


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
