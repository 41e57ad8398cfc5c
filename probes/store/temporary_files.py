"""Temporary files, at which a process prepares others, and what killed processes leave of them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from pathlib import Path

import xxhash

LOCK = ".mechclust.lock"  # stays behind in a folder that had an owner
_LEFTOVERS_OF_OTHER_HOSTS_S = 86400.0
_TEMPORARY = re.compile(r"\..+\.([A-Za-z0-9-]+)\.(\d+)\.tmp")


def _host_part(name: str) -> str:
    """Return a host's part of the names of temporary files: no two hosts share it, however long their names are."""
    return f"{re.sub('[^A-Za-z0-9-]', '-', name)[:20]}-{xxhash.xxh32(name.encode()).hexdigest()}"


_HOST = _host_part(socket.gethostname())


def temporary_file_of(path: Path) -> Path:
    """Return the temporary path at which this process prepares ``path``."""
    return path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.tmp")


def is_temporary(path: Path) -> bool:
    """Return whether it is a temporary or lock file. A folder with only such files counts as empty."""
    return path.name == LOCK or _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: str | Path, *, recursive: bool = False, everyones: bool = False) -> None:
    """Remove the temporary files of killed processes in ``folder``, but not of living ones.

    Temporary files of other machines are removed when they are a day old. Call it as the folder's owner
    (``locks.locked``): a process that looks dead may be alive in a container of equal name.

    Args:
        folder: folder to clean. May be missing.
        recursive: clean the folders below it too.
        everyones: also the temporary files of living processes and of other machines, if no longer needed.
    """
    folders = [Path(path) for path, _, _ in os.walk(folder)] if recursive else [Path(folder)]
    for parent in folders:
        for path in parent.glob(".*.tmp"):
            match = _TEMPORARY.fullmatch(path.name)
            if match is None or (not everyones and _is_being_made(path, match[1], int(match[2]))):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                _unlink(path)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # the folder belongs to somebody else
        return


def _is_being_made(path: Path, host: str, process: int) -> bool:
    """Return whether its process lives. A file with our process number is left from an earlier process."""
    if host != _HOST:
        try:
            return time.time() - path.stat().st_mtime < _LEFTOVERS_OF_OTHER_HOSTS_S
        except OSError:
            return False
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
