"""Sparse modular addition: the data of Odonnat, Bouaziz & Cabannes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks._random import epoch_rows, generator
from tasks.batch import Batch, row_batches
from tasks.errors import InputError
from tasks.settings import Count, CountOrZero, Several, check_settings
from tasks.task import Task

_MOST_SEQUENCES = 2**20


@dataclass(frozen=True)
class SparseModularAddition(Task):
    """Sequences of digits below ``p``, classified by the sum modulo ``p`` of those in the support.

    The answer is read at the last position: ``targets`` there, ``loss_mask`` true there alone. A model
    that pools a sequence into one vector may give logits ``[batch d_vocab]`` to ``loss`` and
    ``accuracy`` as well.

    Labels, per example: ``answer`` (the sum modulo ``p``), ``sum`` (the sum itself) and ``multiset``:
    which digits stand in the support, in any order. Sequences of one multiset are equivalent.

    Draws, for comparing seeds with another implementation: with ``rng(purpose, ...)`` NumPy's
    ``default_rng([seed, crc32(purpose), ...])``, the splits are ``rng("train digits")`` and
    ``rng("test digits").integers(p, size=(n, length))``, and epoch ``e`` goes through the training
    sequences in the order ``rng("order", e).permutation(n_train)``.

    Args:
        p: the modulus, and the number of digits.
        length: digits of a sequence.
        support: positions that count; ``None``: the first ``n_support``.
        n_support: how many, where ``support`` is ``None``.
        n_embeddings: rows of the vocabulary, at least ``p``: a network that is to go on to a larger
            ``p`` has room for its digits.
        n_train: training sequences, drawn once.
        n_test: test sequences, drawn once and independently.
        seed: what all draws are addressed by.

    Raises:
        InputError: for ``p`` below 2, or a support that does not fit the sequence.

    Example:
        >>> task = SparseModularAddition(length=4, n_support=2, n_train=8, n_test=8)
        >>> batch = next(task.batches("all"))
        >>> len(batch), batch.tokens[13].tolist(), int(batch.labels["answer"][13])
        (16, [1, 1, 0, 1], 0)
    """

    name: ClassVar[str] = "sparse-modular-addition"
    splits: ClassVar[tuple[str, ...]] = ("train", "test", "all")

    p: Several = 2
    length: Count = 12
    support: tuple[int, ...] | None = None
    n_support: Count = 5
    n_embeddings: int = 3
    n_train: Count = 2048
    n_test: Count = 2048
    seed: CountOrZero = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.support is None and self.n_support > self.length:
            raise InputError(f"n_support is {self.n_support}; expected at most the {self.length} digits of a sequence")
        if self.support is not None:
            outside = [t for t in self.support if not 0 <= t < self.length]
            if outside or not self.support or len(set(self.support)) < len(self.support):
                what = f"position {outside[0]}" if outside else "an empty or repeated position"
                raise InputError(
                    f"support has {what}; expected different positions from 0 to {self.length - 1}, such as (0, 1, 2)"
                )
        if self.n_embeddings < self.p:
            raise InputError(f"n_embeddings is {self.n_embeddings}; expected at least p ({self.p}), one per digit")

    @property
    def positions(self) -> tuple[int, ...]:
        """The support, in order."""
        return tuple(range(self.n_support)) if self.support is None else tuple(sorted(self.support))

    @property
    def vocab(self) -> list[str]:
        return [str(digit) for digit in range(self.n_embeddings)]

    @property
    def n_ctx(self) -> int:
        return self.length

    @property
    def can_enumerate(self) -> bool:
        """Whether the split ``"all"``, every sequence there is, is small enough to be made."""
        return self.p**self.length <= _MOST_SEQUENCES

    @cached_property
    def _drawn(self) -> dict[str, np.ndarray]:
        sizes = {"train": self.n_train, "test": self.n_test}
        return {
            split: generator(self.seed, f"{split} digits").integers(self.p, size=(n, self.length))
            for split, n in sizes.items()
        }

    def _digits(self, split: str) -> np.ndarray:
        """``[n length]`` the sequences of a split."""
        if split != "all":
            return self._drawn[split]
        if not self.can_enumerate:
            raise InputError(
                f"there are {self.p}^{self.length} sequences, more than {_MOST_SEQUENCES} to enumerate; "
                "use the split 'test', a sample of them"
            )
        number = np.arange(self.p**self.length)[:, None]
        return number // self.p ** np.arange(self.length)[::-1] % self.p

    def _batch(self, digits: np.ndarray, index: np.ndarray) -> Batch:
        inside = np.sort(digits[:, self.positions], axis=1)
        total = inside.sum(axis=1)
        # Sorted digits read as a number: one code a multiset, the same in every batch.
        code = inside @ (self.p ** np.arange(inside.shape[1])[::-1])
        tokens, answer = torch.from_numpy(digits.astype(np.int64)), torch.from_numpy(total % self.p)
        targets, counts = torch.zeros_like(tokens), torch.zeros_like(tokens, dtype=torch.bool)
        targets[:, -1], counts[:, -1] = answer, True
        return Batch(
            tokens=tokens,
            targets=targets,
            loss_mask=counts,
            labels={"answer": answer, "sum": torch.from_numpy(total), "multiset": torch.from_numpy(code)},
            index=torch.from_numpy(index),
        )

    def batches(self, split: str, batch_size: int = 256) -> Iterator[Batch]:
        self._check_split(split)
        digits = self._digits(split)
        for rows in row_batches(len(digits), batch_size):
            yield self._batch(digits[rows], rows)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """The batch of one step: each epoch goes through the training sequences in an order of its own."""
        return self.train_batches(range(step, step + 1), batch_size)

    def train_batches(self, steps: range, batch_size: int) -> Batch:
        """The batches of several steps as one, in order."""
        return self._train.select(self.train_rows(steps, batch_size))

    def train_rows(self, steps: range, batch_size: int) -> Int[Tensor, "n"]:
        """Which sequences of the split ``"train"`` those are: what trains many networks gathers them itself."""
        self.epoch_steps(batch_size)
        rows = [epoch_rows(self.seed, step, self.n_train, batch_size) for step in steps]
        return torch.from_numpy(np.concatenate(rows))

    def epoch_steps(self, batch_size: int) -> int:
        """Training steps of one epoch."""
        if not 1 <= batch_size <= self.n_train:
            raise InputError(f"batch_size is {batch_size}; expected 1 to the {self.n_train} training sequences")
        return self.n_train // batch_size

    @cached_property
    def _train(self) -> Batch:
        return self._batch(self._drawn["train"], np.arange(self.n_train))

    # ---- loss ----

    def loss(self, logits: Float[Tensor, "batch ..."], batch: Batch) -> Float[Tensor, ""]:
        """Mean cross-entropy in nats over the rows of the vocabulary; logits ``[batch (pos) d_vocab]``."""
        return self.loss_at(self._last(logits), batch.label("answer"))

    def loss_at(self, logits: Float[Tensor, "batch d_vocab"], targets: Int[Tensor, "batch"]) -> Float[Tensor, ""]:
        """The same from the answers' logits and the answers alone."""
        return torch.nn.functional.cross_entropy(logits, targets)

    def accuracy(self, logits: Float[Tensor, "batch ..."], batch: Batch) -> Float[Tensor, "batch"]:
        """``[batch]`` 1 where the most likely answer is right."""
        return (self._last(logits).argmax(dim=-1) == batch.label("answer")).float()

    def _last(self, logits: Tensor) -> Float[Tensor, "batch d_vocab"]:
        return logits[:, -1] if logits.ndim == 3 else logits
