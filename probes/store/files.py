"""Files that mechclust writes: whole or not at all, with a checksum."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from probes.store.temporary_files import temporary_file_of
from tasks import InputError

_VERIFY = "MECHCLUST_VERIFY"  # "0" in the environment: checksums are not compared

_FREE_SPACE = "free space there and run the same command again (what was already written is kept)"
_WAYS_OUT = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.ENAMETOOLONG: "give a shorter name",
}
RECREATE = "delete it and run the same command again to recreate it"
RECREATE_OURS = f"give another file or, if mechclust wrote this one, {RECREATE}"


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
    temporary = temporary_file_of(path)
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


# ---- checksums ----


def files_are_verified() -> bool:
    """Return whether checksums are compared: unless the environment has ``MECHCLUST_VERIFY=0``."""
    return os.environ.get(_VERIFY) != "0"


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
