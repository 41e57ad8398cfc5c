"""Words that a topic model leaves out."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tasks.errors import InputError


def read_stop_words(given: str | Collection[str]) -> frozenset[str]:
    """Return the words that a topic model leaves out, lower-cased.

    Args:
        given: ``"english"`` (scikit-learn's list), ``"none"``, the path of a UTF-8 file with one word
            per line, or the words themselves.

    Raises:
        InputError: for a name that is neither, and no file.

    Example:
        >>> "the" in read_stop_words("english"), sorted(read_stop_words(["Der", "die"]))
        (True, ['der', 'die'])
    """
    if not isinstance(given, (str, Path)):
        return frozenset(word.lower() for word in given)
    if given == "none":
        return frozenset()
    if given == "english":
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return ENGLISH_STOP_WORDS
    try:
        return frozenset(Path(given).read_text(encoding="utf-8-sig").lower().split())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"stop_words is {str(given)!r}; expected 'english', 'none' or a UTF-8 file with one word per line ({error})"
        ) from None
