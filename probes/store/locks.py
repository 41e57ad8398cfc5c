"""One owner for a folder at a time, by a lock that dies with its process."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from probes.store.files import write_errors
from probes.store.temporary_files import LOCK
from tasks import InputError

_WAIT = "MECHCLUST_LOCK_WAIT"  # seconds, in the environment of a worker process
_ERRORS_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO)


@contextmanager
def locked_folder(folder: str | Path, *, wait: float = 0.0, way: str = "give another folder") -> Iterator[None]:
    """Own a folder until the block ends or the process dies, ``kill -9`` included. A missing folder is created.

    The empty file ``.mechclust.lock`` remains. A file system without locks gives one warning for each folder, and no
    protection.

    Args:
        folder: any folder.
        wait: seconds to wait for an owner that is about to end, in a worker process at least the seconds of
            ``wait_for_locks``.
        way: another way out, for the error.

    Raises:
        InputError: if another process owns it, or it cannot be created.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, locked_folder(folder), locked_folder(folder):
        ...     pass
        Traceback (most recent call last):
        tasks.errors.InputError: '...' is in use by another process; wait until it is done, or give another folder
    """
    from filelock import FileLock, Timeout

    folder = Path(folder)
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, fallback_to_soft=False)  # a soft lock would outlive an owner that is killed
    try:
        lock.acquire(timeout=max(wait, float(os.environ.get(_WAIT, 0))))
    except Timeout:
        raise InputError(f"{str(folder)!r} is in use by another process; wait until it is done, or {way}") from None
    except OSError as error:
        if error.errno not in _ERRORS_WITHOUT_LOCKS:
            with write_errors(folder / LOCK):
                raise
        _warn_once(str(folder.absolute()), str(error))
    try:
        yield
    finally:
        lock.release()


def wait_for_locks(seconds: float = 120.0) -> None:
    """Wait so long for every lock from now on, in this worker process.

    NFS keeps the lock of a machine that died for its lease, 90 seconds, and another worker repeats its job at once.
    """
    os.environ[_WAIT] = str(seconds)


@cache
def _warn_once(folder: str, why: str) -> None:
    warnings.warn(
        f"{folder!r} is on a file system without locks ({why}); let no other process write there", stacklevel=4
    )
