"""Word vectors of an encoder, and what their similarity would be without some of the documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from probes import TopicEmbedding, residual
from tasks import Batch
from tasks.text.encoding import EncodedCorpus

PARTS = 10  # of the documents, each left out once: the interval's degrees of freedom are one fewer
_LABEL = "part and word"


@dataclass(frozen=True)
class WordStates:
    """A word's mean state, gathered separately for each part of the documents.

    Document ``i`` is in part ``i % PARTS``. Memory: two vectors for each word of each part that has it.

    Attributes:
        encoded: the documents.
        n_words: how many words there are.
        rows: ``[PARTS * n_words]`` bool, which words are in which part.
    """

    encoded: EncodedCorpus
    n_words: int
    rows: Tensor

    @classmethod
    def of(cls, encoded: EncodedCorpus, n_words: int) -> WordStates:
        """For the words that ``encoded`` has whole."""
        rows = torch.zeros(PARTS * n_words, dtype=torch.bool)
        for document, labels in zip(encoded.documents.tolist(), encoded.labels, strict=True):
            rows[torch.from_numpy(labels[labels >= 0]).long() + document % PARTS * n_words] = True
        return cls(encoded, n_words, rows)

    def probe(self) -> TopicEmbedding:
        """What gathers them; the two topics only say which rows there are."""
        topics = torch.where(self.rows, self.rows.cumsum(0) % 2, -1)
        return TopicEmbedding(topics, residual([0, -1]), _LABEL, n_permutations=0)

    def batches(self, tokens_per_batch: int) -> Iterator[Batch]:
        """Those of ``encoded``, with the label that the probe reads."""
        for batch in self.encoded.batches(tokens_per_batch):
            word, part = batch.labels["word"], batch.labels["document"] % PARTS
            row = torch.where(word >= 0, part[:, None] * self.n_words + word, -1)
            yield replace(batch, labels={**batch.labels, _LABEL: row})

    def means(self, probe: TopicEmbedding, left_out: int = -1) -> tuple[list[Tensor], Tensor]:
        """``[n_words d]`` float64 at the first and the last site, and ``[n_words]`` which words were met.

        Args:
            probe: after the run.
            left_out: the part of the documents that does not count; -1: none.
        """
        row = self.rows.nonzero().flatten()
        kept, word = row // self.n_words != left_out, row % self.n_words
        counts = probe.seen["words"].cpu()
        number = torch.zeros(self.n_words, dtype=torch.int64).index_add_(0, word[kept], counts[kept])
        found = []
        for site in probe.site_names:
            sums = probe.vectors[site].cpu()
            total = sums.new_zeros(self.n_words, sums.shape[1]).index_add_(0, word[kept], sums[kept])
            found.append(total / number[:, None])
        return found, number > 0


def drawn_of(values: np.ndarray, without: np.ndarray) -> np.ndarray:
    """Values that vary as much as an estimate from all documents does, from those with one part left out each.

    These are pseudo-values, drawn together by the root of their number, so that their variance is the jackknife's.

    Source: Tukey, Annals of Mathematical Statistics 29 (1958).

    Args:
        values: ``[seed]`` from all documents.
        without: ``[seed part]`` without each part.

    Example:
        >>> x = np.array([1.0, 2.0, 6.0])
        >>> drawn = drawn_of(np.array([x.mean()]), np.array([[4.0, 3.5, 1.5]]))  # the mean of the other two
        >>> round(float(drawn.var(ddof=1)), 6), round(float(x.var(ddof=1) / 3), 6)
        (2.333333, 2.333333)
    """
    n = without.shape[1]
    off = without - without.mean(axis=1, keepdims=True)
    return np.asarray(values[:, None] - (n - 1) / np.sqrt(n) * off)
