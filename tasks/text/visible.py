"""A user's texts as they are shown: control characters, which would act on a terminal or a page, are written out."""

from __future__ import annotations

import re
import reprlib
from functools import partial

# Control characters, line and paragraph separators, marks that reverse the reading direction, halves of
# surrogate pairs, and code points that are not characters. Joiners stay: Hindi, Persian and emoji need them.
_ACTING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufeff\ufffe\uffff]")
_MAX_CHARACTERS = 60


def visible_text(text: str, keep: str = "") -> str:
    r"""Return a text whose control characters are visible and have no effect.

    Args:
        text: any.
        keep: control characters that stay, such as ``"\n"``.

    Example:
        >>> visible_text("\x1b[31mred\n"), visible_text("a\nb", keep="\n")
        ('\\x1b[31mred\\n', 'a\nb')
    """
    return _ACTING.sub(partial(_escaped, keep=keep), text)


def shortened(text: str, longest: int = _MAX_CHARACTERS) -> str:
    """Return a text as one of several names on a line: visible, and a long one cut in its middle.

    Example:
        >>> shortened("a" * 100, longest=9)
        'aaaa…aaaa'
    """
    text = visible_text(text)
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[len(text) - half :]}"


def quoted(value: object, longest: int = _MAX_CHARACTERS) -> str:
    """Return a value as Python writes it, a long one cut, for messages.

    Example:
        >>> quoted("sort"), quoted(["a"] * 100)
        ("'sort'", "['a', 'a', 'a', 'a', 'a', 'a', ...]")
    """
    limited = reprlib.Repr()
    limited.maxstring = limited.maxlong = limited.maxother = longest
    return limited.repr(value)


def _escaped(match: re.Match[str], keep: str) -> str:
    character = match[0]
    return character if character in keep else character.encode("unicode_escape").decode()
