"""The beginning-of-sequence token: one rule for every way in which a text becomes tokens.

A text begins with the token if its tokenizer adds it. ``bos="yes"`` adds it to a text that lacks it, and ``bos="no"``
removes it. In encoders of the BERT family the token is ``[CLS]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from tasks.errors import InputError
from tasks.settings import check_choice

Bos = Literal["model", "yes", "no"]


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
