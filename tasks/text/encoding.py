"""Text as tokens, where it is known which token is a whole word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from tasks.batch import Batch, token_batches
from tasks.errors import InputError
from tasks.text.beginning import Bos, beginning_id, begun
from tasks.text.words import word_spans


@dataclass(frozen=True, repr=False)
class EncodedCorpus:
    """A tokenized corpus. Memory: 8 bytes per token.

    Attributes:
        words: what the labels number.
        windows: token ids of each window, special tokens included; a short document is one window.
        labels: for each token of each window, the number of the word it is, or -1: a piece of a
            word, punctuation, a special or unknown token, or a word that is not in ``words``.
        token_of_word: ``[n_words]`` the token id that most often stood for each word (the smaller id
            of two as frequent), -1 where none did.
        n_documents: number of documents.
        n_cut: documents that were longer than the context and cut into windows.
        occurrences: how often words of ``words`` occur in the text.
        lost: how many of these the tokenizer split into pieces or did not know.
        documents: ``[n_windows]`` the document that each window was cut from, from 0.
    """

    words: Sequence[str]
    windows: Sequence[np.ndarray]
    labels: Sequence[np.ndarray]
    token_of_word: torch.Tensor
    n_documents: int
    n_cut: int
    occurrences: int
    lost: int
    documents: np.ndarray
    pad_id: int = 0

    def __repr__(self) -> str:
        return f"EncodedCorpus({self.n_documents} documents in {len(self.windows)} windows, {len(self.words)} words)"

    def check_whole(self, tokenizer: str = "the tokenizer", or_else: str = "") -> None:
        """Refuse to go on if the tokenizer splits or does not know every one of ``words``.

        Args:
            tokenizer: what to call it in the error.
            or_else: another way out, such as ``", or a larger threshold"``.

        Raises:
            InputError: naming how many occurrences were lost.
        """
        if not bool((self.token_of_word >= 0).any()):
            raise InputError(
                f"{tokenizer} leaves none of the {len(self.words)} topic words whole: {self.lost} of "
                f"{self.occurrences} occurrences were lost, split or unknown; give a corpus in the model's "
                f"language{or_else}"
            )

    def batches(self, tokens_per_batch: int = 4096) -> Iterator[Batch]:
        """Batches with ``labels["word"]`` ``[batch pos]``, ``labels["document"]`` ``[batch]``, an attention mask, and
        the window's number as ``index``; padded on the right.

        Windows of similar length come together, longest first: there is little padding, and a batch too large
        for memory is the first one.

        Args:
            tokens_per_batch: most tokens of a batch, padding included.

        Raises:
            InputError: for a window longer than ``tokens_per_batch``.
        """
        for rows in token_batches(list(map(len, self.windows)), tokens_per_batch, lambda i: f"window {i}"):
            tokens = torch.full((len(rows), len(self.windows[rows[0]])), self.pad_id)
            words, mask = torch.full_like(tokens, -1), torch.zeros_like(tokens, dtype=torch.bool)
            for i, row in enumerate(rows):
                n = len(self.windows[row])
                tokens[i, :n] = torch.from_numpy(self.windows[row])
                words[i, :n] = torch.from_numpy(self.labels[row])
                mask[i, :n] = True
            labels = {"word": words, "document": torch.from_numpy(self.documents[rows])}
            yield Batch(tokens, attention_mask=mask, labels=labels, index=torch.from_numpy(rows))


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse a tokenizer that cannot say which characters of the text a token stands for."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"this model's tokenizer ({type(tokenizer).__name__}) is a slow one, which cannot say where in the text a "
            "token is; save a fast one (tokenizer.json) with the model"
        )


def encode(
    documents: Sequence[str],
    tokenizer: Any,
    words: Sequence[str],
    max_length: int | None,
    *,
    bos: Bos = "model",
    d_vocab: int | None = None,
    progress: bool = False,
) -> EncodedCorpus:
    """Tokenize documents; see ``Corpus.encode``."""
    check_tokenizer(tokenizer)
    begin = _Beginning(tokenizer, bos)
    special = tokenizer.num_special_tokens_to_add() + begin.more
    if max_length is not None and max_length <= special:
        raise InputError(
            f"max_length is {max_length}, of which {special} are special tokens; expected at least {special + 1}"
        )
    options = {} if max_length is None else {"max_length": max_length - begin.more, "return_overflowing_tokens": True}
    found = _Encoding(tokenizer.unk_token_id, {word: i for i, word in enumerate(words)})
    bar = tqdm(documents, desc="tokenizing", unit="document", leave=False, disable=not progress)
    for number, text in enumerate(bar, start=1):
        encoded = tokenizer([text], return_offsets_mapping=True, truncation=max_length is not None, **options)
        windows, offsets = begin(encoded["input_ids"], encoded["offset_mapping"])
        check_ids(windows, d_vocab, f"document {number}")
        found.add(number - 1, text, windows, offsets)
    return EncodedCorpus(
        words=list(words),
        windows=found.windows,
        labels=found.labels,
        token_of_word=found.token_of_word(),
        n_documents=len(documents),
        n_cut=found.n_cut,
        occurrences=found.occurrences,
        lost=found.lost,
        documents=np.array(found.documents, dtype=np.int64),
        pad_id=pad_within(tokenizer.pad_token_id, d_vocab),
    )


def check_ids(rows: Iterable[Sequence[int]], d_vocab: int | None, what: str) -> None:
    """Refuse token ids for which a model has no embedding.

    Args:
        rows: token ids.
        d_vocab: how many token embeddings the model has; ``None``: do not look.
        what: was read, for the message.
    """
    largest = max((max(row, default=0) for row in rows), default=0)
    if d_vocab is not None and largest >= d_vocab:
        raise InputError(
            f"{what} has token id {largest}, but the model has {d_vocab} token embeddings; save the model's "
            "own tokenizer"
        )


def pad_within(pad_id: int | None, d_vocab: int | None) -> int:
    """An id to pad with that the model has an embedding for. Which does not matter, since the mask hides it."""
    return 0 if pad_id is None or pad_id < 0 or (d_vocab is not None and pad_id >= d_vocab) else pad_id


class _Beginning:
    """Applies the rule of ``begun`` to windows, and to the characters that their tokens stand for.

    Attributes:
        more: special tokens of a window there are more than the tokenizer adds.
    """

    def __init__(self, tokenizer: Any, bos: Bos) -> None:
        self._token = beginning_id(tokenizer, bos)
        self._bos = bos
        ids = list(tokenizer("a")["input_ids"])
        self.more = len(begun(ids, self._token, bos)) - len(ids)

    def __call__(
        self, windows: list[list[int]], offsets: list[list[tuple[int, int]]]
    ) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
        if self.more == 0:  # also where a later window begins with such a token of the text
            return windows, offsets
        changed = [begun(window, self._token, self._bos) for window in windows]
        sizes = [len(after) - len(before) for before, after in zip(windows, changed, strict=True)]
        spans = [
            [(0, 0), *span] if size > 0 else span[1:] if size < 0 else span
            for span, size in zip(offsets, sizes, strict=True)
        ]
        return changed, spans


class _Encoding:
    """Windows and labels of the documents so far."""

    def __init__(self, unknown: int | None, number: dict[str, int]) -> None:
        self.unknown, self.number = unknown, number
        self.windows: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []
        self.documents: list[int] = []
        self.n_cut = self.occurrences = self.lost = 0
        self._seen: list[Counter[int]] = [Counter() for _ in number]

    def add(self, document: int, text: str, windows: list[list[int]], offsets: list[list[tuple[int, int]]]) -> None:
        ids = np.array([i for window in windows for i in window], dtype=np.int32)
        if not len(ids):
            return
        labels = self._label(text, ids, [span for window in offsets for span in window])
        ends = np.cumsum([len(window) for window in windows])[:-1]
        self.windows += np.split(ids, ends)
        self.labels += np.split(labels, ends)
        self.documents += [document] * len(windows)
        self.n_cut += len(windows) > 1

    def _label(self, text: str, ids: np.ndarray, offsets: list[tuple[int, int]]) -> np.ndarray:
        """``[n_tokens]`` word numbers: a token is a word when no other token touches that word and its
        span, without the white space some tokenizers count in, is the word's."""
        labels = np.full(len(ids), -1, dtype=np.int32)
        if not (spans := word_spans(text)):
            return labels
        starts, ends = np.array(spans).T
        numbers = np.array([self.number.get(text[a:b].lower(), -1) for a, b in spans])
        a, b = np.array([_trim(text, *span) for span in offsets]).T
        first = np.searchsorted(ends, a, side="right")  # the words a token touches: first .. last - 1
        last = np.searchsorted(starts, b, side="left")
        inside = (b > a) & (last - first == 1)
        touched = np.bincount(first[inside], minlength=len(spans))
        place = np.where(inside, first, 0)
        whole = inside & (a == starts[place]) & (b == ends[place]) & (touched[place] == 1)
        if self.unknown is not None:
            whole &= ids != self.unknown
        labels[whole] = numbers[first[whole]]
        for word, token in zip(labels[labels >= 0].tolist(), ids[labels >= 0].tolist(), strict=True):
            self._seen[word][token] += 1
        listed = int((numbers >= 0).sum())
        self.occurrences += listed
        self.lost += listed - int((labels >= 0).sum())
        return labels

    def token_of_word(self) -> torch.Tensor:
        return torch.tensor([min(seen, key=lambda t: (-seen[t], t)) if seen else -1 for seen in self._seen]).long()


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
