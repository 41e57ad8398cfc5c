"""The one record that travels from tasks to models and probes."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tasks.errors import InputError, check_at_least, check_count

_OPTIONAL = ("attention_mask", "targets", "loss_mask")


@dataclass(frozen=True, repr=False)
class Batch:
    """Labelled token sequences.

    Attributes:
        tokens: ``[batch pos]`` integer token ids.
        attention_mask: ``[batch pos]`` bool, true on real tokens; ``None`` when every token is real. Numbers 0 and 1,
            as tokenizers give them, become bool.
        targets: ``[batch pos]`` integer token ids the loss compares with, or ``None``.
        loss_mask: ``[batch pos]`` bool, true where the loss counts, or ``None``.
        positions: named positions, ``[batch]`` each, such as ``{"input": ...}``.
        labels: named integer labels, per example ``[batch]`` or per token ``[batch pos]``. Bools become 0 and 1.
        index: ``[batch]`` the examples' stable identities. Probes that keep rows order them by it,
            so that the order of batches cannot change a result. Defaults to ``0..batch-1``.
        lacks: what ``label`` says about a missing label: by name, the whole sentence; under ``""``, the way out for
            every other, in which ``%r`` stands for the name.

    Raises:
        InputError: when a field's shape does not fit ``tokens``, or tokens, index or labels are not integers.

    Example:
        >>> batch = Batch(torch.tensor([[1, 2], [3, 4]]), labels={"task": torch.tensor([0, 1])})
        >>> len(batch), batch.index.tolist()
        (2, [0, 1])
        >>> batch.select(torch.tensor([1])).labels["task"].tolist()
        [1]
    """

    tokens: Tensor
    attention_mask: Tensor | None = None
    targets: Tensor | None = None
    loss_mask: Tensor | None = None
    positions: Mapping[str, Tensor] = field(default_factory=dict)
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    index: Tensor = None  # type: ignore[assignment]  # filled in __post_init__
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2:
            raise InputError(
                f"tokens has shape {tuple(self.tokens.shape)}; expected [batch pos]: "
                "stack the sequences, padded to one length"
            )
        if self.tokens.is_floating_point() or self.tokens.is_complex() or self.tokens.dtype == torch.bool:
            raise InputError(f"tokens is {self.tokens.dtype}; expected integer token ids: give tokens.long()")
        if self.attention_mask is not None and self.attention_mask.dtype != torch.bool:
            object.__setattr__(self, "attention_mask", self.attention_mask.bool())
        if self.index is None:
            object.__setattr__(self, "index", torch.arange(len(self.tokens), device=self.tokens.device))
        if self.index.is_floating_point() or self.index.is_complex() or self.index.dtype == torch.bool:
            raise InputError(f"index is {self.index.dtype}; expected integers, one per example: give index.long()")
        batch, pos = self.tokens.shape
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None and value.shape != (batch, pos):
                raise InputError(f"{name} has shape {tuple(value.shape)}; expected {(batch, pos)} like tokens")
        per_example: dict[str, Tensor] = {f"positions[{k!r}]": v for k, v in self.positions.items()}
        per_example["index"] = self.index
        for name, value in per_example.items():
            if value.shape != (batch,):
                raise InputError(f"{name} has shape {tuple(value.shape)}; expected {(batch,)}, one per example")
        for name, value in self.labels.items():
            if value.shape not in ((batch,), (batch, pos)):
                raise InputError(
                    f"labels[{name!r}] has shape {tuple(value.shape)}; expected {(batch,)} per example "
                    f"or {(batch, pos)} per token"
                )
            if value.is_floating_point() or value.is_complex():
                raise InputError(
                    f"labels[{name!r}] is {value.dtype}; expected integers, one for each class: give classes, such as "
                    "torch.unique(values, return_inverse=True)[1]"
                )
        if any(value.dtype == torch.bool for value in self.labels.values()):
            labels = {k: v.long() if v.dtype == torch.bool else v for k, v in self.labels.items()}
            object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        """Return one line, whatever the size.

        Example:
            >>> Batch(torch.tensor([[1, 2], [3, 4]]), labels={"task": torch.tensor([0, 1])})
            Batch(2 sequences of 2 tokens, labels: ['task'])
        """
        n, width = self.tokens.shape
        named = [("labels", self.labels), ("positions", self.positions)]
        names = [f", {what}: {reprlib.repr(list(values))}" for what, values in named if values]
        return f"Batch({n} sequences of {width} tokens{''.join(names)})"

    def label(self, name: str, per: Literal["example", "token"] | None = None) -> Tensor:
        """The label called ``name``, of either kind or of the one that is asked for.

        Raises:
            InputError: for a name that is not there, listing those that are, or a label of the other kind.
        """
        if name not in self.labels:
            have = ", ".join(repr(k) for k in self.labels) or "no labels"
            way = self.lacks[""] % name if "" in self.lacks else "add it to Batch.labels"
            raise InputError(self.lacks.get(name) or f"no label {name!r} in this batch (it has {have}); {way}")
        found = self.labels[name]
        if per is not None and found.ndim != ("example", "token").index(per) + 1:
            other = "token" if per == "example" else "example"
            raise InputError(f"label {name!r} is per {other}; give a label with one value per {per}")
        return found

    def position(self, name: str) -> Tensor:
        """The named position, ``[batch]``; an ``InputError`` names the positions that exist."""
        if name not in self.positions:
            have = ", ".join(repr(k) for k in self.positions) or "no named positions"
            raise InputError(f"no position {name!r} in this batch (it has {have}); add it to Batch.positions")
        return self.positions[name]

    def lengths(self) -> Tensor:
        """``[batch]`` number of real tokens in each sequence."""
        if self.attention_mask is None:
            return torch.full_like(self.index, self.tokens.shape[1])
        return self.attention_mask.sum(dim=1)

    def last_positions(self) -> Tensor:
        """``[batch]`` where the last real token stands, whichever side is padded.

        Raises:
            InputError: see ``check_real``.
        """
        self.check_real()
        n, width = self.tokens.shape
        if self.attention_mask is None or not n:
            return torch.full((n,), width - 1, device=self.tokens.device)
        return width - 1 - self.attention_mask.flip(1).long().argmax(dim=1)

    def first_positions(self) -> Tensor:
        """``[batch]`` where the first real token stands, whichever side is padded.

        Raises:
            InputError: see ``check_real``.
        """
        self.check_real()
        if self.attention_mask is None or not len(self):
            return torch.zeros(len(self), dtype=torch.long, device=self.tokens.device)
        return self.attention_mask.long().argmax(dim=1)

    def check_real(self) -> None:
        """Refuse an example without a real token: all that could be measured of it is padding.

        Raises:
            InputError: naming the example.
        """
        if len(self) and not self.tokens.shape[1]:
            raise InputError(f"example index {int(self.index[0])} has no tokens; leave it out")
        mask = self.attention_mask
        if mask is not None and not bool((real := mask.any(dim=1)).all()):
            hidden = int(self.index[~real.to(self.index.device)][0])
            raise InputError(f"example index {hidden} has no real token (its attention mask is all 0); leave it out")

    @property
    def padded_right(self) -> bool:
        """Whether padding, if any, follows the real tokens: a causal model then needs no mask."""
        mask = self.attention_mask
        return mask is None or bool((mask[:, 1:] <= mask[:, :-1]).all())

    def _fields(self) -> str:
        optional = [name for name in _OPTIONAL if getattr(self, name) is not None]
        names = [*optional, *sorted(self.positions), *(f"{k} {v.ndim}-d" for k, v in sorted(self.labels.items()))]
        return f"{self.tokens.shape[1]} tokens per row and {', '.join(names) or 'no other fields'}"

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with every tensor on ``device``; returns itself when all are there already."""
        tensors = [self.tokens, self.index, *self.positions.values(), *self.labels.values()]
        tensors += [value for name in _OPTIONAL if (value := getattr(self, name)) is not None]
        if all(tensor.device == torch.device(device) for tensor in tensors):
            return self
        return _joined([self], lambda mine: mine[0].to(device))

    def select(self, rows: Tensor | slice) -> Batch:
        """The given examples, in the given order."""
        return _joined([self], lambda mine: mine[0][rows])

    def split(self, batch_size: int) -> Iterator[Batch]:
        """The same examples in consecutive batches of ``batch_size``; the last may be smaller."""
        check_at_least(batch_size=(batch_size, 1))
        for start in range(0, len(self), batch_size):
            yield self.select(slice(start, start + batch_size))

    def padded_to(self, length: int) -> Batch:
        """Return the same examples with padding on the right, up to ``length`` tokens.

        Raises:
            InputError: for fewer tokens than the batch has.

        Example:
            >>> batch = Batch(torch.tensor([[1, 2]])).padded_to(3)
            >>> batch.tokens.tolist(), batch.attention_mask.tolist()
            ([[1, 2, 0]], [[True, True, False]])
        """
        more = length - self.tokens.shape[1]
        if more < 0:
            raise InputError(f"length is {length}, but the batch has {self.tokens.shape[1]} tokens; give at least that")
        real = torch.ones_like(self.tokens, dtype=torch.bool) if self.attention_mask is None else self.attention_mask
        counts = real if self.targets is not None and self.loss_mask is None else self.loss_mask

        def padded(x: Tensor) -> Tensor:
            return torch.nn.functional.pad(x, (0, more)) if x.ndim == 2 else x

        return replace(
            self,
            tokens=padded(self.tokens),
            attention_mask=padded(real),
            targets=None if self.targets is None else padded(self.targets),
            loss_mask=None if counts is None else padded(counts),
            labels={name: padded(label) for name, label in self.labels.items()},
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """One batch of all examples. Every batch must have the same fields and sequence length."""
        if not batches:
            raise InputError("no batches to join; give at least one")
        shapes = [batch._fields() for batch in batches]
        for i, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise InputError(f"batch {i} has {shape}, but batch 0 has {shapes[0]}; join batches of the same fields")

        return _joined(batches, torch.cat)


def _joined(batches: Sequence[Batch], join: Callable[[list[Tensor]], Tensor]) -> Batch:
    """A batch whose every tensor is made of those of batches with the same fields."""
    first = batches[0]
    present = [name for name in ("tokens", "index", *_OPTIONAL) if getattr(first, name) is not None]
    return Batch(
        **{name: join([getattr(batch, name) for batch in batches]) for name in present},
        positions={k: join([batch.positions[k] for batch in batches]) for k in first.positions},
        labels={k: join([batch.labels[k] for batch in batches]) for k in first.labels},
        lacks={k: why for batch in batches for k, why in batch.lacks.items()},
    )


def row_batches(n: int, batch_size: int) -> Iterator[np.ndarray]:
    """Which of ``n`` rows stand in each of consecutive batches; the last may be smaller.

    Example:
        >>> [rows.tolist() for rows in row_batches(5, 2)]
        [[0, 1], [2, 3], [4]]
    """
    check_at_least(batch_size=(batch_size, 1))
    for start in range(0, n, batch_size):
        yield np.arange(start, min(start + batch_size, n))


def token_batches(lengths: Sequence[int], tokens_per_batch: int, name: Callable[[int], str]) -> Iterator[np.ndarray]:
    """Which sequences stand in each of several batches: those of like length together, longest first.

    A batch's number of sequences times its longest is at most ``tokens_per_batch``, which counts padding too. It ends
    earlier where more than 1/32 of that would be padding, so that a few sequences of very unlike length are not padded
    to the longest.

    Args:
        lengths: tokens of each sequence.
        tokens_per_batch: most tokens of a batch.
        name: what to call a sequence, by its place in ``lengths``.

    Raises:
        InputError: for a sequence longer than ``tokens_per_batch``.

    Example:
        >>> [rows.tolist() for rows in token_batches([3, 1, 6, 2], 6, str)]
        [[2], [0, 3], [1]]
    """
    check_count(tokens_per_batch=(tokens_per_batch, 1))
    counts = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-counts, kind="stable")
    if len(order) and (most := int(counts[order[0]])) > tokens_per_batch:
        raise InputError(
            f"tokens_per_batch is {tokens_per_batch}, fewer than the {most} tokens of {name(int(order[0]))}; give at "
            f"least {most}, or leave out longer examples"
        )
    start = 0
    while start < len(order):
        longest = max(1, int(counts[order[start]]))
        room = order[start : start + tokens_per_batch // longest]
        padding = np.cumsum(longest - counts[room])
        rows = room[: max(1, int(np.searchsorted(padding, -(-tokens_per_batch // 32), side="right")))]
        yield rows
        start += len(rows)
