"""Progress bars, in the driver and in its workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from tqdm import tqdm

_make: Callable[..., Any] = tqdm
_options: dict[str, Any] = {}


def progress_bar(items: Iterable[Any] | None = None, *, disable: bool = False, **options: Any) -> Any:
    """Return a tqdm bar on standard error. A worker's bar has a separate line in the driver's terminal.

    Example:
        >>> [layer for layer in progress_bar(range(3), disable=True)]
        [0, 1, 2]
    """
    if disable or _make is tqdm:
        interval = 0.2 if sys.stderr.isatty() else 10.0
        return tqdm(items, disable=disable, **{"mininterval": interval, "leave": None, **_options, **options})
    bar = _make(items, **_options, **{key: options[key] for key in ("desc", "total", "unit") if key in options})
    if options.get("initial"):
        bar.update(options["initial"])
    return bar


def place_progress_bars(make: Callable[..., Any] = tqdm, **options: Any) -> None:
    """Set how this process makes its bars from now on: their place, or something else than tqdm."""
    global _make
    _make = make
    _options.clear()
    _options.update(options)


def close_progress_bars() -> None:
    """Remove progress bars that an error left open, so that its message starts on a new line."""
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.leave = False
        bar.close()


class BarLock:
    """tqdm's lock between processes, which delays bars only briefly if a worker is killed while it holds the lock."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.lost = False

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        """Wait at most a second, once. After that bars are drawn without it."""
        if not self.lost:
            self.lost = not self.lock.acquire(timeout=1.0)
        return True

    def release(self) -> None:
        """Give it back."""
        if not self.lost:
            self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()
