"""Names of temporary files, at which a process prepares a file, and removal of those that killed processes left."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from pathlib import Path

import xxhash

LOCK = ".mechclust.lock"  # stays behind in a folder that had an owner
_OTHER_HOST_MAX_AGE_S = 24 * 3600.0  # nobody can ask whether a process of another host lives
_TEMPORARY = re.compile(r"\..+\.([A-Za-z0-9-]+)\.(\d+)\.tmp")  # .NAME.HOST.PROCESS.tmp


def _host_part(name: str) -> str:
    """Return the part of a temporary file's name for a host: a readable beginning, and a digest of the whole name."""
    return f"{re.sub('[^A-Za-z0-9-]', '-', name)[:20]}-{xxhash.xxh32(name.encode()).hexdigest()}"


_HOST = _host_part(socket.gethostname())


def temporary_file_of(path: Path) -> Path:
    """Return the temporary path at which this process prepares ``path``, one thread at a time."""
    return path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.tmp")


def is_temporary(path: Path) -> bool:
    """Return whether a path is named like a temporary or lock file. A folder with only such files counts as empty."""
    return path.name == LOCK or _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: str | Path, *, recursive: bool = False, even_if_alive: bool = False) -> None:
    """Remove the temporary files of killed processes in ``folder``, but not of other living ones.

    Those of other machines are removed when they are a day old. What cannot be removed stays. Call it before you write
    there, and as the folder's owner (``locked_folder``): a process that looks dead may live in a container of equal
    name.

    Args:
        folder: folder to clean. May be missing.
        recursive: clean the folders below it too.
        even_if_alive: also remove those of living processes and of other machines. None of them may be needed.
    """
    folders = [Path(path) for path, _, _ in os.walk(folder)] if recursive else [Path(folder)]
    for parent in folders:
        for path in parent.glob(".*.tmp"):
            match = _TEMPORARY.fullmatch(path.name)
            if match is None or (not even_if_alive and _is_being_made(path, match[1], int(match[2]))):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                _unlink(path)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # such as in somebody else's folder
        return


def _is_being_made(path: Path, host: str, process: int) -> bool:
    """Return whether the process that prepares a file may live: by its number, or by the file's age on other hosts."""
    if host != _HOST:
        try:
            return time.time() - path.stat().st_mtime < _OTHER_HOST_MAX_AGE_S
        except OSError:
            return False
    if process == os.getpid():  # an earlier process had our number, since nothing is written before cleaning
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # no system has so large a number
        return False
    except PermissionError:  # it lives, of another user
        pass
    return True
