"""The one record that travels from tasks to models and probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tasks.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Labelled token sequences.

    Attributes:
        tokens: ``[batch pos]`` integer token ids.
        attention_mask: ``[batch pos]`` bool, true on real tokens; ``None`` when every token is real.
        targets: ``[batch pos]`` integer token ids the loss compares with, or ``None``.
        loss_mask: ``[batch pos]`` bool, true where the loss counts, or ``None``.
        positions: named positions, ``[batch]`` each, such as ``{"input": ...}``.
        labels: named integer labels, per example ``[batch]`` or per token ``[batch pos]``.
        index: ``[batch]`` the examples' stable identities. Probes that keep rows order them by it,
            so that the order of batches cannot change a result. Defaults to ``0..batch-1``.

    Raises:
        InputError: when a field's shape does not fit ``tokens``.

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

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2:
            raise InputError(
                f"tokens has shape {tuple(self.tokens.shape)}; expected [batch pos]: "
                "stack the sequences, padded to one length"
            )
        if self.index is None:
            object.__setattr__(self, "index", torch.arange(len(self.tokens), device=self.tokens.device))
        batch, pos = self.tokens.shape
        for name in ("attention_mask", "targets", "loss_mask"):
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

    def __len__(self) -> int:
        return len(self.tokens)

    def label(self, name: str) -> Tensor:
        """The label called ``name``; an ``InputError`` names the labels that exist."""
        if name not in self.labels:
            have = ", ".join(repr(k) for k in self.labels) or "no labels"
            raise InputError(f"no label {name!r} in this batch (it has {have}); add it to Batch.labels")
        return self.labels[name]

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
        """``[batch]`` where the last real token stands, whichever side is padded."""
        pos = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        if self.attention_mask is None:
            return pos[-1].expand(len(self))
        return (pos * self.attention_mask).amax(dim=1)

    @property
    def padded_right(self) -> bool:
        """Whether padding, if any, follows the real tokens: a causal model then needs no mask."""
        mask = self.attention_mask
        return mask is None or bool((mask[:, 1:] <= mask[:, :-1]).all())

    def _fields(self) -> str:
        optional = [n for n in ("attention_mask", "targets", "loss_mask") if getattr(self, n) is not None]
        names = [*optional, *sorted(self.positions), *(f"{k} {v.ndim}-d" for k, v in sorted(self.labels.items()))]
        return f"{self.tokens.shape[1]} tokens a row and {', '.join(names) or 'no other fields'}"

    def _map(self, fn: Any) -> Batch:
        optional = {
            name: None if (value := getattr(self, name)) is None else fn(value)
            for name in ("attention_mask", "targets", "loss_mask")
        }
        return replace(
            self,
            tokens=fn(self.tokens),
            index=fn(self.index),
            positions={k: fn(v) for k, v in self.positions.items()},
            labels={k: fn(v) for k, v in self.labels.items()},
            **optional,
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``; returns itself when it is there already."""
        if self.tokens.device == torch.device(device):
            return self
        return self._map(lambda t: t.to(device))

    def select(self, rows: Tensor | slice) -> Batch:
        """The given examples, in the given order."""
        return self._map(lambda t: t[rows])

    def split(self, batch_size: int) -> Iterator[Batch]:
        """The same examples in consecutive batches of ``batch_size``; the last may be smaller."""
        check_batch_size(batch_size)
        for start in range(0, len(self), batch_size):
            yield self.select(slice(start, start + batch_size))

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """One batch of all examples. Every batch must have the same fields and sequence length."""
        if not batches:
            raise InputError("no batches to join; give at least one")
        shapes = [batch._fields() for batch in batches]
        for i, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise InputError(f"batch {i} has {shape}, but batch 0 has {shapes[0]}; join batches of the same fields")

        def join(pick: Any) -> Any:
            values = [pick(b) for b in batches]
            return None if values[0] is None else torch.cat(values)

        first = batches[0]
        return Batch(
            tokens=join(lambda b: b.tokens),
            attention_mask=join(lambda b: b.attention_mask),
            targets=join(lambda b: b.targets),
            loss_mask=join(lambda b: b.loss_mask),
            index=join(lambda b: b.index),
            positions={k: join(lambda b, k=k: b.positions[k]) for k in first.positions},
            labels={k: join(lambda b, k=k: b.labels[k]) for k in first.labels},
        )


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch of no examples.

    Raises:
        InputError: naming the size.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; expected at least 1")
