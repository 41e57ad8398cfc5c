"""Prompts as the batches that a model of certain sizes reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from mechclust.models.chat_templates import n_special_tokens_at_start, templated_tokenizer
from mechclust.models.sizes import Sizes
from tasks import Batch, LabelledPrompts
from tasks.text.bos_token import Bos
from tasks.text.text_encoder import text_encoder_special_tokens


def tokenize_prompts(
    prompts: LabelledPrompts,
    tokenizer: Any,
    sizes: Sizes,
    *,
    tokens_per_batch: int,
    chat: bool = False,
    bos: Bos = "model",
    too_long: Literal["refuse", "truncate"] = "refuse",
) -> Iterator[Batch]:
    """Yield prompts as a model of these sizes reads them, with the arguments of ``LabelledPrompts.batches``.

    Raises:
        InputError: for a prompt longer than the model's context that is not to be truncated, or a token id that the
            model does not have.
    """
    return prompts.batches(
        templated_tokenizer(tokenizer, chat, bos=bos),
        tokens_per_batch,
        pad_id=tokenizer.pad_token_id or 0,
        max_length=sizes.n_ctx,
        too_long=too_long,
        keep=n_special_tokens_before(tokenizer, bos, chat=chat),
        d_vocab=sizes.d_vocab,
    )


def n_special_tokens_before(tokenizer: Any, bos: Bos = "model", *, chat: bool = False, template: Any = None) -> int:
    """Count the special tokens before a text, which must stay when its beginning is cut off.

    Args:
        tokenizer, bos, chat, template: as for ``templated_tokenizer``.
    """
    before, _ = text_encoder_special_tokens(tokenizer, bos=bos)
    if not chat:
        return len(before)
    (ids,) = templated_tokenizer(tokenizer, chat, template, bos)(["a"])
    return n_special_tokens_at_start(tokenizer, ids, before)
