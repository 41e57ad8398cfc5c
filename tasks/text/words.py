"""What a word of a text is."""

from __future__ import annotations

import re
import unicodedata
from functools import cache


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text stand: ``[(start, end), ...]``.

    A word is a run of letters, digits and combining marks that begins with a letter. An apostrophe
    between letters belongs to it (``don't``), the possessive ``'s`` does not. Numbers are not words.
    Languages written without spaces have to be segmented first.

    Example:
        >>> word_spans("Cat's 2 eyes")
        [(0, 3), (8, 12)]
    """
    return [match.span() for match in _word().finditer(text)]


def words_of(text: str) -> list[str]:
    """The words of a text, lower-cased, in order.

    Example:
        >>> words_of("Cat's 2 Eyes")
        ['cat', 'eyes']
    """
    return [text[start:end].lower() for start, end in word_spans(text)]


@cache
def _word() -> re.Pattern[str]:
    """Python's own class of word characters lacks combining marks; without them Hindi words fall to pieces."""
    marks = "".join(c for c in map(chr, range(0x300, 0x20000)) if unicodedata.category(c) in ("Mn", "Mc"))
    inner = rf"(?:[^\W_]|[{marks}\u200c\u200d])"
    before = rf"(?<![^\W_])(?<![{marks}])(?<![^\W_]['’])"
    return re.compile(rf"{before}[^\W\d_]{inner}*(?:['’](?!s\b|S\b)[^\W\d_]{inner}*)*")
