"""Refuse texts that UTF-8 cannot write."""

from __future__ import annotations

import re

from tasks.errors import InputError
from tasks.text.visible import quoted

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def check_utf8_texts(texts: object, what: str) -> None:
    """Refuse a value that is not a sequence of texts that can be written as UTF-8.

    Args:
        texts: the value.
        what: one of them is called, such as ``"prompts: prompt"``, followed by its number.

    Raises:
        InputError: naming the first that is not text.
    """
    if isinstance(texts, str):
        raise InputError(f"{what}s: the string {quoted(texts)} was given; expected a list of strings")
    for i, text in enumerate(texts, start=1):  # type: ignore[arg-type, var-annotated]
        if not isinstance(text, str):
            raise InputError(f"{what} {i} is {quoted(text)}; expected a string")
        check_utf8(text, f"{what} {i}")


def check_utf8(text: str, what: str) -> None:
    """Refuse a text with half a surrogate pair, which UTF-8 cannot write.

    Raises:
        InputError: calling the text ``what``.
    """
    half = None if text.isascii() else _HALF_CHARACTER.search(text)
    if half:
        raise InputError(f"{what} has half a character ({half[0]!r}), which no tokenizer reads; fix it")
