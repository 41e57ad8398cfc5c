"""The outcome of a job, and how it travels from a worker to the driver."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tasks import InputError

_Out = TypeVar("_Out")


@dataclass(frozen=True)
class Outcome(Generic[_Out]):
    """A finished job.

    Args:
        position: of the job among all, from 0.
        value: the function's return value, or ``None`` if it raised an error.
        error: the error that it raised, with the job's name, or ``None``.
    """

    position: int
    value: _Out | None = None
    error: Exception | None = None


class WorkerFunction:
    """The function that a worker calls for each job. Outcomes are a value and an error, pickled.

    Args:
        dumps: pickles an outcome.
    """

    _fn: Callable[[Any], Any]

    def __init__(self, dumps: Callable[[Any], bytes] = pickle.dumps) -> None:
        self._dumps = dumps

    def begin(self, work: bytes) -> bytes:
        """Load the function, call its ``setup``, and return the outcome. ``work`` is both of them, pickled."""
        return self._outcome(self._load, work)

    def run(self, job: bytes) -> bytes:
        """Call the function with a pickled job, and return the outcome."""
        return self._outcome(self._fn, job)

    def _load(self, fn_and_setup: tuple[Callable[..., Any], Callable[[], Any] | None]) -> None:
        fn, setup = fn_and_setup
        self._fn = fn if setup is None else partial(fn, setup())

    def _outcome(self, fn: Callable[[Any], Any], argument: bytes) -> bytes:
        try:
            return self._dumps((fn(pickle.loads(argument)), None))
        except BaseException as error:
            return self._dumps((None, _portable(error, self._dumps)))


def unpickled_outcome(reply: bytes) -> tuple[Any, Exception | None]:
    """Return value and error, one of which is ``None``. A value that cannot be unpickled is an error."""
    try:
        value, error = pickle.loads(reply)
    except Exception as unreadable:
        unreadable.add_note("the job's value cannot be unpickled")
        return None, unreadable
    return value, error


def _portable(error: BaseException, dumps: Callable[[Any], bytes]) -> Exception:
    """Return the error with its traceback as a note, or its text if the error itself cannot travel."""
    where = "in the worker:\n" + "".join(traceback.format_exception(error)).rstrip()
    if not isinstance(error, Exception) or not _can_travel(error, dumps):
        return RuntimeError(f"{type(error).__name__}: {error}\n{where}")
    if not isinstance(error, InputError):
        error.add_note(where)
    return error


def _can_travel(error: Exception, dumps: Callable[[Any], bytes]) -> bool:
    try:
        return type(pickle.loads(dumps(error))) is type(error)
    except Exception:
        return False


def error_naming_job(error: Exception, job: str) -> Exception:
    """Return the error with the job's name added."""
    if isinstance(error, InputError):
        again = InputError(f"{job}: {error}")
        again.__cause__ = error
        return again
    error.add_note(f"raised by {job}")
    return error


def first_error(errors: Sequence[Exception]) -> Exception:
    """Return the first error, with the number of the others added."""
    first = errors[0]
    n_others = len(errors) - 1
    if n_others == 0:
        return first
    others = "1 other job failed too" if n_others == 1 else f"{n_others} other jobs failed too"
    if isinstance(first, InputError):
        again = InputError(f"{first}; {others}")
        again.__cause__ = first
        return again
    first.add_note(others)
    return first
