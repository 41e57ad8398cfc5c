"""Sparse modular addition: the data of Odonnat, Bouaziz & Cabannes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from tasks._random import generator
from tasks.batch import Batch
from tasks.batch_rows import consecutive_batch_rows, epoch_batch_rows
from tasks.errors import InputError
from tasks.settings import Size, SizeOfSeveral, WideSeed, check_settings
from tasks.task import Task

_MAX_ENUMERATED_SEQUENCES = 2**20
_MAX_MULTISET_CODES = 2**63  # codes are int64

_Logits: TypeAlias = Float[Tensor, "batch pos d_vocab"] | Float[Tensor, "batch d_vocab"]


@dataclass(frozen=True)
class SparseModularAddition(Task):
    """Sequences of digits below ``p``, classified by the sum modulo ``p`` of the digits in the support.

    The answer is read at the last position: ``targets`` there, ``loss_mask`` true there alone. A model
    that pools a sequence into one vector may give logits ``[batch d_vocab]`` to ``loss`` and
    ``accuracy`` as well.

    Labels, per example: ``answer`` (the sum modulo ``p``), ``sum`` (the sum itself) and ``multiset``: the digits in the
    support, in any order. Sequences of one multiset are equivalent. ``multiset`` is left out if its codes do not fit
    into 64 bits: if ``p`` to the number of digits in the support is above ``2**63``.

    Draws, for comparing seeds with another implementation: let ``rng(purpose, ...)`` be NumPy's
    ``default_rng([seed, crc32(purpose), ...])``. The splits are ``rng("train digits")`` and
    ``rng("test digits").integers(p, size=(n, length))``. Epoch ``e`` goes through the training sequences in the order
    ``rng("order", e).permutation(n_train)``.

    Args:
        p: the modulus, and the number of digits.
        length: digits of a sequence.
        support: positions that count. ``None``: the first ``n_support``.
        n_support: number of positions that count, if ``support`` is ``None``.
        n_embeddings: rows of the vocabulary, at least ``p``. More rows leave room for training on with a larger ``p``.
        n_train: training sequences, drawn once.
        n_test: test sequences, drawn once and independently.
        seed: seed of all random draws.

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

    p: SizeOfSeveral = 2
    length: Size = 12
    support: tuple[int, ...] | None = None
    n_support: Size = 5
    n_embeddings: Size = 3
    n_train: Size = 2048
    n_test: Size = 2048
    seed: WideSeed = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.support is None and self.n_support > self.length:
            raise InputError(f"n_support is {self.n_support}; expected at most the {self.length} digits of a sequence")
        if self.support is not None:
            self._check_support(self.support)
        if self.n_embeddings < self.p:
            raise InputError(f"n_embeddings is {self.n_embeddings}; expected at least p ({self.p}), one per digit")

    def _check_support(self, support: tuple[int, ...]) -> None:
        outside = [position for position in support if not 0 <= position < self.length]
        if outside or not support or len(set(support)) < len(support):
            wrong = f"position {outside[0]}" if outside else "an empty or repeated position"
            raise InputError(
                f"support has {wrong}; expected different positions from 0 to {self.length - 1}, such as (0, 1, 2)"
            )

    @property
    def positions(self) -> tuple[int, ...]:
        """The support, in order."""
        return tuple(range(self.n_support)) if self.support is None else tuple(sorted(self.support))

    @property
    def vocab(self) -> list[str]:
        """The digits, and numbers for the embeddings that no digit uses."""
        return [str(digit) for digit in range(self.n_embeddings)]

    @property
    def n_ctx(self) -> int:
        """Digits of a sequence."""
        return self.length

    @property
    def can_number_multisets(self) -> bool:
        """Whether the codes of multisets fit into 64 bits, so that batches have the label ``"multiset"``."""
        return self.p ** len(self.positions) <= _MAX_MULTISET_CODES

    @cached_property
    def _drawn(self) -> dict[str, Int[np.ndarray, "example pos"]]:
        sizes = {"train": self.n_train, "test": self.n_test}
        return {
            split: generator(self.seed, f"{split} digits").integers(self.p, size=(n, self.length))
            for split, n in sizes.items()
        }

    def _digits(self, split: str) -> Int[np.ndarray, "example pos"]:
        """Return the sequences of a split."""
        if split != "all":
            return self._drawn[split]
        if self.p**self.length > _MAX_ENUMERATED_SEQUENCES:
            raise InputError(
                f"there are {self.p}^{self.length} sequences, more than {_MAX_ENUMERATED_SEQUENCES} to enumerate; "
                "use the split 'test', a sample of them"
            )
        number = np.arange(self.p**self.length)[:, None]
        return number // self.p ** np.arange(self.length)[::-1] % self.p

    def _batch(self, digits: Int[np.ndarray, "batch pos"], index: Int[np.ndarray, "batch"]) -> Batch:
        in_support = np.sort(digits[:, self.positions], axis=1)
        total = in_support.sum(axis=1)
        labels = {"answer": total % self.p, "sum": total}
        lacks = {}
        n_support = in_support.shape[1]
        if self.can_number_multisets:
            # Sorted digits read as a number: each multiset has one code in all batches.
            labels["multiset"] = in_support @ (self.p ** np.arange(n_support)[::-1])
        else:
            lacks["multiset"] = (
                f"there are too many multisets of {n_support} digits below {self.p} to number; choose the label 'sum', "
                "or a smaller support"
            )
        tokens = torch.from_numpy(digits.astype(np.int64))
        targets = torch.zeros_like(tokens)
        targets[:, -1] = torch.from_numpy(labels["answer"])
        loss_mask = torch.zeros_like(tokens, dtype=torch.bool)
        loss_mask[:, -1] = True
        return Batch(
            tokens=tokens,
            targets=targets,
            loss_mask=loss_mask,
            labels={name: torch.from_numpy(values) for name, values in labels.items()},
            index=torch.from_numpy(index),
            lacks=lacks,
        )

    def batches(self, split: str, batch_size: int = 256) -> Iterator[Batch]:
        """Yield the sequences of a split, in a fixed order."""
        self._check_split(split)
        digits = self._digits(split)
        for rows in consecutive_batch_rows(len(digits), batch_size):
            yield self._batch(digits[rows], rows)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Return the batch of one step: each epoch goes through the training sequences in a new order."""
        return self.train_batches(range(step, step + 1), batch_size)

    def train_batches(self, steps: range, batch_size: int) -> Batch:
        """Return the batches of several steps as one, in order."""
        return self._train.select(self.train_rows(steps, batch_size))

    def train_rows(self, steps: range, batch_size: int) -> Int[Tensor, "batch"]:
        """Return which sequences of the split ``"train"`` the steps see, for code that gathers them itself."""
        self.epoch_steps(batch_size)
        rows = [epoch_batch_rows(self.seed, step, self.n_train, batch_size) for step in steps]
        return torch.from_numpy(np.concatenate(rows))

    def epoch_steps(self, batch_size: int) -> int:
        """Return the number of training steps of one epoch."""
        if not 1 <= batch_size <= self.n_train:
            raise InputError(f"batch_size is {batch_size}; expected 1 to the {self.n_train} training sequences")
        return self.n_train // batch_size

    @cached_property
    def _train(self) -> Batch:
        return self._batch(self._drawn["train"], np.arange(self.n_train))

    # ---- loss ----

    def loss(self, logits: _Logits, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean cross-entropy in nats over the rows of the vocabulary."""
        return self.loss_at(self._last(logits), batch.label("answer"))

    def loss_at(self, logits: Float[Tensor, "batch d_vocab"], targets: Integer[Tensor, "batch"]) -> Float[Tensor, ""]:
        """Return the mean cross-entropy in nats from the answers' logits and the answers alone."""
        return torch.nn.functional.cross_entropy(logits, targets)

    def accuracy(self, logits: _Logits, batch: Batch) -> Float[Tensor, "batch"]:
        """Return 1 for each example whose most likely answer is right and 0 for the others."""
        return (self._last(logits).argmax(dim=-1) == batch.label("answer")).float()

    def _last(self, logits: _Logits) -> Float[Tensor, "batch d_vocab"]:
        """Return the logits of the last position, also of a model that pooled its sequence."""
        return logits[:, -1] if logits.ndim == 3 else logits
