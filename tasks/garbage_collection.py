"""Imports without garbage collection, which is paused meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the garbage collector while packages are imported.

    It would visit the 170,000 objects of torch again and again, although modules are never freed. Imported objects
    count as old afterwards, so that they are not visited at once.

    Example:
        >>> with paused_collection():
        ...     import decimal
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # moves frozen objects to the oldest generation
        gc.enable()
