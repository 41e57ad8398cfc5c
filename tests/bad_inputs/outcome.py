"""What a bad input leads to, and a case that gives one. Shared by all kinds of inputs."""

from __future__ import annotations

import linecache
import re
import signal
import traceback
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from tasks import InputError


class Outcome(StrEnum):
    """Classes of outcomes. Only the first is good."""

    OK = "ok"  # refused with the reason, or the right value, or NaN where nothing can be said
    LATE = "late"  # refused after work was done
    UNCLEAR = "unclear"  # refused by us, without the name of what is wrong
    TRACEBACK = "traceback"  # an exception of another library, or of Python
    SILENT = "silent"  # a value where none is right
    UNSAFE = "unsafe"  # something was overwritten, deleted or run
    HANG = "hang"  # no end in time
    CRASH = "crash"  # the process died


class Result(NamedTuple):
    """Outcome of a case, and what was returned or said."""

    outcome: Outcome
    detail: str


class Case(NamedTuple):
    """A bad input.

    Attributes:
        kind: of the input, such as ``"NaN"``.
        name: of what it is given to, such as ``"linear_cka x"``.
        run: gives it, and returns the result.
    """

    kind: str
    name: str
    run: Callable[[], Result]


class TooSlow(Exception):
    """Raised when a case takes too long."""


def ran(case: Case, seconds: float = 10) -> Result:
    """Run a case in the main thread, for at most so many seconds."""
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return case.run()
    except TooSlow:
        return Result(Outcome.HANG, f"no end after {seconds:g} s")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _stop(*_: object) -> None:
    raise TooSlow


def of_error(error: Exception, names: str) -> Result:
    """Return the result of a call that raised an error.

    Args:
        error: what was raised.
        names: pattern of what a good message names.
    """
    text = " ".join(str(error).split())[:200]
    if not is_ours(error):
        return Result(Outcome.TRACEBACK, f"{type(error).__name__}: {text} [{place(error)}]")
    is_named = re.search(rf"\b({names})", text) is not None
    return Result(Outcome.OK if is_named else Outcome.UNCLEAR, f"{text} [{place(error)}]")


def is_ours(error: Exception) -> bool:
    """Return whether a ``raise`` of ours raised an error."""
    if isinstance(error, InputError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    return isinstance(error, (TypeError, ValueError)) and "/probes/" in last.filename and line.startswith("raise")


def place(error: Exception) -> str:
    """Return our deepest line that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if re.search(r"/(mechclust|probes|tasks)/", frame.filename)]
    if not ours:
        return "?"
    return re.sub(r".*/((mechclust|probes|tasks)/)", r"\1", ours[-1].filename) + f":{ours[-1].lineno}"
