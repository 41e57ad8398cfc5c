"""Plain text as documents: their words, and token batches that know which token is a whole word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks._random import generator
from tasks.errors import InputError
from tasks.settings import check_count
from tasks.text.bos_token import Bos
from tasks.text.encoded_corpus import EncodedCorpus, encode_corpus
from tasks.text.utf8 import check_utf8_texts
from tasks.text.words import words_of


@dataclass(frozen=True, repr=False)
class Corpus:
    """Texts without labels, for example to fit a topic model.

    Words are as in ``tasks.text.words``: runs of letters, lower-cased.

    Attributes:
        documents: the texts.
        sources: the file of each text, for messages.
        empty_files: files that were left out because they hold no words.
        notes: sentences on omitted and cut text.

    Raises:
        InputError: for no documents, one that is not a string, or a number of sources that does not match.

    Example:
        >>> corpus = Corpus(["Cats chase cats.", "2 dogs don't"], ["a.txt", "b.txt"])
        >>> [corpus.words(i) for i in range(len(corpus))]
        [['cats', 'chase', 'cats'], ['dogs', "don't"]]
    """

    documents: Sequence[str]
    sources: Sequence[str]
    empty_files: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.documents:
            raise InputError("the corpus holds no documents; give at least one text with words")
        check_utf8_texts(self.documents, "document")
        if len(self.sources) != len(self.documents):
            raise InputError(
                f"{len(self.sources)} sources for {len(self.documents)} documents; expected one per document"
            )

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"Corpus({len(self)} documents from {len(set(self.sources))} files)"

    def words(self, document: int) -> list[str]:
        """Return the words of a document, lower-cased, in order."""
        return words_of(self.documents[document])

    def sample(self, n: int, seed: int = 0) -> Corpus:
        """Draw ``n`` documents without replacement, in the corpus's order, or all if there are fewer.

        Raises:
            InputError: for ``n`` below 1.
        """
        check_count(n=(n, 1))
        if n >= len(self):
            return self
        chosen = np.sort(generator(seed, "corpus sample").permutation(len(self))[:n])
        return replace(self, documents=[self.documents[i] for i in chosen], sources=[self.sources[i] for i in chosen])

    def encode(
        self,
        tokenizer: Any,
        words: Sequence[str],
        max_length: int | None = None,
        *,
        bos: Bos = "model",
        d_vocab: int | None = None,
        progress: bool = False,
    ) -> EncodedCorpus:
        """Tokenize every document, and find which tokens are whole words of ``words``.

        Special tokens are added as the tokenizer does for its model, but for ``bos``. A document with more tokens than
        ``max_length`` is cut into windows that do not overlap, each with its special tokens.

        Args:
            tokenizer: a fast Hugging Face tokenizer.
            words: lower-cased. A token's label is a place in this list.
            max_length: the model's context, special tokens included. ``None``: no limit.
            bos: whether each window begins with the beginning-of-sequence token: ``"model"`` leaves it to the
                tokenizer, ``"yes"`` adds one if there is none, ``"no"`` removes it.
            d_vocab: number of the model's token embeddings. ``None``: do not check.
            progress: show a progress bar.

        Raises:
            InputError: for a tokenizer that cannot map tokens to characters, has no beginning-of-sequence token to add
                or remove, or gives ids beyond the model's embeddings. Also for a ``max_length`` that leaves room for
                special tokens only.
        """
        return encode_corpus(self.documents, tokenizer, words, max_length, bos=bos, d_vocab=d_vocab, progress=progress)
