"""Token ids that a model has embeddings for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.errors import InputError


def check_token_ids(rows: Iterable[Sequence[int]], d_vocab: int | None, what: str) -> None:
    """Refuse token ids for which a model has no embedding.

    Args:
        rows: token ids.
        d_vocab: number of the model's token embeddings. ``None``: do not check.
        what: was read, for the message.
    """
    largest = max((max(row, default=0) for row in rows), default=0)
    if d_vocab is not None and largest >= d_vocab:
        raise InputError(
            f"{what} has token id {largest}, but the model has {d_vocab} token embeddings; save the model's "
            "own tokenizer"
        )


def known_pad_token_id(pad_id: int | None, d_vocab: int | None) -> int:
    """Return an id to pad with that the model has an embedding for: ``pad_id`` or 0. The mask hides it."""
    if pad_id is None or pad_id < 0:
        return 0
    return 0 if d_vocab is not None and pad_id >= d_vocab else pad_id
