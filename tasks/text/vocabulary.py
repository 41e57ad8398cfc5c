"""Which words a topic model knows, as counted over a corpus that is read as a stream, and TF-IDF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tqdm import tqdm

from tasks.errors import InputError, check_at_least
from tasks.text.topic_model import read_stop_words
from tasks.text.words import words_of


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words, and in how many documents of a corpus each stands.

    Attributes:
        words: sorted, lower-cased.
        documents: ``[n_words]`` int64, in how many documents each stands.
        n_documents: documents of the corpus.
        undercount: ``documents`` may be too low by at most this; 0 unless the corpus has more different words than
            were kept in memory.

    Example:
        >>> texts = ["cat dog", "cat cat bird", "dog", "fish"]
        >>> known = Vocabulary.count(texts, size=2, min_documents=1, max_share=0.5, stop_words="none")
        >>> known.words, known.documents.tolist(), known.counts(texts).toarray().tolist()
        (['cat', 'dog'], [2, 2], [[1, 1], [2, 0], [0, 1], [0, 0]])
        >>> known.tfidf(known.counts(["cat cat dog"])).toarray().round(3).tolist()  # log2(4 / 2) = 1 for both
        [[0.894, 0.447]]
    """

    words: list[str]
    documents: np.ndarray
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
        """The words of a corpus, by the rule of gensim's ``make_wiki``: of those that stand in at least
        ``min_documents`` and at most ``int(max_share * n)`` of ``n`` documents, the ``size`` that stand in most, and of
        as many those that sort first.

        Memory: ``most_words`` different words. When there are more, those are forgotten that were met least, so that
        later counts may be too low (lossy counting: Manku & Motwani, VLDB 2002); ``undercount`` is the bound.

        Args:
            texts: documents; gone through once.
            size: most words; ``None``: all.
            min_documents: words in fewer documents are left out.
            max_share: words in more than this share of the documents are left out.
            stop_words: left out before; see ``read_stop_words``.
            most_words: different words in memory.
            progress: show a progress bar.

        Raises:
            InputError: for numbers that no word fits, and when no word is left.
        """
        check_at_least(min_documents=(min_documents, 1), most_words=(most_words, 1))
        if size is not None:
            check_at_least(vocabulary=(size, 2))
        if not 0 < max_share <= 1:
            raise InputError(f"max_share is {max_share}; expected a share of the documents above 0, at most 1")
        stop = read_stop_words(stop_words)
        met: Counter[str] = Counter()
        n = forgotten = 0
        for text in tqdm(texts, desc="counting words", unit="document", leave=False, disable=not progress):
            n += 1
            met.update(set(words_of(text)) - stop)
            if len(met) > most_words:
                floor = sorted(met.values(), reverse=True)[most_words // 2]  # half of the room is left
                met = Counter({word: count for word, count in met.items() if count > floor})
                forgotten += floor  # a word may be forgotten each time
        most = int(max_share * n)
        fit = sorted((-count, word) for word, count in met.items() if min_documents <= count <= most)[:size]
        if not fit:
            raise InputError(
                f"no word except stop words is in at least {min_documents} and at most {most} of the {n} documents; "
                "give more text, or lower min_documents or raise max_share"
            )
        words = sorted(word for _, word in fit)
        return cls(words, np.array([met[word] for word in words], dtype=np.int64), n, forgotten)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def bag(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Which of the words stand in a text, ``[n]`` int32 in rising order, and how often each, ``[n]`` int32."""
        found = Counter(self._number[word] for word in words_of(text) if word in self._number)
        numbers = sorted(found)
        return np.array(numbers, dtype=np.int32), np.array([found[i] for i in numbers], dtype=np.int32)

    def counts(self, texts: Iterable[str]) -> Any:
        """``[n_texts n_words]`` scipy sparse int32: how often each word stands in each text."""
        from scipy.sparse import csr_matrix

        bags = [self.bag(text) for text in texts]
        start = np.cumsum([0, *(len(numbers) for numbers, _ in bags)])
        none = np.empty(0, dtype=np.int32)
        numbers, counts = (np.concatenate([none, *(bag[i] for bag in bags)]) for i in (0, 1))
        return csr_matrix((counts, numbers, start), (len(bags), len(self.words)))

    def tfidf(self, counts: Any) -> Any:
        """``[n_texts n_words]`` scipy sparse float64: each count times ``log2(n_documents / documents)``, each row then
        divided by its Euclidean norm, as gensim's ``TfidfModel`` does by default. Rows without words stay 0.
        """
        from sklearn.preprocessing import normalize

        weighted = counts.astype(np.float64).tocsr(copy=True)
        weighted.data *= np.log2(self.n_documents / self.documents)[weighted.indices]
        return normalize(weighted, copy=False)
