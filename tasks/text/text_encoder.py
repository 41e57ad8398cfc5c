"""Functions from texts to token ids, and the special tokens that they add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from tasks.text.bos_token import Bos, begin_tokens, beginning_id

TextEncoder: TypeAlias = Callable[..., list[list[int]]]


def text_encoder(tokenizer: Any, bos: Bos = "model") -> TextEncoder:
    """Return a function from texts to their token ids, as ``begin_tokens`` changes them.

    Args:
        tokenizer: Hugging Face's, or a function from a list of texts to a list of token ids for each.
        bos: the rule for the beginning-of-sequence token.

    Raises:
        InputError: if there is no beginning-of-sequence token to add or to remove.
    """
    return partial(_encode, tokenizer, beginning_id(tokenizer, bos), bos)


def _encode(tokenizer: Any, beginning: int, bos: Bos, texts: Sequence[str], **options: Any) -> list[list[int]]:
    if not texts:
        return []
    encoded = tokenizer(list(texts), **options)
    sequences = encoded["input_ids"] if isinstance(encoded, Mapping) else encoded
    return [begin_tokens(_as_list(ids), beginning, bos) for ids in sequences]


def text_encoder_special_tokens(tokenizer: Any, text: str = "a", bos: Bos = "model") -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens before a text and after it."""
    (ids,) = text_encoder(tokenizer, bos)([text])
    bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    starts = [k for k in range(len(ids) - len(bare) + 1) if ids[k : k + len(bare)] == bare]
    start = starts[0] if len(starts) == 1 else _start_by_mask(tokenizer, text, len(ids))
    return ids[:start], ids[start + len(bare) :]


def _start_by_mask(tokenizer: Any, text: str, n_ids: int) -> int:
    """Return how many special tokens precede a text, even if its own ids are special (unknown words) or it has none."""
    mask = list(tokenizer(text, return_special_tokens_mask=True)["special_tokens_mask"])
    start = mask.index(0) if 0 in mask else len(mask)
    return start + n_ids - len(mask)  # ``bos`` adds or removes a token before the text


def tokenization(tokenizer: Any, bos: Bos = "model") -> dict[str, Any]:
    """Return how plain texts become tokens, to be kept with a result.

    Returns:
        ``tokenizer``: its class. ``bos``: as given. ``chat``: ``False``. ``adds``: the special tokens around a text,
        such as ``"[CLS] before, [SEP] after"``, or ``"none"``.
    """
    around = dict(zip(("before", "after"), text_encoder_special_tokens(tokenizer, bos=bos), strict=True))
    adds = [f"{' '.join(tokenizer.convert_ids_to_tokens(ids))} {where}" for where, ids in around.items() if ids]
    return {"tokenizer": type(tokenizer).__name__, "bos": bos, "chat": False, "adds": ", ".join(adds) or "none"}


def _as_list(ids: Any) -> list[int]:
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)
