"""Files that mechclust writes: whole or not at all, with a checksum."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from tasks import InputError

LOCK = ".mechclust.lock"  # stays behind in a folder that had an owner
VERIFY = "MECHCLUST_VERIFY"  # "0" in the environment: checksums are not compared

_LEFTOVERS_OF_OTHER_HOSTS_S = 86400.0
_TEMPORARY = re.compile(r"\..+\.([A-Za-z0-9-]+)\.(\d+)\.tmp")
_FREE_SPACE = "free space there and run the same command again (what was already written is kept)"
_WAYS_OUT = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.ENAMETOOLONG: "give a shorter name",
}
RECREATE = "delete it and run the same command again to recreate it"
RECREATE_OURS = f"give another file or, if mechclust wrote this one, {RECREATE}"


def _host_part(name: str) -> str:
    """Return a host's part of the names of temporary files: no two hosts share it, however long their names are."""
    return f"{re.sub('[^A-Za-z0-9-]', '-', name)[:20]}-{xxhash.xxh32(name.encode()).hexdigest()}"


_HOST = _host_part(socket.gethostname())


class DamagedError(InputError):
    """A file that mechclust wrote, whose bytes have changed since."""


# ---- whole or not at all ----


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` holds the old bytes or the new ones, never half of them.

    Raises:
        InputError: if it cannot be written, such as on a full disk. ``path`` is then unchanged.
    """
    with replacing_file(Path(path)) as file:
        file.write(data)


@contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of ``path`` once all is written and on the disk."""
    temporary = temporary_of(path)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Name the path that could not be written, why, and the way out."""
    try:
        yield
    except OSError as error:
        way_out = _WAYS_OUT.get(error.errno or 0, "give another folder, or make this one writable")
        raise InputError(f"cannot write {str(path)!r} ({error.strerror or error}); {way_out}") from error


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` outlive a power cut, if the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a file may be writable but not readable
        return
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems raise it
        pass
    finally:
        os.close(descriptor)


def temporary_of(path: Path) -> Path:
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


# ---- checksums ----


def files_are_verified() -> bool:
    """Return whether checksums are compared: unless the environment has ``MECHCLUST_VERIFY=0``."""
    return os.environ.get(VERIFY) != "0"


# ---- JSON ----


def write_json(path: str | Path, value: Any) -> None:
    """Write a file of strict JSON, whole or not at all: a number that is not finite becomes null.

    An object gets a field ``"checksum"``, xxh3_128 of the rest. In a list every object gets the checksum of the whole
    list, so that removed and moved objects are found too.

    Raises:
        InputError: if it cannot be written, and for an object that has a field ``"checksum"`` already.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_json(f"{folder}/x.json", {"value": float("nan")})
        ...     read_json(f"{folder}/x.json")
        {'value': None}
    """
    try:
        data = json_bytes(value)
    except InputError as error:
        raise InputError(f"{str(path)!r} {error}") from None
    write_atomic(path, data)


def json_bytes(value: Any) -> bytes:
    """Return the bytes that ``write_json`` writes.

    Raises:
        InputError: for an object that has a field ``"checksum"`` already.
    """
    value = json.loads(json.dumps(value), parse_constant=_null)
    if any("checksum" in item for item in _objects_of(value)):
        raise InputError("cannot have a field 'checksum', which the file itself uses; rename it")
    checksum = _json_checksum(value)
    for item in _objects_of(value):
        item["checksum"] = checksum
    return (json.dumps(value, indent=1) + "\n").encode()


def read_json(path: str | Path, *, handwritten: bool = False) -> Any:
    """Return the content of a file from ``write_json``, without the checksums, which are compared.

    Args:
        path: the file.
        handwritten: take objects without a checksum too.

    Raises:
        DamagedError: if it was changed since it was written.
        InputError: for a file that is missing, no JSON, or without a checksum.
    """
    try:
        value = json.loads(Path(path).read_bytes())
        named = [item.pop("checksum", None) for item in _objects_of(value)]
        checksum = _json_checksum(value)
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}") from None
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):  # no UTF-8, an integer of 4,301 digits, lists in lists too deep
        raise InputError(f"{str(path)!r} is damaged (it is not JSON); {RECREATE_OURS}") from None
    if not files_are_verified():
        return value
    if None in named and not handwritten:
        raise InputError(f"{str(path)!r} has no checksum (it is damaged, or from another version); {RECREATE}")
    if any(each not in (None, checksum) for each in named):
        raise DamagedError(f"{str(path)!r} is damaged (its checksum does not match); {RECREATE}")
    return value


def _null(constant: str) -> None:
    """Return null for NaN and the infinities."""


def _objects_of(value: Any) -> list[dict[str, Any]]:
    """Return the objects that have a checksum: the value itself, or the items of a list."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def _json_checksum(value: Any) -> str:
    return str(xxhash.xxh3_128(json.dumps(value).encode()).hexdigest())
