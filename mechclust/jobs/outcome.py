"""What came of a job, and how it travels from a worker to the driver."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tasks import InputError

_Out = TypeVar("_Out")


@dataclass(frozen=True)
class Outcome(Generic[_Out]):
    """A finished job.

    Args:
        position: of the job among all, from 0.
        value: what the function returned; ``None`` where it raised.
        error: what it raised, with the job's name; ``None`` where it did not.
    """

    position: int
    value: _Out | None = None
    error: Exception | None = None


def attempt(fn: Callable[..., Any], *args: Any, dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """What ``fn`` returns or raises, pickled for ``opened``."""
    try:
        return dumps((fn(*args), None))
    except BaseException as error:
        return dumps((None, _portable(error, dumps)))


def opened(reply: bytes) -> tuple[Any, Exception | None]:
    """Value and error, one of which is ``None``."""
    value, error = pickle.loads(reply)
    return value, error


def _portable(error: BaseException, dumps: Callable[[Any], bytes]) -> Exception:
    """The error with its traceback as a note, or its text where the error itself cannot travel."""
    where = "in the worker:\n" + "".join(traceback.format_exception(error)).rstrip()
    try:
        same = isinstance(error, Exception) and type(pickle.loads(dumps(error))) is type(error)
    except Exception:
        same = False
    if not same or not isinstance(error, Exception):
        return RuntimeError(f"{type(error).__name__}: {error}\n{where}")
    if not isinstance(error, InputError):
        error.add_note(where)
    return error


def named(error: Exception, job: str) -> Exception:
    """The error, which now says in which job it was."""
    if isinstance(error, InputError):
        again = InputError(f"{job}: {error}")
        again.__cause__ = error
        return again
    error.add_note(f"raised by {job}")
    return error


def first_of(errors: Sequence[Exception]) -> Exception:
    """The first one, which says how many others there are."""
    first, others = errors[0], len(errors) - 1
    if not others:
        return first
    told = f"{others} other job{'s' if others > 1 else ''} failed too"
    if isinstance(first, InputError):
        again = InputError(f"{first}; {told}")
        again.__cause__ = first
        return again
    first.add_note(told)
    return first
