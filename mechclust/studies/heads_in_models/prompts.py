"""Prompts in which one word determines the answer and another is irrelevant, as decided by the ending.

``Anna: boat, Paul: horse. Anna: boat, Paul: horse. Anna:``: the answer is copied from after the earlier ``Anna:``, as
an induction head does. The word after ``Paul:`` is irrelevant. If the text instead ends in ``Anna: boat, Paul:``, that
word is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import torch

from tasks import Batch, InputError
from tasks.batch import pad_right
from tasks.settings import Several, WideSeed, check_settings
from tasks.text.prompts import Encode

Order = Literal["first", "second"]
ORDERS: tuple[Order, ...] = ("first", "second")
PERSON_NAMES = ("Anna", "Paul", "Mary", "John", "Lucy", "Mark", "Jane", "Adam", "Kate", "Luke")
NOUNS = (
    *("boat", "horse", "house", "car", "dog", "cat", "book", "hat", "ring", "bike", "knife", "lamp"),
    *("sword", "bell", "coat", "ship", "gun", "map", "key", "phone", "watch", "garden", "farm", "piano"),
)


@dataclass(frozen=True)
class WordPrompts:
    """Every pair of one person's thing and another person's thing, listed twice and then once more up to a name.

    Labels: ``asked`` is the thing of the person named last, ``other`` is the other person's thing, and ``answer`` is
    the token that continues the prompt.

    Args:
        n_words: number of different things per person. The two persons share none.
        seed: draws names and things.
        names: names to draw from, at least 2.
        nouns: things to draw from, at least twice ``n_words``.

    Raises:
        InputError: for fewer names or nouns than are drawn.

    Example:
        >>> prompts = WordPrompts(n_words=2)
        >>> prompts.texts("first")[0]
        'Jane: sword, Anna: dog. Jane: sword, Anna: dog. Jane:'
        >>> prompts.texts("second")[0]
        'Jane: sword, Anna: dog. Jane: sword, Anna: dog. Jane: sword, Anna:'
    """

    n_words: Several = 5
    seed: WideSeed = 0
    names: tuple[str, ...] = PERSON_NAMES
    nouns: tuple[str, ...] = NOUNS

    def __post_init__(self) -> None:
        check_settings(self)
        _check_words("names", self.names, 2)
        _check_words("nouns", self.nouns, 2 * self.n_words)

    def _drawn(self) -> tuple[list[str], list[str], list[str]]:
        """Return two names, and the things of each."""
        draw = np.random.default_rng([self.seed, 0x770D5])
        names = draw.permutation(sorted(set(self.names)))[:2].tolist()
        nouns = draw.permutation(sorted(set(self.nouns)))[: 2 * self.n_words].tolist()
        return names, nouns[: self.n_words], nouns[self.n_words :]

    def texts(self, order: Order) -> list[str]:
        """Return the prompts. Both orders have the same words in the same places."""
        (one, other), first, second = self._drawn()
        pairs = list(product(first, second))
        ends = [f"{one}:" if order == "first" else f"{one}: {a}, {other}:" for a, _ in pairs]
        return [2 * f"{one}: {a}, {other}: {b}. " + end for (a, b), end in zip(pairs, ends, strict=True)]

    def batch(self, encode: Encode, order: Order, *, pad_id: int = 0) -> Batch:
        """Return all prompts as one batch, padded on the right.

        Args:
            encode: texts to token ids, all at once.
            order: whose name comes last.
            pad_id: the id to pad with.

        Raises:
            InputError: for a tokenizer that begins two things with one token, or adds no token for a thing.
        """
        _, first, second = self._drawn()
        texts = self.texts(order)
        encoded = [list(ids) for ids in encode(texts)]
        word = torch.arange(self.n_words)
        of_first, of_second = torch.cartesian_prod(word, word).T  # in the order of the texts
        asked, other, things = (of_first, of_second, first) if order == "first" else (of_second, of_first, second)
        answers = _first_tokens(encode, texts[0], encoded[0], things)
        tokens, mask = pad_right([torch.tensor(ids) for ids in encoded], pad_id)
        return Batch(
            tokens=tokens,
            attention_mask=mask,
            labels={"asked": asked, "other": other, "answer": torch.tensor(answers)[asked]},
        )


def _check_words(setting: str, words: Sequence[str], least: int) -> None:
    n_words = len(set(words))
    if n_words < least:
        raise InputError(f"{setting} has {n_words} different words; expected at least {least}")


def _first_tokens(encode: Encode, prompt: str, ids: Sequence[int], things: Sequence[str]) -> list[int]:
    """Return the first token of each thing after a prompt."""
    encoded = encode([f"{prompt} {thing}" for thing in things])
    tokens = [int(longer[len(ids)]) if len(longer) > len(ids) else -1 for longer in encoded]
    if -1 in tokens or len(set(tokens)) < len(tokens):
        raise InputError(
            f"the tokenizer begins several of {', '.join(things)} with the same token, or with none of their own; give "
            "other nouns"
        )
    return tokens
