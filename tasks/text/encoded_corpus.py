"""Text as tokens, and which of them are whole words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Int, Int32
from torch import Tensor
from tqdm import tqdm

from tasks.batch import Batch, pad_right
from tasks.batch_rows import token_batch_rows
from tasks.errors import InputError
from tasks.text.bos_token import Bos, begin_tokens, beginning_id
from tasks.text.token_ids import check_token_ids, known_pad_token_id
from tasks.text.words import word_spans

_Spans: TypeAlias = list[tuple[int, int]]  # start and end of each token in the characters of a text
_Row: TypeAlias = Int[np.ndarray, "_"]  # one value per token of a window


@dataclass(frozen=True, repr=False)
class EncodedCorpus:
    """A tokenized corpus. Memory: 8 bytes per token.

    Attributes:
        words: the words, which labels number.
        windows: token ids of each window, in the order of the text, special tokens included. A short document is one.
        labels: for each token of each window, the number of its word. -1 for a piece of a word, punctuation, a special
            or unknown token, or a word that is not in ``words``.
        token_of_word: the token id that most often stood for each word (the smaller id of two as frequent),
            -1 if none did.
        n_documents: number of documents.
        n_cut: number of documents longer than the context, which were cut into windows.
        occurrences: how often words of ``words`` occur in the text.
        lost: how many of these the tokenizer split into pieces or did not know.
        documents: the document that each window was cut from, from 0.
        pad_id: the token id to pad with.

    Example:
        >>> encoded = EncodedCorpus(
        ...     words=["cat", "dog"],
        ...     windows=[np.array([7, 8, 9]), np.array([9])],
        ...     labels=[np.array([0, -1, 1]), np.array([1])],
        ...     token_of_word=torch.tensor([7, 9]),
        ...     n_documents=2,
        ...     n_cut=0,
        ...     occurrences=3,
        ...     lost=0,
        ...     documents=np.array([0, 1]),
        ... )
        >>> [batch.labels["word"].tolist() for batch in encoded.batches(tokens_per_batch=3)]
        [[[0, -1, 1]], [[1]]]
    """

    words: Sequence[str]
    windows: Sequence[_Row]
    labels: Sequence[_Row]
    token_of_word: Int[Tensor, "word"]
    n_documents: int
    n_cut: int
    occurrences: int
    lost: int
    documents: Int[np.ndarray, "window"]
    pad_id: int = 0

    def __repr__(self) -> str:
        return f"EncodedCorpus({self.n_documents} documents in {len(self.windows)} windows, {len(self.words)} words)"

    def check_whole(self, or_else: str = "") -> None:
        """Refuse to go on if the tokenizer splits or does not know every one of ``words``.

        Args:
            or_else: another way out, such as ``", or a larger threshold"``.

        Raises:
            InputError: naming how many occurrences were lost.
        """
        if not bool((self.token_of_word >= 0).any()):
            raise InputError(
                f"the tokenizer leaves none of the {len(self.words)} topic words whole: {self.lost} of "
                f"{self.occurrences} occurrences were lost, split or unknown; give a corpus in the model's "
                f"language{or_else}"
            )

    def batches(self, tokens_per_batch: int = 4096) -> Iterator[Batch]:
        """Yield batches with the labels ``word`` (per token) and ``document`` (per example), padded on the right.

        ``index`` is the window's number. Windows of similar length come together, longest first: there is little
        padding, and a batch too large for memory is the first one.

        Args:
            tokens_per_batch: most tokens of a batch, padding included.

        Raises:
            InputError: for a window longer than ``tokens_per_batch``.
        """
        lengths = [len(window) for window in self.windows]
        for rows in token_batch_rows(lengths, tokens_per_batch, "window {}".format):
            tokens, attention_mask = pad_right([torch.from_numpy(self.windows[row]) for row in rows], self.pad_id)
            words, _ = pad_right([torch.from_numpy(self.labels[row]) for row in rows], -1)
            labels = {"word": words.long(), "document": torch.from_numpy(self.documents[rows])}
            yield Batch(tokens.long(), attention_mask, labels=labels, index=torch.from_numpy(rows))


def check_corpus_tokenizer(tokenizer: Any) -> None:
    """Refuse a tokenizer that cannot map tokens to characters of the text."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"this model's tokenizer ({type(tokenizer).__name__}) is a slow one, which cannot say where in the text a "
            "token is; save a fast one (tokenizer.json) with the model"
        )


def encode_corpus(
    documents: Sequence[str],
    tokenizer: Any,
    words: Sequence[str],
    max_length: int | None,
    *,
    bos: Bos = "model",
    d_vocab: int | None = None,
    progress: bool = False,
) -> EncodedCorpus:
    """Tokenize documents as ``Corpus.encode``."""
    check_corpus_tokenizer(tokenizer)
    beginning = _Beginning(tokenizer, bos)
    options = _options(tokenizer, max_length, beginning.n_added)
    encoding = _Encoding(tokenizer.unk_token_id, {word: i for i, word in enumerate(words)})
    bar = tqdm(documents, desc="tokenizing", unit="document", leave=False, disable=not progress)
    with _cut_from_beginning(tokenizer):
        for number, text in enumerate(bar, start=1):
            encoded = tokenizer([text], **options)
            windows, spans = beginning.apply(encoded["input_ids"], encoded["offset_mapping"])
            check_token_ids(windows, d_vocab, f"document {number}")
            encoding.add(number - 1, text, windows, spans)
    return EncodedCorpus(
        words=list(words),
        windows=encoding.windows,
        labels=encoding.labels,
        token_of_word=encoding.token_of_word(),
        n_documents=len(documents),
        n_cut=encoding.n_cut,
        occurrences=encoding.occurrences,
        lost=encoding.lost,
        documents=np.array(encoding.documents, dtype=np.int64),
        pad_id=known_pad_token_id(tokenizer.pad_token_id, d_vocab),
    )


def _options(tokenizer: Any, max_length: int | None, n_added: int) -> dict[str, Any]:
    """Return the tokenizer's options for windows of at most ``max_length`` tokens, of which ``n_added`` come later."""
    if max_length is None:
        return {"return_offsets_mapping": True}
    n_special = tokenizer.num_special_tokens_to_add() + n_added
    if max_length <= n_special:
        raise InputError(
            f"max_length is {max_length}, of which {n_special} are special tokens; expected at least {n_special + 1}"
        )
    windows = {"truncation": True, "return_overflowing_tokens": True, "max_length": max_length - n_added}
    return {"return_offsets_mapping": True, **windows}


@contextmanager
def _cut_from_beginning(tokenizer: Any) -> Iterator[None]:
    """Let a tokenizer that keeps the end of a long text (``truncation_side``) give its first window first."""
    before = tokenizer.truncation_side
    tokenizer.truncation_side = "right"
    try:
        yield
    finally:
        tokenizer.truncation_side = before


class _Beginning:
    """The rule of ``begin_tokens``, for windows and for the characters of their tokens.

    Attributes:
        n_added: special tokens that the rule adds to each window, -1 if it removes one.
    """

    def __init__(self, tokenizer: Any, bos: Bos) -> None:
        self._token = beginning_id(tokenizer, bos)
        self._bos = bos
        ids = list(tokenizer("a")["input_ids"])
        self.n_added = len(begin_tokens(ids, self._token, bos)) - len(ids)

    def apply(self, windows: list[list[int]], spans: list[_Spans]) -> tuple[list[list[int]], list[_Spans]]:
        """Return windows and spans with the token added or removed."""
        if self.n_added == 0:  # also if a later window begins with such a token of the text
            return windows, spans
        new_windows = [begin_tokens(window, self._token, self._bos) for window in windows]
        new_spans = []
        for window, new_window, window_spans in zip(windows, new_windows, spans, strict=True):
            n_added = len(new_window) - len(window)  # 1, 0 or -1
            new_spans.append([(0, 0)] * n_added + window_spans[max(0, -n_added) :])
        return new_windows, new_spans


class _Encoding:
    """Windows and labels of the documents so far.

    Args:
        unknown_id: the token id of unknown words.
        number_of: the number of each word that is labelled.
    """

    def __init__(self, unknown_id: int | None, number_of: dict[str, int]) -> None:
        self.unknown_id = unknown_id
        self.number_of = number_of
        self.windows: list[_Row] = []
        self.labels: list[_Row] = []
        self.documents: list[int] = []
        self.n_cut = 0
        self.occurrences = 0
        self.lost = 0
        self._tokens_of_word: list[Counter[int]] = [Counter() for _ in number_of]

    def add(self, document: int, text: str, windows: list[list[int]], spans: list[_Spans]) -> None:
        """Add the windows of a document."""
        ids = np.array(list(chain.from_iterable(windows)), dtype=np.int32)
        if len(ids) == 0:
            return
        labels = self._label(text, ids, chain.from_iterable(spans))
        ends = np.cumsum([len(window) for window in windows])[:-1]
        self.windows += np.split(ids, ends)
        self.labels += np.split(labels, ends)
        self.documents += [document] * len(windows)
        self.n_cut += len(windows) > 1

    def _label(
        self, text: str, ids: Int32[np.ndarray, "token"], spans: Iterable[tuple[int, int]]
    ) -> Int32[np.ndarray, "token"]:
        """Return the number of the word that each token is, or -1, and count the tokens of each word."""
        labels = np.full(len(ids), -1, dtype=np.int32)
        words = word_spans(text)
        if not words:
            return labels
        numbers = np.array([self.number_of.get(text[start:end].lower(), -1) for start, end in words])
        trimmed = np.array([_trim(text, *span) for span in spans])
        word, is_word = _whole_words(np.array(words), trimmed)
        if self.unknown_id is not None:
            is_word &= ids != self.unknown_id
        labels[is_word] = numbers[word[is_word]]
        is_listed = labels >= 0
        for number, token in zip(labels[is_listed].tolist(), ids[is_listed].tolist(), strict=True):
            self._tokens_of_word[number][token] += 1
        occurrences = int((numbers >= 0).sum())
        self.occurrences += occurrences
        self.lost += occurrences - int(is_listed.sum())
        return labels

    def token_of_word(self) -> Int[Tensor, "word"]:
        """Return the commonest token of each word, the smallest of several, -1 if it has none."""
        commonest = []
        for tokens in self._tokens_of_word:
            ranked = sorted((-count, token) for token, count in tokens.items())
            commonest.append(ranked[0][1] if ranked else -1)
        return torch.tensor(commonest, dtype=torch.long)


def _whole_words(
    words: Int[np.ndarray, "word 2"], tokens: Int[np.ndarray, "token 2"]
) -> tuple[Int[np.ndarray, "token"], Bool[np.ndarray, "token"]]:
    """Find the tokens that are a word: they span all of it, and no other token touches it.

    Args:
        words: spans of the words of a text.
        tokens: spans of its tokens, without the white space that some tokenizers count in.

    Returns:
        A word that each token touches, and whether the token is that word.
    """
    word_starts, word_ends = words.T
    starts, ends = tokens.T
    first = np.searchsorted(word_ends, starts, side="right")  # a token touches the words from first to end - 1
    end = np.searchsorted(word_starts, ends, side="left")
    touches_one = (ends > starts) & (end - first == 1)
    n_tokens = np.bincount(first[touches_one], minlength=len(words))
    word = np.where(touches_one, first, 0)
    spans_word = (starts == word_starts[word]) & (ends == word_ends[word])
    return word, touches_one & spans_word & (n_tokens[word] == 1)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
