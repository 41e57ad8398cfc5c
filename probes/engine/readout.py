"""Which positions of an activation to keep. Applied inside the hook, so the rest never leaves the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from tasks import Batch, InputError

_ROWS = "last_token(), first_token(), token_at(...)"


class Readout:
    """Turns an activation ``[batch pos ...]`` into what a probe sees, on the activation's device. Compared by value.

    In a model spread over several devices, the batch and the activation may be on different ones.

    Attributes:
        row_per_example: whether it leaves one row per example, whatever the sequence's length.
    """

    row_per_example = True

    def __call__(self, activation: Shaped[Tensor, "batch pos *rest"], batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        raise NotImplementedError  # pragma: no cover - abstract

    def places(self, batch: Batch) -> Tensor | None:
        """``[batch]`` the one position that is read of each example; ``None`` where it is not one position."""
        return None

    def check(self, kept: Tensor, batch: Batch) -> int | None:
        """The index of the first example whose kept values are not finite, or ``None``."""
        bad = ~torch.isfinite(kept).flatten(1).all(dim=1)
        return _first(bad, batch)


def _first(bad: Tensor, batch: Batch) -> int | None:
    """The index of the first example marked, or ``None``."""
    return int(batch.index[bad.to(batch.index.device)][0]) if bool(bad.any()) else None


def _at(activation: Tensor, position: Tensor) -> Tensor:
    """``[batch pos ...] -> [batch ...]``: what stands at each example's position."""
    rows = torch.arange(len(activation), device=activation.device)
    return activation[rows, position.to(activation.device)]


@dataclass(frozen=True)
class LastToken(Readout):
    def __call__(self, activation: Shaped[Tensor, "batch pos *rest"], batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        if activation.shape[1] == 1:  # also where a model has pooled its sequence
            return activation[:, 0]
        return _at(activation, self.places(batch))

    def places(self, batch: Batch) -> Tensor:
        return batch.last_positions()

    def __repr__(self) -> str:
        return "last_token()"


@dataclass(frozen=True)
class FirstToken(Readout):
    def __call__(self, activation: Shaped[Tensor, "batch pos *rest"], batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        return _at(activation, self.places(batch))

    def places(self, batch: Batch) -> Tensor:
        return batch.first_positions()

    def __repr__(self) -> str:
        return "first_token()"


@dataclass(frozen=True)
class TokenAt(Readout):
    position: str

    def __call__(self, activation: Shaped[Tensor, "batch pos *rest"], batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        return _at(activation, self.places(batch))

    def places(self, batch: Batch) -> Tensor:
        found, width = batch.position(self.position).to(batch.tokens.device).long(), batch.tokens.shape[1]
        wrong = (found < 0) | (found >= width)
        if batch.attention_mask is not None and width:
            wrong |= ~batch.attention_mask.gather(1, found.clamp(0, width - 1)[:, None])[:, 0]
        if (example := _first(wrong, batch)) is not None:
            raise InputError(
                f"position {self.position!r} of example index {example} is {int(found[wrong][0])}, where there is no "
                f"real token ({width} positions, padding included); give a token's position, from 0"
            )
        return found

    def __repr__(self) -> str:
        return f"token_at({self.position!r})"


@dataclass(frozen=True)
class Mean(Readout):
    def __call__(self, activation: Shaped[Tensor, "batch pos *rest"], batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        batch.check_real()
        exact = torch.float32 if activation.dtype in (torch.float16, torch.bfloat16) else activation.dtype
        if batch.attention_mask is None:
            return activation.mean(dim=1, dtype=exact)
        mask = batch.attention_mask.to(activation.device).reshape(*batch.tokens.shape, *[1] * (activation.ndim - 2))
        total = torch.where(mask, activation, 0).sum(dim=1, dtype=exact)
        return total / mask.sum(dim=1)

    def __repr__(self) -> str:
        return "mean()"


@dataclass(frozen=True)
class AllTokens(Readout):
    row_per_example = False

    def __call__(self, activation: Shaped[Tensor, "batch pos *rest"], batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        return activation

    def check(self, kept: Tensor, batch: Batch) -> int | None:
        bad = ~torch.isfinite(kept)
        if batch.attention_mask is not None:  # what stands at padding does not count
            patterns = kept.ndim == 4 and kept.shape[2:] == 2 * batch.tokens.shape[1:]  # [batch head query key]
            mask = batch.attention_mask[:, None] if patterns else batch.attention_mask
            mask = mask.to(bad.device)
            bad &= mask.reshape(*mask.shape, *[1] * (kept.ndim - mask.ndim))
        return _first(bad.flatten(1).any(dim=1), batch)

    def __repr__(self) -> str:
        return "all_tokens()"


def last_token() -> Readout:
    """The last real token of each example: ``[batch pos ...] -> [batch ...]``.

    Where there is one position only, as behind a model's pooling, that one.
    """
    return LastToken()


def first_token() -> Readout:
    """The first real token of each example: ``[batch pos ...] -> [batch ...]``.

    In BERT-like encoders that is ``[CLS]``, which represents the whole sequence in models tuned to classify.
    """
    return FirstToken()


def token_at(position: str) -> Readout:
    """The token at a named position of the batch: ``[batch pos ...] -> [batch ...]``.

    Raises (when applied):
        InputError: when the batch has no such position, and for an example that has no real token there.
    """
    return TokenAt(position)


def mean() -> Readout:
    """The mean over each example's real tokens: ``[batch pos ...] -> [batch ...]``.

    In float32 at least: of activations in half precision too, whose sums could overflow.
    """
    return Mean()


def all_tokens() -> Readout:
    """The whole activation, padding included, unchanged (also for attention patterns)."""
    return AllTokens()


def check_readout(value: object) -> Readout:
    """``value``, when it is a readout; an ``InputError`` otherwise."""
    if not isinstance(value, Readout):
        raise InputError(
            f"readout is {value!r}; expected last_token(), first_token(), token_at(...), mean() or all_tokens()"
        )
    return value


def check_row_readout(value: object) -> Readout:
    """``value``, when it is a readout that leaves one row per example; an ``InputError`` otherwise."""
    if not check_readout(value).row_per_example:
        raise InputError(
            f"readout {value!r} keeps every position; choose last_token(), first_token(), token_at(...) or mean()"
        )
    return check_readout(value)
