"""The exception for bad input, and the words of errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class InputError(ValueError):
    """Raised for input that cannot be used.

    The message is one sentence: the given input, the expected input, and the way out. The command line prints it and
    exits with 2. Every other exception is a defect of ours.

    Example:
        >>> raise InputError("steps is 0; expected at least 1")
        Traceback (most recent call last):
        tasks.errors.InputError: steps is 0; expected at least 1
    """


def error_line(error: BaseException) -> str:
    """Return an exception in a few words."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_sentence(error: BaseException) -> str:
    """Return the first sentence of another library's message, without its advice."""
    text = " ".join(str(error).split()).strip("'\"")
    return re.split(r"(?<!e\.g)\. ", text)[0][:200].rstrip(".") or type(error).__name__


def error_suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known names, such as ``" (it has a, b); did you mean 'a'?"``."""
    return f" (it has {', '.join(known)}){did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'a'?"``, or an empty text if no known name is similar."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
