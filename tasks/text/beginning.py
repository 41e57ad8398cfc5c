"""The beginning-of-sequence token: one rule for every way in which a text becomes tokens.

A text begins with the token if its tokenizer adds it. ``bos="yes"`` adds it to a text that lacks it, and ``bos="no"``
removes it. In encoders of the BERT family the token is ``[CLS]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from tasks.errors import InputError, check_choice

Bos = Literal["model", "yes", "no"]
TextEncoder: TypeAlias = Callable[..., list[list[int]]]


def beginning_id(tokenizer: Any, bos: Bos) -> int:
    """Return the id of the beginning-of-sequence token, or -1 if the tokenizer has none.

    Raises:
        InputError: if there is no token to add or to remove.
    """
    check_choice(bos=(bos, get_args(Bos)))
    ids = [getattr(tokenizer, name, None) for name in ("bos_token_id", "cls_token_id")]
    known = [int(i) for i in ids if i is not None]
    if not known and bos != "model":
        raise InputError(
            f"this model's tokenizer has no beginning-of-sequence token, so --bos {bos} has none to "
            f"{'add' if bos == 'yes' else 'remove'}; leave out --bos"
        )
    if len(set(known)) > 1:
        first_of_text = list(tokenizer("a")["input_ids"])[:1]
        if first_of_text == known[1:]:
            return known[1]
    return known[0] if known else -1


def begin_tokens(ids: list[int], beginning: int, bos: Bos) -> list[int]:
    """Apply the rule to the ids that a tokenizer gives. The token is never added twice.

    Args:
        ids: token ids of a text.
        beginning: id of the beginning-of-sequence token.
        bos: ``"model"`` leaves the ids as they are, ``"yes"`` adds the token if it is missing, ``"no"`` removes it.

    Example:
        >>> [begin_tokens([1, 2], 0, bos) for bos in ("model", "yes", "no")]
        [[1, 2], [0, 1, 2], [1, 2]]
        >>> [begin_tokens([0, 1, 2], 0, bos) for bos in ("model", "yes", "no")]
        [[0, 1, 2], [0, 1, 2], [1, 2]]
    """
    begins = ids[:1] == [beginning]
    if bos == "yes" and not begins:
        return [beginning, *ids]
    return ids[1:] if bos == "no" and begins else ids


def text_encoder(tokenizer: Any, bos: Bos = "model") -> TextEncoder:
    """Return a function from texts to the token ids that Hugging Face's tokenizer gives, with the rule applied.

    Raises:
        InputError: if there is no beginning-of-sequence token to add or to remove.
    """
    return partial(_encode, tokenizer, beginning_id(tokenizer, bos), bos)


def _encode(tokenizer: Any, beginning: int, bos: Bos, texts: Sequence[str], **options: Any) -> list[list[int]]:
    if not texts:
        return []
    encoded = tokenizer(list(texts), **options)["input_ids"]
    return [begin_tokens(_as_list(ids), beginning, bos) for ids in encoded]


def special_around(tokenizer: Any, text: str = "a", bos: Bos = "model") -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens before a text and after it."""
    (ids,) = text_encoder(tokenizer, bos)([text])
    bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    starts = [k for k in range(len(ids) - len(bare) + 1) if ids[k : k + len(bare)] == bare]
    start = starts[0] if starts else 0
    return ids[:start], ids[start + len(bare) :]


def tokenization(tokenizer: Any, bos: Bos = "model") -> dict[str, Any]:
    """Return how plain texts become tokens, to be kept with a result.

    Returns:
        ``tokenizer``: its class. ``bos``: as given. ``chat``: ``False``. ``adds``: the special tokens around a text,
        such as ``"[CLS] before, [SEP] after"``, or ``"none"``.
    """
    around = dict(zip(("before", "after"), special_around(tokenizer, bos=bos), strict=True))
    adds = [f"{' '.join(tokenizer.convert_ids_to_tokens(ids))} {where}" for where, ids in around.items() if ids]
    return {"tokenizer": type(tokenizer).__name__, "bos": bos, "chat": False, "adds": ", ".join(adds) or "none"}


def leading_bos(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the beginning-of-sequence token if it is the first of the ids, and ``"none"`` otherwise.

    Example:
        >>> class Words:
        ...     bos_token_id = 0
        ...     def convert_ids_to_tokens(self, i):
        ...         return ["<s>", "a"][i]
        >>> leading_bos(Words(), [0, 1]), leading_bos(Words(), [1])
        ('<s>', 'none')
    """
    beginning = beginning_id(tokenizer, "model")
    return str(tokenizer.convert_ids_to_tokens(beginning)) if list(ids[:1]) == [beginning] else "none"


def _as_list(ids: Any) -> list[int]:
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)
