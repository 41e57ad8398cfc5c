"""Readouts: the positions of an activation to keep. Applied inside the hook, so the rest never leaves the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from tasks import Batch, InputError

Activation: TypeAlias = Shaped[Tensor, "batch pos *rest"]


class Readout:
    """The part of an activation that a probe gets, on the activation's device. Compared by value.

    In a model spread over several devices, the batch and the activation may be on different ones.

    Attributes:
        row_per_example: whether it leaves one row per example, whatever the sequence's length.

    Example:
        >>> import torch
        >>> activation = torch.arange(6.0).reshape(1, 3, 2)
        >>> last_token()(activation, Batch(torch.tensor([[5, 6, 7]]))).tolist()
        [[4.0, 5.0]]
    """

    row_per_example = True

    def __call__(self, activation: Activation, batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        raise NotImplementedError  # pragma: no cover - abstract

    def places(self, batch: Batch) -> Int[Tensor, "batch"] | None:
        """Return the one position that is read of each example, or ``None`` if more than one is read."""
        return None

    def check(self, kept: Shaped[Tensor, "batch *kept"], batch: Batch) -> int | None:
        """Return the index of the first example whose kept values are not finite, or ``None`` if all are."""
        return _first_index(_any_by_example(~torch.isfinite(kept)), batch)


def _check_shape(activation: Activation, batch: Batch) -> None:
    """Refuse an activation whose positions are not the batch's. A model may have pooled each sequence to one.

    Raises:
        InputError: with both shapes.
    """
    n, width = batch.tokens.shape
    if activation.ndim < 2 or len(activation) != n or activation.shape[1] not in (1, width):
        raise InputError(
            f"an activation has shape {tuple(activation.shape)}, but the batch has {n} sequences of {width} tokens; "
            "give the batch of this forward pass, and a hook point of shape [batch pos ...]"
        )


class _OnePosition(Readout):
    """Base class of readouts that keep one position of each example."""

    def __call__(self, activation: Activation, batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        _check_shape(activation, batch)
        return at_position(activation, self.places(batch))

    def places(self, batch: Batch) -> Int[Tensor, "batch"]:
        """Return the position that is read of each example."""
        raise NotImplementedError  # pragma: no cover - abstract


@dataclass(frozen=True)
class _LastToken(_OnePosition):
    """See ``last_token``."""

    def places(self, batch: Batch) -> Int[Tensor, "batch"]:
        """Return the position of each example's last real token."""
        return batch.last_positions()

    def __repr__(self) -> str:
        return "last_token()"


@dataclass(frozen=True)
class _FirstToken(_OnePosition):
    """See ``first_token``."""

    def places(self, batch: Batch) -> Int[Tensor, "batch"]:
        """Return the position of each example's first real token."""
        return batch.first_positions()

    def __repr__(self) -> str:
        return "first_token()"


@dataclass(frozen=True)
class _TokenAt(_OnePosition):
    """See ``token_at``.

    Attributes:
        position: name of one of the batch's positions.
    """

    position: str

    def places(self, batch: Batch) -> Int[Tensor, "batch"]:
        """Return the named position of each example.

        Raises:
            InputError: for a position without a real token.
        """
        positions = batch.position(self.position).to(batch.tokens.device).long()
        width = batch.tokens.shape[1]
        is_wrong = (positions < 0) | (positions >= width)
        if batch.attention_mask is not None and width:
            is_real = batch.attention_mask.gather(1, positions.clamp(0, width - 1)[:, None])[:, 0]
            is_wrong |= ~is_real
        example = _first_index(is_wrong, batch)
        if example is not None:
            raise InputError(
                f"position {self.position!r} of example index {example} is {int(positions[is_wrong][0])}, where there "
                f"is no real token ({width} positions, padding included); give a token's position, from 0"
            )
        return positions

    def __repr__(self) -> str:
        return f"token_at({self.position!r})"


@dataclass(frozen=True)
class _Mean(Readout):
    """See ``mean``."""

    def __call__(self, activation: Activation, batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        batch.check_examples_are_real()
        _check_shape(activation, batch)
        is_half = activation.dtype in (torch.float16, torch.bfloat16)
        summed_in = torch.float32 if is_half else activation.dtype
        if batch.attention_mask is None:
            return activation.mean(dim=1, dtype=summed_in)
        is_real = _with_axes(batch.attention_mask.to(activation.device), activation.ndim)
        total = torch.where(is_real, activation, 0).sum(dim=1, dtype=summed_in)
        return total / is_real.sum(dim=1)

    def __repr__(self) -> str:
        return "mean()"


@dataclass(frozen=True)
class _AllTokens(Readout):
    """See ``all_tokens``."""

    row_per_example = False

    def __call__(self, activation: Activation, batch: Batch) -> Shaped[Tensor, "batch *kept"]:
        return activation

    def check(self, kept: Shaped[Tensor, "batch *kept"], batch: Batch) -> int | None:
        """Return the index of the first example with a value that is not finite, ignoring padding."""
        is_bad = ~torch.isfinite(kept)
        if batch.attention_mask is not None:
            width = batch.tokens.shape[1]
            is_pattern = kept.ndim == 4 and kept.shape[2:] == (width, width)  # [batch head query key]
            is_real = batch.attention_mask[:, None] if is_pattern else batch.attention_mask
            if is_pattern or kept.shape[1:2] == (width,):  # not pooled
                is_bad &= _with_axes(is_real.to(is_bad.device), kept.ndim)
        return _first_index(_any_by_example(is_bad), batch)

    def __repr__(self) -> str:
        return "all_tokens()"


def _any_by_example(is_chosen: Bool[Tensor, "batch *rest"]) -> Bool[Tensor, "batch"]:
    """Return for each example whether any of its values is chosen, also if it has one value without an axis."""
    return is_chosen[..., None].flatten(1).any(dim=1)


def _first_index(is_chosen: Bool[Tensor, "batch"], batch: Batch) -> int | None:
    """Return the index of the first chosen example, or ``None``."""
    chosen = batch.index[is_chosen.to(batch.index.device)]
    return int(chosen[0]) if len(chosen) else None


def _with_axes(mask: Bool[Tensor, "*shape"], ndim: int) -> Bool[Tensor, "*shape_and_ones"]:
    """Return the mask with axes of length 1 behind its own, to broadcast against a tensor of ``ndim`` axes."""
    return mask[(..., *[None] * (ndim - mask.ndim))]


def last_token() -> Readout:
    """Keep the last real token of each example: ``[batch pos ...] -> [batch ...]``.

    If there is only one position, as behind a model's pooling, keep that one.

    Example:
        >>> import torch
        >>> from tasks import Batch
        >>> batch = Batch(torch.tensor([[5, 6, 0]]), torch.tensor([[True, True, False]]))
        >>> last_token()(torch.tensor([[[0.5], [0.6], [0.0]]]), batch)
        tensor([[0.6000]])
    """
    return _LastToken()


def first_token() -> Readout:
    """Keep the first real token of each example: ``[batch pos ...] -> [batch ...]``.

    In BERT-like encoders that is ``[CLS]``, which represents the whole sequence in models tuned to classify.

    Example:
        >>> first_token()
        first_token()
    """
    return _FirstToken()


def token_at(position: str) -> Readout:
    """Keep the token at a named position of the batch: ``[batch pos ...] -> [batch ...]``.

    Raises (when applied):
        InputError: when the batch has no such position, and for an example that has no real token there.

    Example:
        >>> import torch
        >>> from tasks import Batch
        >>> batch = Batch(torch.tensor([[5, 6, 7]]), positions={"subject": torch.tensor([1])})
        >>> token_at("subject")(torch.tensor([[[0.5], [0.6], [0.7]]]), batch)
        tensor([[0.6000]])
    """
    return _TokenAt(position)


def mean() -> Readout:
    """Keep the mean over each example's real tokens: ``[batch pos ...] -> [batch ...]``.

    Means are float32 at least, because sums of activations in half precision could overflow.

    Example:
        >>> import torch
        >>> from tasks import Batch
        >>> batch = Batch(torch.tensor([[5, 6, 0]]), torch.tensor([[True, True, False]]))
        >>> mean()(torch.tensor([[[0.5], [1.5], [9.0]]]), batch)
        tensor([[1.]])
    """
    return _Mean()


def all_tokens() -> Readout:
    """Keep the whole activation unchanged, padding included (also for attention patterns).

    Example:
        >>> all_tokens()
        all_tokens()
    """
    return _AllTokens()


def check_readout(value: object) -> Readout:
    """Return ``value`` if it is a readout.

    Raises:
        InputError: for anything else.
    """
    if not isinstance(value, Readout):
        raise InputError(
            f"readout is {value!r}; expected last_token(), first_token(), token_at(...), mean() or all_tokens()"
        )
    return value


def check_row_readout(value: object) -> Readout:
    """Return ``value`` if it is a readout that leaves one row per example.

    Raises:
        InputError: for anything else.
    """
    readout = check_readout(value)
    if not readout.row_per_example:
        raise InputError(
            f"readout {readout!r} keeps every position; choose last_token(), first_token(), token_at(...) or mean()"
        )
    return readout


def given_position(readout: Readout) -> str | None:
    """Return the name of the batch's position that a readout reads, or ``None`` if it reads none of the batch's."""
    return readout.position if isinstance(readout, _TokenAt) else None


def position_from_first_token(position: str, batch: Batch) -> Int[Tensor, "batch"]:
    """Return the named position of each example, counted from its first real token, so that padding does not matter."""
    return _TokenAt(position).places(batch) - batch.first_positions()


def at_position(x: Shaped[Tensor, "batch pos ..."], position: Int[Tensor, "batch"]) -> Shaped[Tensor, "batch ..."]:
    """Return each example's row at its position. A network that pools the sequence has one row for all of it."""
    if x.shape[1] == 1:
        return x[:, 0]
    return x[torch.arange(len(x), device=x.device), position.to(x.device)]
