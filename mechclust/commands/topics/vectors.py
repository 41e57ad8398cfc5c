"""Word vectors of a model, and their similarity without some of the documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from mechclust.commands.topics.variants import n_topics
from probes import TopicEmbedding, residual
from probes.functional.topic_embedding import TopicSimilarityGroups
from probes.functional.word_topics import WordTopics
from tasks import Batch
from tasks.text.encoded_corpus import EncodedCorpus

PARTS = 10  # of the documents, each left out once: the interval's degrees of freedom are one fewer
_KINDS = tuple(product(("rows", "hook_embed", "contextual"), (False, True)))  # vectors, and whether with self-pairs
VECTORS = tuple(f"{name}, self-pairs in" if self_pairs else name for name, self_pairs in _KINDS)
"""Ways to take and compare words' vectors: rows of the embedding, states of layer 0 and of the last block, means over
occurrences; a word with itself counts as of the same topic or not."""
_LABEL = "part and word"

_Rows = Float[Tensor, "word _"]  # kinds of vectors may differ in width
Measures = dict[str, Float[Tensor, "vectors ..."]]  # by name
_Topics = Bool[Tensor, "word topic"]


@dataclass(frozen=True)
class WordStates:
    """A word's mean state, gathered separately for each part of the documents.

    Document ``i`` is in part ``i % PARTS``. Memory: two vectors for each word of each part that has it.

    Attributes:
        encoded: the documents.
        n_words: number of words.
        rows: which words are in which part, words of part 0 first.
    """

    encoded: EncodedCorpus
    n_words: int
    rows: Bool[Tensor, "part_word"]

    @classmethod
    def from_corpus(cls, encoded: EncodedCorpus, n_words: int) -> WordStates:
        """Return the states to gather: of the words that ``encoded`` has whole."""
        rows = torch.zeros(PARTS * n_words, dtype=torch.bool)
        for document, labels in zip(encoded.documents.tolist(), encoded.labels, strict=True):
            rows[torch.from_numpy(labels[labels >= 0]).long() + document % PARTS * n_words] = True
        return cls(encoded, n_words, rows)

    def probe(self) -> TopicEmbedding:
        """Return the probe that gathers them. The two topics only say which rows there are."""
        topics = torch.where(self.rows, self.rows.cumsum(0) % 2, -1)
        return TopicEmbedding(topics, residual([0, -1]), _LABEL, n_permutations=0)

    def batches(self, tokens_per_batch: int) -> Iterator[Batch]:
        """Yield the batches of ``encoded``, with the label that the probe reads."""
        for batch in self.encoded.batches(tokens_per_batch):
            word = batch.labels["word"]
            part = batch.labels["document"] % PARTS
            row = torch.where(word >= 0, part[:, None] * self.n_words + word, -1)
            yield replace(batch, labels={**batch.labels, _LABEL: row})

    def means(self, probe: TopicEmbedding, left_out: int = -1) -> tuple[list[_Rows], Bool[Tensor, "word"]]:
        """Return mean states in float64 at the first and the last site, and which words were met.

        Args:
            probe: after the run.
            left_out: the part of the documents that does not count, or -1 for none.
        """
        row = self.rows.nonzero().flatten()
        kept = row // self.n_words != left_out
        word = (row % self.n_words)[kept]
        counts = probe.seen["words"].cpu()[kept]
        n_met = torch.zeros(self.n_words, dtype=torch.int64).index_add_(0, word, counts)
        means = []
        for site in probe.site_names:
            sums = probe.vectors[site].cpu()[kept]
            total = sums.new_zeros(self.n_words, sums.shape[1]).index_add_(0, word, sums)
            means.append(total / n_met[:, None])
        return means, n_met > 0


@dataclass(frozen=True)
class WordVectors:
    """Every kind of word vector, in all documents or without a part of them.

    Attributes:
        by_kind: vectors by kind.
        met: which words were met.
    """

    by_kind: Mapping[str, _Rows]
    met: Bool[Tensor, "word"]

    @classmethod
    def from_states(cls, rows: _Rows, states: WordStates, probe: TopicEmbedding, left_out: int = -1) -> WordVectors:
        """Return rows of the embedding and mean states, with the further arguments of ``WordStates.means``."""
        (first, last), met = states.means(probe, left_out)
        return cls({"rows": rows, "hook_embed": first, "contextual": last}, met)

    def measures(self, topics: _Topics) -> Measures:
        """Return ``ratio``, ``difference`` and ``mean`` with ``VECTORS`` along the first axis."""
        without_selves, with_selves = [
            TopicEmbedding(topics, self_pairs=self_pairs, n_permutations=0).compare_vectors(self.by_kind, self.met)
            for self_pairs in (False, True)
        ]
        return {
            name: rearrange([without_selves[name], with_selves[name]], "selves kind ... -> (kind selves) ...")
            for name in ("ratio", "difference", "mean")
        }

    def ratios(self, topics: _Topics) -> Float[Tensor, "vectors similarity"]:
        """Return ratios in the order of ``VECTORS``, or NaN if fewer than two topics were met."""
        if n_topics(topics[self.met]) < 2:
            return torch.full((len(VECTORS), 2), torch.nan, dtype=torch.float64)
        known = WordTopics.from_topics(topics[self.met])
        ratios = []
        for name, self_pairs in _KINDS:
            vectors = self.by_kind[name][self.met][known.row >= 0]
            ratios.append(TopicSimilarityGroups(known.group, known, self_pairs).similarity(vectors).ratio)
        return torch.stack(ratios)


def word_similarities(
    topics: Sequence[_Topics], rows: _Rows, states: WordStates, probe: TopicEmbedding
) -> list[Measures | None]:
    """Return the similarity of word vectors under every variant, or ``None`` for fewer than two topics.

    Args:
        topics: topics of each variant.
        rows: rows of the token embedding matrix.
        states: the gathered states.
        probe: the probe that gathered them.
    """
    vectors = WordVectors.from_states(rows, states, probe)
    without: list[list[Float[Tensor, "vectors similarity"]]] = [[] for _ in topics]
    for part in range(PARTS):  # the vectors of one part are in memory at a time
        left_out = WordVectors.from_states(rows, states, probe, part)
        for ratios, of_variant in zip(without, topics, strict=True):
            ratios.append(left_out.ratios(of_variant))
    measured: list[Measures | None] = []
    for ratios, of_variant in zip(without, topics, strict=True):
        usable = n_topics(of_variant) >= 2
        ratio_without = torch.stack(ratios, dim=-1)
        measured.append({**vectors.measures(of_variant), "ratio_without": ratio_without} if usable else None)
    return measured


def drawn_of(
    values: Float[np.ndarray, "seed"], without: Float[np.ndarray, "seed part"]
) -> Float[np.ndarray, "seed part"]:
    """Return values that vary as much as an estimate from all documents, from values with one part left out each.

    These are pseudo-values, drawn together by the root of their number, so that their variance is the jackknife's.

    Source: Tukey, Annals of Mathematical Statistics 29 (1958).

    Args:
        values: values from all documents.
        without: values without each part.

    Example:
        >>> x = np.array([1.0, 2.0, 6.0])
        >>> drawn = drawn_of(np.array([x.mean()]), np.array([[4.0, 3.5, 1.5]]))  # the mean of the other two
        >>> round(float(drawn.var(ddof=1)), 6), round(float(x.var(ddof=1) / 3), 6)
        (2.333333, 2.333333)
    """
    n = without.shape[1]
    off = without - without.mean(axis=1, keepdims=True)
    return np.asarray(values[:, None] - (n - 1) / np.sqrt(n) * off)
