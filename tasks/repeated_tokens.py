"""Random tokens that repeat, for finding induction heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks._random import generator
from tasks.batch import Batch
from tasks.batch_rows import consecutive_batch_rows
from tasks.errors import InputError
from tasks.settings import Count, CountOrZero, Several, Size, check_count, check_settings
from tasks.task import Task


@dataclass(frozen=True)
class RepeatedTokens(Task):
    """Next-token prediction on sequences in which random tokens repeat over and over.

    A sequence draws a period, and as many different tokens. These repeat in order until it is full. From the second
    time on, each token can be predicted only from its earlier occurrence. Periods differ between sequences, so no fixed
    offset leads there.

    The loss counts the positions from the second time on: ``loss_mask`` is true there. ``targets`` are the next tokens
    at all positions, and 0 at the last, which has none. Label: ``period``, per example.

    Source: Olsson et al., In-context Learning and Induction Heads, 2022, who repeat random tokens once.

    Args:
        n_symbols: number of different tokens, with ids from 0.
        length: tokens of a sequence.
        periods: fewest and most tokens before they repeat, uniform between.
        bos: id of a token to begin every sequence with, such as a model's tokenizer has. ``None``: none. It is not
            among the others.
        n_test: sequences of the split ``"test"``. Every training step draws new ones.
        seed: seed of all random draws.

    Raises:
        InputError: for periods that do not repeat within a sequence, or more tokens in a period than there are.

    Example:
        >>> task = RepeatedTokens(n_symbols=20, length=8, periods=(3, 3))
        >>> batch = task.train_batch(step=0, batch_size=4)
        >>> tokens = batch.tokens[0].tolist()
        >>> tokens[:5] == tokens[3:], batch.loss_mask[0].tolist()
        (True, [False, False, False, True, True, True, True, False])
    """

    name: ClassVar[str] = "repeated-tokens"
    splits: ClassVar[tuple[str, ...]] = ("test",)

    n_symbols: Size = 64
    length: Several = 48
    periods: tuple[Count, Count] = (8, 20)
    bos: CountOrZero | None = None
    n_test: Count = 256
    seed: CountOrZero = 0

    def __post_init__(self) -> None:
        check_settings(self)
        fewest, most = self.periods
        if fewest > most:
            raise InputError(f"periods is {self.periods}; expected (fewest, most)")
        longest = self.length - self._start - 2
        if most > longest:
            raise InputError(f"periods has {most}; expected at most {longest} in sequences of {self.length} tokens")
        if most > len(self._symbols):
            raise InputError(f"periods has {most}; expected at most the {len(self._symbols)} different tokens")

    @property
    def _start(self) -> int:
        """Position of the first random token."""
        return 0 if self.bos is None else 1

    @cached_property
    def _symbols(self) -> Int[np.ndarray, "symbol"]:
        symbols = np.arange(self.n_symbols)
        return symbols if self.bos is None else symbols[symbols != self.bos]

    @property
    def vocab(self) -> list[str]:
        """Numbers, and ``<bos>`` for the token at the beginning."""
        n_ids = self.n_symbols if self.bos is None else max(self.n_symbols, self.bos + 1)
        return ["<bos>" if token == self.bos else str(token) for token in range(n_ids)]

    @property
    def n_ctx(self) -> int:
        """Tokens of a sequence."""
        return self.length

    def _draw(self, rng: np.random.Generator, index: Int[np.ndarray, "example"]) -> Batch:
        period = rng.integers(self.periods[0], self.periods[1] + 1, size=len(index))
        tokens = np.empty((len(index), self.length), dtype=np.int64)
        if self.bos is not None:
            tokens[:, 0] = self.bos
        for row, size in zip(tokens, period, strict=True):
            symbols = rng.choice(self._symbols, size=size, replace=False)
            row[self._start :] = np.resize(symbols, self.length - self._start)
        targets = np.zeros_like(tokens)
        targets[:, :-1] = tokens[:, 1:]
        position = np.arange(self.length)
        repeats = (position >= self._start + period[:, None]) & (position < self.length - 1)
        return Batch(
            tokens=torch.from_numpy(tokens),
            targets=torch.from_numpy(targets),
            loss_mask=torch.from_numpy(repeats),
            labels={"period": torch.from_numpy(period)},
            index=torch.from_numpy(index),
        )

    def batches(self, split: str, batch_size: int = 256) -> Iterator[Batch]:
        """Yield the sequences of a split, in a fixed order."""
        self._check_split(split)
        whole = self._draw(generator(self.seed, f"{split} sequences"), np.arange(self.n_test))
        for rows in consecutive_batch_rows(self.n_test, batch_size):
            yield whole.select(torch.from_numpy(rows))

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Return the batch of one step, of sequences that no other step sees."""
        check_count(step=(step, 0), batch_size=(batch_size, 1))
        index = step * batch_size + np.arange(batch_size)
        return self._draw(generator(self.seed, "train sequences", step), index)

    def accuracy(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, "batch"]:
        """Return the share of each sequence's predictable tokens that are the most likely ones."""
        assert batch.targets is not None
        assert batch.loss_mask is not None
        right = (logits.argmax(dim=-1) == batch.targets) & batch.loss_mask
        return right.sum(dim=1) / batch.loss_mask.sum(dim=1)
