"""The words that a topic model knows, counted over a corpus that is read as a stream, and TF-IDF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64
from tqdm import tqdm

from tasks.errors import InputError
from tasks.settings import check_count
from tasks.text.stop_words import read_stop_words
from tasks.text.words import words_of


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words, and the number of documents of a corpus in which each occurs.

    Attributes:
        words: sorted, lower-cased.
        documents: the number of documents in which each word occurs.
        n_documents: documents of the corpus.
        undercount: ``documents`` may be too low by at most this. 0 unless the corpus has more different words than were
            kept in memory.

    Example:
        >>> texts = ["cat dog", "cat cat bird", "dog", "fish"]
        >>> known = Vocabulary.count(texts, size=2, min_documents=1, max_share=0.5, stop_words="none")
        >>> known.words, known.documents.tolist(), known.counts(texts).toarray().tolist()
        (['cat', 'dog'], [2, 2], [[1, 1], [2, 0], [0, 1], [0, 0]])
        >>> known.tfidf(known.counts(["cat cat dog"])).toarray().round(3).tolist()  # log2(4 / 2) = 1 for both
        [[0.894, 0.447]]
    """

    words: list[str]
    documents: Int64[np.ndarray, "word"]
    n_documents: int
    undercount: int = 0

    @classmethod
    def count(
        cls,
        texts: Iterable[str],
        size: int | None = 100_000,
        min_documents: int = 20,
        max_share: float = 0.1,
        stop_words: str | Collection[str] = "english",
        *,
        most_words: int = 2_000_000,
        progress: bool = False,
    ) -> Vocabulary:
        """Choose the words of a corpus by the rule of gensim's ``make_wiki``.

        Candidates occur in at least ``min_documents`` and at most ``int(max_share * n)`` of ``n`` documents. The
        ``size`` words with most documents are chosen, ties in sorted order.

        Memory: ``most_words`` different words. When there are more, the rarest are forgotten, so that later counts may
        be too low, by at most ``undercount`` (lossy counting: Manku & Motwani, VLDB 2002).

        Args:
            texts: documents, read once.
            size: maximum number of words. ``None``: all.
            min_documents: words in fewer documents are left out.
            max_share: words in more than this share of the documents are left out.
            stop_words: words left out first, see ``read_stop_words``.
            most_words: different words in memory.
            progress: show a progress bar.

        Raises:
            InputError: for numbers that no word fits, and when no word is left.
        """
        check_count(min_documents=(min_documents, 1), most_words=(most_words, 1))
        if size is not None:
            check_count(vocabulary=(size, 2))
        _check_share(max_share)
        stop = read_stop_words(stop_words)
        documents: Counter[str] = Counter()
        n = 0
        undercount = 0
        for text in tqdm(texts, desc="counting words", unit="document", leave=False, disable=not progress):
            n += 1
            documents.update(set(words_of(text)) - stop)
            if len(documents) > most_words:
                documents, threshold = _without_rare(documents, most_words // 2)
                undercount += threshold  # a word may be forgotten each time
        most = int(max_share * n)
        usable = [(-count, word) for word, count in documents.items() if min_documents <= count <= most]
        if not usable:
            raise _empty_error(min_documents, most, n)
        words = sorted(word for _, word in sorted(usable)[:size])
        return cls(words, np.array([documents[word] for word in words], dtype=np.int64), n, undercount)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def bag(self, text: str) -> tuple[Int32[np.ndarray, "entry"], Int32[np.ndarray, "entry"]]:
        """Return the numbers of the words that occur in a text, in rising order, and how often each occurs."""
        counts = Counter(self._number[word] for word in words_of(text) if word in self._number)
        numbers = sorted(counts)
        return np.array(numbers, dtype=np.int32), np.array([counts[i] for i in numbers], dtype=np.int32)

    def counts(self, texts: Iterable[str]) -> Any:
        """Return a sparse matrix ``[text word]``, int32 of scipy: how often each word occurs in each text."""
        from scipy.sparse import csr_matrix

        bags = [self.bag(text) for text in texts]
        none = np.empty(0, dtype=np.int32)
        numbers = np.concatenate([none, *(numbers for numbers, _ in bags)])
        counts = np.concatenate([none, *(counts for _, counts in bags)])
        start = np.cumsum([0, *(len(numbers) for numbers, _ in bags)])
        return csr_matrix((counts, numbers, start), (len(bags), len(self.words)))

    def tfidf(self, counts: Any) -> Any:
        """Return a sparse matrix ``[text word]``, float64 of scipy, of the TF-IDF weights of counts.

        Each count is multiplied by ``log2(n_documents / documents)``, and each row is then divided by its Euclidean
        norm, as gensim's ``TfidfModel`` does by default. Rows without words stay 0.
        """
        from sklearn.preprocessing import normalize

        weighted = counts.astype(np.float64).tocsr(copy=True)
        weighted.data *= np.log2(self.n_documents / self.documents)[weighted.indices]
        return normalize(weighted, copy=False)


def _without_rare(documents: Counter[str], n_words: int) -> tuple[Counter[str], int]:
    """Return at most ``n_words`` words, with most documents, and the largest count that was forgotten."""
    threshold = sorted(documents.values(), reverse=True)[n_words]
    return Counter({word: count for word, count in documents.items() if count > threshold}), threshold


def _check_share(max_share: float) -> None:
    """Refuse a number that is not a share of documents."""
    if not 0 < max_share <= 1:
        raise InputError(f"max_share is {max_share}; expected a share of the documents above 0, at most 1")


def _empty_error(min_documents: int, max_documents: int, n_documents: int) -> InputError:
    """Return the error that every word is in too few or too many documents."""
    return InputError(
        f"no word except stop words is in at least {min_documents} and at most {max_documents} of the {n_documents} "
        "documents; give more text, or lower min_documents or raise max_share"
    )
