"""Topics of a corpus: latent Dirichlet allocation, and each topic's likeliest words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm

from tasks._random import generator
from tasks.batch_rows import consecutive_batch_rows
from tasks.errors import InputError
from tasks.settings import MAX_SEED, check_count
from tasks.text.corpus import Corpus
from tasks.text.vocabulary import Vocabulary


@dataclass(frozen=True, repr=False)
class TopicModel:
    """Words and their probability in each topic.

    Attributes:
        words: sorted, lower-cased, without stop words.
        weights: probability of a word in a topic, float64. Rows sum to 1.
        shares: each topic's share of the corpus's words, as the fitted topics divide them, float64. They sum to 1.

    Example:
        >>> model = TopicModel(["bread", "cat", "dog"], torch.tensor([[0.0, 0.4, 0.6], [0.7, 0.2, 0.1]]))
        >>> model.membership(0.0).tolist()  # each topic keeps its likeliest word
        [[False, True], [False, False], [True, False]]
        >>> model.membership(0.4, overlap=True).tolist()  # int(3 * 0.4) + 1 = 2 words; 'cat' is kept twice
        [[False, True], [True, True], [True, False]]
        >>> model.membership(0.4, overlap=False).tolist()
        [[False, True], [False, False], [True, False]]
    """

    words: list[str]
    weights: Float[Tensor, "topic word"]
    shares: Float[Tensor, "topic"] | None = None

    def __repr__(self) -> str:
        return f"TopicModel({self.n_topics} topics of {len(self.words)} words)"

    @property
    def n_topics(self) -> int:
        """The number of topics."""
        return len(self.weights)

    def kept(self, threshold: float) -> Int[Tensor, "topic kept"]:
        """Return the numbers of each topic's ``int(n_words * threshold) + 1`` likeliest words, likeliest first.

        Of words as likely, the first in alphabetical order is first.

        Raises:
            InputError: for a threshold outside 0 to 1 (1 not included).
        """
        _check_threshold(threshold)
        return self._likeliest(int(len(self.words) * threshold) + 1)

    def _likeliest(self, n: int) -> Int[Tensor, "topic kept"]:
        return self.weights.argsort(dim=1, descending=True, stable=True)[:, :n]

    def membership(self, threshold: float, overlap: bool = True) -> Bool[Tensor, "word topic"]:
        """Return which word has which topics.

        Args:
            threshold: the ambiguity threshold: each topic keeps ``int(n_words * threshold) + 1`` words.
            overlap: true: a word has every topic that kept it. False: words kept by several topics
                have no topic.

        Raises:
            InputError: for a threshold outside 0 to 1 (1 not included).
        """
        kept = self.kept(threshold)
        member = torch.zeros(len(self.words), self.n_topics, dtype=torch.bool)
        member[kept, torch.arange(self.n_topics)[:, None]] = True
        return member if overlap else member & (member.sum(dim=1, keepdim=True) == 1)

    def top_words(self, n: int = 8) -> list[list[str]]:
        """Return each topic's ``n`` likeliest words, for reading."""
        return [[self.words[i] for i in row] for row in self._likeliest(n).tolist()]


def _check_threshold(threshold: float) -> None:
    """Refuse a number that is not an ambiguity threshold."""
    if not 0 <= threshold < 1:
        raise InputError(f"threshold is {threshold}; expected a share of the vocabulary from 0 to below 1")


def least_topic_model_threshold(n_words: int) -> float:
    """Return ``1 / n_words`` rounded up, the least threshold at which a topic keeps two words or more.

    Example:
        >>> least_topic_model_threshold(20), least_topic_model_threshold(4321)
        (0.05, 0.000232)
    """
    scale = 10 ** (len(str(n_words)) + 2)
    return -(-scale // n_words) / scale


def fit_topics(
    corpus: Corpus,
    n_topics: int = 100,
    passes: int = 6,
    seed: int = 0,
    min_documents: int = 5,
    max_share: float = 0.5,
    stop_words: str | Collection[str] = "english",
    batch_size: int = 128,
    progress: bool = False,
) -> TopicModel:
    """Fit latent Dirichlet allocation online: batch by batch, several times through the corpus.

    Equal arguments give equal bits. Memory: the sparse counts and ``n_topics x n_words`` floats.

    Args:
        corpus: the documents.
        n_topics: number of topics.
        passes: number of passes through the corpus, each in a new order.
        seed: for the initial topics and the order of documents.
        min_documents: words in fewer documents are left out.
        max_share: words in more than this share of the documents are left out.
        stop_words: see ``read_stop_words``.
        batch_size: documents per update.
        progress: show progress bars.

    Raises:
        InputError: for fewer documents than topics, no words left, or numbers that do not allow a fit.

    Example:
        >>> corpus = Corpus(["cat dog cat", "bread milk", "dog cat", "milk bread"], ["a.txt"] * 4)
        >>> model = fit_topics(corpus, n_topics=2, min_documents=1)
        >>> model.words, sorted(sorted(words) for words in model.top_words(2))
        (['bread', 'cat', 'dog', 'milk'], [['bread', 'milk'], ['cat', 'dog']])
    """
    check_topic_model(n_topics, passes, seed, batch_size)
    check_enough_for_topics(len(corpus), n_topics)
    vocabulary = Vocabulary.count(corpus.documents, None, min_documents, max_share, stop_words, progress=progress)
    counts = vocabulary.counts(corpus.documents)
    return fit_topics_to_counts(vocabulary.words, counts, n_topics, passes, seed, batch_size, progress=progress)


def check_topic_model(n_topics: int, passes: int = 6, seed: int = 0, batch_size: int = 128) -> None:
    """Refuse settings that no topic model can be fitted with, before any work."""
    check_count(n_topics=(n_topics, 2), passes=(passes, 1), seed=(seed, 0), batch_size=(batch_size, 1))
    if seed > MAX_SEED:
        raise InputError(f"seed is {seed}; expected at most {MAX_SEED}")


def check_enough_for_topics(n_documents: int, n_topics: int) -> None:
    """Refuse a corpus of fewer documents than topics."""
    if n_documents < n_topics:
        raise InputError(
            f"the corpus has {n_documents} documents for {n_topics} topics; give more text, split it into more "
            "documents, or ask for fewer topics (n_topics)"
        )


def fit_topics_to_counts(
    words: list[str],
    counts: Any,
    n_topics: int = 100,
    passes: int = 6,
    seed: int = 0,
    batch_size: int = 128,
    *,
    progress: bool = False,
) -> TopicModel:
    """Fit a topic model to counts, as ``fit_topics`` does to documents, with its further arguments and errors.

    Args:
        words: the columns of ``counts``, sorted.
        counts: sparse matrix ``[document word]`` of integers, of scipy, or ``WordCountsOnDisk``.
    """
    from sklearn.decomposition import LatentDirichletAllocation
    from threadpoolctl import threadpool_limits

    n = counts.shape[0]
    check_topic_model(n_topics, passes, seed, batch_size)
    check_enough_for_topics(n, n_topics)
    model = LatentDirichletAllocation(
        n_topics, learning_method="online", total_samples=n, batch_size=batch_size, random_state=seed
    )
    n_batches = passes * math.ceil(n / batch_size)
    bar = {"total": n_batches, "desc": "fitting topics", "unit": "batch", "leave": False, "disable": not progress}
    with threadpool_limits(1):  # equal sums in equal order
        for rows in tqdm(_shuffled_batches(n, passes, seed, batch_size), **bar):
            model.partial_fit(counts[rows])
        batches = consecutive_batch_rows(n, batch_size)
        n_words = np.sum([_words_by_topic(model, counts[rows]) for rows in batches], axis=0)
    weights = torch.from_numpy(model.components_).double()
    shares = torch.from_numpy(n_words / n_words.sum())
    return TopicModel(words, weights / weights.sum(dim=1, keepdim=True), shares)


def _words_by_topic(model: Any, counts: Any) -> Float[np.ndarray, "topic"]:
    """Return how many words of some documents are of each topic, without what the prior adds."""
    prior = model.doc_topic_prior_
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    return (lengths + len(model.components_) * prior) @ model.transform(counts) - prior * len(lengths)


def _shuffled_batches(n: int, passes: int, seed: int, batch_size: int) -> Iterator[Int[np.ndarray, "row"]]:
    """Yield which of ``n`` documents make each batch, sorted, in a new order in each pass."""
    for number in range(passes):
        order = generator(seed, "topic model order", number).permutation(n)
        for places in consecutive_batch_rows(n, batch_size):
            yield np.sort(order[places])
