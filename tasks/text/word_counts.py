"""Counts of each word in each document, in memory or on disk, to fit a topic model."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int32, Int64

from tasks.errors import InputError
from tasks.settings import check_choice
from tasks.text.vocabulary import Vocabulary

Weighting = Literal["counts", "tfidf"]


@dataclass(frozen=True, eq=False)
class WordCountsOnDisk:
    """Counts or TF-IDF weights ``[document word]`` on disk. Any rows are read as a sparse matrix.

    Memory: 8 bytes per document, and the rows that are read. Disk: 8 bytes per document and different word.

    Attributes:
        vocabulary: the columns.
        weights: ``"counts"``, or ``"tfidf"`` (see ``Vocabulary.tfidf``).
        start: first entry of each row, and the number of entries.
        numbers: column of each entry, on disk.
        counts: how often the word of each entry occurs, on disk.

    Example:
        >>> import tempfile
        >>> texts = ["cat dog", "cat cat bird", "dog"]
        >>> known = Vocabulary.count(texts, None, min_documents=1, max_share=1.0, stop_words="none")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     counts = WordCountsOnDisk.gather(texts, known, folder, "counts")
        ...     known.words, counts.shape, counts[[0, 1]].toarray().tolist()
        (['bird', 'cat', 'dog'], (3, 3), [[0, 1, 1], [1, 2, 0]])
    """

    vocabulary: Vocabulary
    weights: Weighting
    start: Int64[np.ndarray, "documents_and_end"]
    numbers: Int32[np.ndarray, "entry"]
    counts: Int32[np.ndarray, "entry"]

    @classmethod
    def gather(
        cls, texts: Iterable[str], vocabulary: Vocabulary, folder: str | Path, weights: Weighting
    ) -> WordCountsOnDisk:
        """Count the words of each text into two files of ``folder``, for as long as it is there.

        Args:
            texts: documents, read once.
            vocabulary: the words that are counted.
            folder: for scratch files.
            weights: ``"counts"`` or ``"tfidf"``.

        Raises:
            InputError: for other weights, and when the disk is full.
        """
        check_choice(weights=(weights, get_args(Weighting)))
        numbers_path = Path(folder) / "numbers.i32"
        counts_path = Path(folder) / "counts.i32"
        start = array("q", [0])
        try:
            with open(numbers_path, "wb") as numbers_file, open(counts_path, "wb") as counts_file:
                for text in texts:
                    numbers, counts = vocabulary.bag(text)
                    numbers_file.write(numbers.tobytes())
                    counts_file.write(counts.tobytes())
                    start.append(start[-1] + len(numbers))
        except OSError as error:
            raise InputError(
                f"cannot write word counts in {str(folder)!r} ({error.strerror}); give a folder that is there, with "
                "enough free space (for temporary folders: TMPDIR)"
            ) from None
        starts = np.frombuffer(start, np.int64)
        return cls(vocabulary, weights, starts, _read_integers(numbers_path), _read_integers(counts_path))

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of documents and of words."""
        return len(self.start) - 1, len(self.vocabulary.words)

    def __getitem__(self, rows: Any) -> Any:
        """Return a sparse matrix ``[row word]`` of scipy: int32 counts or float64 weights of some documents."""
        from scipy.sparse import csr_matrix

        chosen = np.asarray(rows, dtype=np.int64)
        first = self.start[chosen]
        end = self.start[chosen + 1]
        parts = [slice(a, b) for a, b in zip(first.tolist(), end.tolist(), strict=True)]
        none = np.empty(0, dtype=np.int32)
        counts = np.concatenate([none, *(self.counts[part] for part in parts)])
        numbers = np.concatenate([none, *(self.numbers[part] for part in parts)])
        start = np.concatenate([[0], np.cumsum(end - first)])
        matrix = csr_matrix((counts, numbers, start), (len(chosen), self.shape[1]))
        return matrix if self.weights == "counts" else self.vocabulary.tfidf(matrix)


def _read_integers(path: Path) -> Int32[np.ndarray, "entry"]:
    """Map a file into memory. An empty file cannot be mapped."""
    return np.memmap(path, np.int32, "r") if path.stat().st_size else np.empty(0, np.int32)
