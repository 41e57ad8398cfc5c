"""Word vectors of a model, and their similarity without some of the documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from probes import TopicEmbedding, residual
from tasks import Batch
from tasks.text.encoded_corpus import EncodedCorpus

PARTS = 10  # of the documents, each left out once: the interval's degrees of freedom are one fewer
_KINDS = ("rows", "hook_embed", "contextual")
VECTORS = tuple(f"{kind}{selves}" for kind, selves in product(_KINDS, ("", ", self-pairs in")))
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

    def similarities(
        self, topics: Sequence[_Topics], rows: _Rows, probe: TopicEmbedding, left_out: int = -1
    ) -> list[Measures]:
        """Return ``ratio``, ``difference`` and ``mean`` under every variant, with ``VECTORS`` along the first axis.

        Args:
            topics: topics of each variant, at least two.
            rows: rows of the token embedding matrix.
            probe: after the run.
            left_out: as in ``means``. Values are NaN if fewer than two topics were met in the other documents.
        """
        means, met = self.means(probe, left_out)
        vectors = dict(zip(_KINDS, [rows, *means], strict=True))
        measured = []
        for of_variant in topics:
            without_selves, with_selves = [
                TopicEmbedding(of_variant, self_pairs=self_pairs, n_permutations=0).compare_vectors(vectors, met)
                for self_pairs in (False, True)
            ]
            measures = {}
            for name in ("ratio", "difference", "mean"):
                both = [without_selves[name], with_selves[name]]
                measures[name] = rearrange(both, "selves kind ... -> (kind selves) ...")
            measured.append(measures)
        return measured


def word_similarities(
    topics: Sequence[_Topics], rows: _Rows, states: WordStates, probe: TopicEmbedding
) -> list[Measures]:
    """Return the similarity of word vectors under every variant, and the ratio without each part of the documents.

    Args:
        topics: topics of each variant, at least two.
        rows: rows of the token embedding matrix.
        states: the gathered states.
        probe: the probe that gathered them.
    """
    measured = states.similarities(topics, rows, probe)
    without = []
    for part in range(PARTS):  # the vectors of one part are in memory at a time
        without.append([measures["ratio"] for measures in states.similarities(topics, rows, probe, part)])
    for measures, *ratios in zip(measured, *without, strict=True):
        measures["ratio_without"] = torch.stack(ratios, dim=-1)
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
