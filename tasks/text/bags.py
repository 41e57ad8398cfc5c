"""Word counts of a corpus on disk: what a topic model is fitted on when there are more than the memory holds."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tasks.errors import InputError, check_choice
from tasks.text.topic_model import WordCounts
from tasks.text.vocabulary import Vocabulary

Weighting = Literal["counts", "tfidf"]


@dataclass(frozen=True, eq=False)
class Bags:
    """``[n_documents n_words]`` counts or TF-IDF weights on disk, of which any rows are read as a sparse matrix.

    Memory: 8 bytes per document, and the rows that are asked for. Disk: 8 bytes per document and different word.

    Attributes:
        vocabulary: the columns.
        weights: what rows hold: ``"counts"``, or ``"tfidf"`` (see ``Vocabulary.tfidf``).
        start: ``[n_documents + 1]`` int64, where each row begins.
        numbers: ``[n_entries]`` int32 on disk, column of each entry.
        counts: ``[n_entries]`` int32 on disk, how often.

    Example:
        >>> import tempfile
        >>> texts = ["cat dog", "cat cat bird", "dog"]
        >>> known = Vocabulary.count(texts, None, min_documents=1, max_share=1.0, stop_words="none")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bags = Bags.gather(texts, known, folder, "counts")
        ...     known.words, bags.shape, bags[[0, 1]].toarray().tolist()
        (['bird', 'cat', 'dog'], (3, 3), [[0, 1, 1], [1, 2, 0]])
    """

    vocabulary: Vocabulary
    weights: Weighting
    start: np.ndarray
    numbers: np.ndarray
    counts: np.ndarray

    @classmethod
    def gather(cls, texts: Iterable[str], vocabulary: Vocabulary, folder: str | Path, weights: Weighting) -> Bags:
        """Count the words of each text into two files of ``folder``, for as long as it is there.

        Args:
            texts: documents; gone through once.
            vocabulary: the words that are counted.
            folder: for scratch files.
            weights: what rows hold.

        Raises:
            InputError: for other weights, and when the disk is full.
        """
        check_choice(weights=(weights, get_args(Weighting)))
        places = [Path(folder) / name for name in ("numbers.i32", "counts.i32")]
        start = array("q", [0])
        try:
            with open(places[0], "wb") as numbers, open(places[1], "wb") as counts:
                for text in texts:
                    which, often = vocabulary.bag(text)
                    numbers.write(which.tobytes())
                    counts.write(often.tobytes())
                    start.append(start[-1] + len(which))
        except OSError as error:
            raise InputError(
                f"cannot write word counts in {str(folder)!r} ({error.strerror}); give a folder that is there, with "
                "enough free space (for temporary folders: TMPDIR)"
            ) from None
        # an empty file cannot be mapped
        mapped = (np.memmap(p, np.int32, "r") if start[-1] else np.empty(0, np.int32) for p in places)
        return cls(vocabulary, weights, np.frombuffer(start, np.int64), *mapped)

    @property
    def shape(self) -> tuple[int, int]:
        """How many documents and words."""
        return len(self.start) - 1, len(self.vocabulary.words)

    @property
    def word_counts(self) -> WordCounts:
        """As what ``fit_counts`` takes."""
        return WordCounts(self.vocabulary.words, self)

    def __getitem__(self, rows: Any) -> Any:
        """``[n n_words]`` scipy sparse: int32 counts or float64 weights of some documents."""
        from scipy.sparse import csr_matrix

        chosen = np.asarray(rows, dtype=np.int64)
        first, last = self.start[chosen], self.start[chosen + 1]
        parts = [slice(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        none = np.empty(0, dtype=np.int32)
        counts, numbers = (np.concatenate([none, *(x[part] for part in parts)]) for x in (self.counts, self.numbers))
        begin = np.concatenate([[0], np.cumsum(last - first)])
        found = csr_matrix((counts, numbers, begin), (len(chosen), self.shape[1]))
        return found if self.weights == "counts" else self.vocabulary.tfidf(found)
