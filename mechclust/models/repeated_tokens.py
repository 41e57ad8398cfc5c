"""Sequences of repeated random tokens of a model's vocabulary, on which the roles of its heads are measured."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mechclust.models.sizes import Sizes
from tasks import Batch, InputError, RepeatedTokens
from tasks.text.bos_token import Bos
from tasks.text.text_encoder import text_encoder_special_tokens

SEQUENCE_LENGTH = 96  # tokens of a sequence
PERIODS = (20, 40)  # tokens before it repeats


def repeated_tokens(
    tokenizer: Any,
    sizes: Sizes,
    n_sequences: int,
    tokens_per_batch: int,
    *,
    length: int = SEQUENCE_LENGTH,
    periods: tuple[int, int] = PERIODS,
    bos: Bos = "model",
    seed: int = 0,
) -> list[Batch]:
    """Return sequences of random tokens of the vocabulary, between the special tokens that begin and end a text.

    Args:
        tokenizer: of the model.
        sizes: of the model.
        n_sequences: number of sequences.
        tokens_per_batch: most tokens of a batch.
        length: tokens of a sequence, special ones included, at most the model's context.
        periods: fewest and most tokens before they repeat.
        bos: whether a sequence begins with the beginning-of-sequence token.
        seed: of the tokens.

    Raises:
        InputError: for periods that do not repeat within the length.
    """
    before, after = text_encoder_special_tokens(tokenizer, bos=bos)
    context = length if sizes.n_ctx is None else min(length, sizes.n_ctx)
    room = context - len(before) - len(after)
    if periods[1] > room - 2:
        raise InputError(
            f"periods has {periods[1]}, which do not repeat in the {room} tokens that a sequence has room for; give "
            "shorter --periods"
        )
    ids = _ordinary_tokens(tokenizer, sizes.d_vocab)
    task = RepeatedTokens(len(ids), room, periods, n_test=n_sequences, seed=seed)
    batches = []
    for batch in task.batches("test", max(1, tokens_per_batch // context)):
        begin = torch.tensor(before, dtype=torch.long).expand(len(batch), -1)
        end = torch.tensor(after, dtype=torch.long).expand(len(batch), -1)
        tokens = torch.cat([begin, ids[batch.tokens], end], dim=1)
        batches.append(Batch(tokens, labels={"period": batch.labels["period"]}, index=batch.index))
    return batches


def _ordinary_tokens(tokenizer: Any, d_vocab: int | None) -> Int[Tensor, "token"]:
    """Return the ids that the model has an embedding for, without special and added tokens."""
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
    ids = sorted(set(tokenizer.get_vocab().values()) - special)
    return torch.tensor([i for i in ids if d_vocab is None or i < d_vocab], dtype=torch.long)
