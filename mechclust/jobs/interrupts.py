"""Ctrl-C, acted on once."""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CLEAN_UP = 5.0  # seconds after an interrupt in which others are ignored
_RESEND_AFTER_S = 0.05  # an interrupt that Python dropped


class _Interrupt(KeyboardInterrupt):
    """Ctrl-C within ``one_interrupt``. Unlike ``KeyboardInterrupt`` itself, it can be referred to weakly."""


class _Handler:
    """Raises ``_Interrupt`` at Ctrl-C, unless an earlier one is being acted on."""

    def __init__(self) -> None:
        self.newest: weakref.ref[_Interrupt] | None = None
        self.raised_at = 0.0

    def __call__(self, number: int, frame: object) -> None:
        recent = time.monotonic() - self.raised_at < _CLEAN_UP
        if recent and self.newest is not None and self.newest() is not None:
            return
        stop = _Interrupt()
        self.newest = weakref.ref(stop)
        self.raised_at = time.monotonic()
        try:
            raise stop
        finally:
            del stop  # else its traceback would hold this frame, which would hold it


class _Resender:
    """Stands in for ``sys.unraisablehook``: sends an interrupt again instead of printing its traceback."""

    def __init__(self) -> None:
        self.before = sys.unraisablehook
        self.main_thread = threading.main_thread().ident
        self.timers: list[threading.Timer] = []

    def __call__(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, _Interrupt):
            self.before(unraisable)
            return
        timer = threading.Timer(_RESEND_AFTER_S, signal.pthread_kill, (self.main_thread, signal.SIGINT))
        timer.daemon = True
        timer.start()
        self.timers.append(timer)


@contextmanager
def one_interrupt() -> Iterator[None]:
    """End a command at the first Ctrl-C. Later ones do not interrupt the clean-up.

    Python drops an exception that is raised in a finaliser or in the callback of a weak reference. Such an interrupt is
    sent again. Other code may catch one and go on. Later Ctrl-C are therefore ignored only while the exception of an
    earlier one exists, and for five seconds at most. Once an interrupt has left the context, they are ignored for good,
    as the process is about to end.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    handler = _Handler()
    before = signal.signal(signal.SIGINT, handler)
    try:
        with _sent_again():
            yield
    except BaseException as error:  # also one that was made of ours, as Ray does
        if not _is_interrupt(error):
            raise
        if handler.newest is not None:
            before = signal.SIG_IGN
        if isinstance(error, KeyboardInterrupt):
            raise
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupt_message(kept: Callable[[], str]) -> Iterator[None]:
    """Give an interrupt that leaves the block a message that says which files are kept, and how to go on."""
    try:
        yield
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        raise KeyboardInterrupt(kept()) from None


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an error is a Ctrl-C, or was raised while one was handled, as some code does."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _sent_again() -> Iterator[None]:
    """Send an interrupt again that Python drops, as in a finaliser."""
    resender = _Resender()
    sys.unraisablehook = resender
    try:
        yield
    finally:
        sys.unraisablehook = resender.before
        for timer in resender.timers:
            timer.cancel()


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C in this block, because a second one must not stop the clean-up after the first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
