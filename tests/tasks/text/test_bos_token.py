"""Which token begins a text, and whether it does."""

from __future__ import annotations

import pytest

from tasks import InputError
from tasks.text.bos_token import beginning_id, leading_bos


class Words:
    """A tokenizer without special tokens, or with those that a test gives it."""

    def __init__(self, **special: int) -> None:
        vars(self).update(special)

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [2, 5]}

    def convert_ids_to_tokens(self, i: int) -> str:
        return f"<{i}>"


def test_a_tokenizer_without_such_a_token_begins_no_text_with_it() -> None:
    assert leading_bos(Words(), [0, 1]) == "none"
    assert leading_bos(Words(bos_token_id=0), [0, 1]) == "<0>"
    with pytest.raises(InputError, match="--bos yes"):
        beginning_id(Words(), "yes")


def test_of_two_the_one_that_texts_begin_with() -> None:
    assert beginning_id(Words(bos_token_id=1, cls_token_id=2), "model") == 2
    assert beginning_id(Words(bos_token_id=2, cls_token_id=1), "model") == 2
    assert beginning_id(Words(bos_token_id=1), "model") == 1
