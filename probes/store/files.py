"""Files of ours: whole or not at all, with a checksum, safetensors or JSON, and the versions that wrote them."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tasks import InputError

LOCK = ".mechclust.lock"  # stays behind in a folder that had an owner
VERIFY = "MECHCLUST_VERIFY"  # "0" in the environment: checksums are not compared

_CHUNK = 2**22  # bytes
_DAY = 86400.0  # seconds
_LONGEST_NAME = 80  # of a part of a file's name
_LONGEST_HEADER = 10**8  # bytes, as in safetensors
_ZEROS = "0" * 32
_SUM = re.compile(rb'"checksum":"([0-9a-f]{32})"')
_TEMPORARY = re.compile(r"\..+\.([A-Za-z0-9-]+)\.(\d+)\.tmp")
_WAYS = {
    errno.ENOSPC: "free space there and run the same command again (what was already written is kept)",
    errno.EDQUOT: "free space there and run the same command again (what was already written is kept)",
    errno.ENAMETOOLONG: "give a shorter name",
}
_ANEW = "delete it and run the same command again to recreate it"
_OURS_ANEW = f"give another file or, if mechclust wrote this one, {_ANEW}"
_DTYPES = {  # as safetensors calls them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def _named_host(name: str) -> str:
    """Part of the names of temporary files: no two hosts share it, however long their names are."""
    return f"{re.sub('[^A-Za-z0-9-]', '-', name)[:20]}-{xxhash.xxh32(name.encode()).hexdigest()}"


_HOST = _named_host(socket.gethostname())


class DamagedError(InputError):
    """A file of ours whose bytes are others than were written."""


def file_name(name: str) -> str:
    """Any name as part of a file's: it is not hidden, leads nowhere else, and is short enough for every file system.

    ``urllib.parse.unquote`` gives it back, but for a long one, which is cut and ends in a digest.

    Example:
        >>> file_name("a/b"), file_name(".."), file_name("x" * 300)[-20:]
        ('a%2Fb', '%2E.', 'xxxxxxx-a5d1b4607dc8')
    """
    quoted = quote(name, safe=" ", errors="surrogatepass") or "%"
    quoted = f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    digest = xxhash.xxh3_64_hexdigest(name.encode(errors="surrogatepass"))[:12]
    return f"{quoted[: _LONGEST_NAME - 13]}-{digest}"


# ---- whole or not at all ----


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` holds the old bytes or the new ones, never half of them.

    Raises:
        InputError: where it cannot be written, such as on a full disk; what ``path`` held before stays.
    """
    with _replacing(Path(path)) as file:
        file.write(data)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when all is written and on the disk."""
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
    """Say which path could not be written, why, and the way out."""
    try:
        yield
    except OSError as error:
        way = _WAYS.get(error.errno or 0, "give another folder, or make this one writable")
        raise InputError(f"cannot write {str(path)!r} ({error.strerror or error}); {way}") from error


def sync_folder(folder: Path) -> None:
    """See that a rename in ``folder`` outlives a power cut, where the system can."""
    try:
        place = os.open(folder, os.O_RDONLY)
    except OSError:  # it may be written and not read
        return
    try:
        os.fsync(place)
    except OSError:  # some file systems of networks
        pass
    finally:
        os.close(place)


def temporary_of(path: Path) -> Path:
    """Where this process makes what is to be at ``path``."""
    return path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether it is what ``temporary_of`` names, or the file of a lock: neither makes a folder one that holds files."""
    return path.name == LOCK or _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: str | Path, *, recursive: bool = False, everyones: bool = False) -> None:
    """Remove what killed processes were making in ``folder``; what a living one makes stays.

    Call it as the folder's owner (``locks.locked``): what looks dead may be alive in a container of the same name.

    Args:
        folder: may be missing.
        recursive: in the folders below it too.
        everyones: also what living processes, or those of other machines, are making: nobody needs it any more.

    What processes of other machines were making is removed when it is a day old.
    """
    folders = [Path(found) for found, _, _ in os.walk(folder)] if recursive else [Path(folder)]
    for place in folders:
        for path in place.glob(".*.tmp"):
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
    except OSError:  # a folder of others
        return


def _is_being_made(path: Path, host: str, process: int) -> bool:
    """Whether its process lives; what stands under our own number was left by one before us."""
    if host != _HOST:
        try:
            return time.time() - path.stat().st_mtime < _DAY
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


def verifies() -> bool:
    """Whether checksums are compared; not where the environment has ``MECHCLUST_VERIFY=0``."""
    return os.environ.get(VERIFY) != "0"


def _add(digest: Any, file: BinaryIO) -> None:
    """The rest of a file."""
    buffer = memoryview(bytearray(_CHUNK))
    while size := file.readinto(buffer):  # type: ignore[attr-defined]
        digest.update(buffer[:size])


def is_whole(path: str | Path) -> bool:
    """Whether a safetensors or JSON file of ours is there, and undamaged. Cost: reading it once."""
    path = Path(path)
    try:
        if path.suffix == ".json":
            read_json(path)
            return True
        return "checksum" in check_safetensors(path)
    except InputError:
        return False


# ---- safetensors ----


def write_safetensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """Write a safetensors file, whole or not at all, from the tensors' own memory; returns its checksum.

    The header gets ``"checksum"``: xxh3_128 over the whole file, with the checksum's own 32 digits as zeros.

    Args:
        path: the file.
        tensors: on any device, of any layout.
        header: of a format of ours, ``"format": "mechclust-..."``.

    Raises:
        InputError: where it cannot be written.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = write_safetensors(f"{folder}/x", {"x": torch.tensor([1, 2])}, {"format": "mechclust-demo-1"})
        ...     read_safetensors(f"{folder}/x")
        ({'x': tensor([1, 2])}, {'format': 'mechclust-demo-1'})
    """
    with _replacing(Path(path)) as file:
        return dump_tensors(file, tensors, header)


def dump_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """What ``write_safetensors`` writes, into an open file."""
    parts = [(name, x.detach().cpu().contiguous()) for name, x in tensors.items()]
    parts.sort(key=lambda part: -part[1].element_size())  # stable; so that every tensor is aligned
    record: dict[str, Any] = {"__metadata__": {"checksum": _ZEROS, **header}}
    end = 0
    for name, x in parts:
        start, end = end, end + x.numel() * x.element_size()
        record[name] = {"dtype": _DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
    text = json.dumps(record, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    begin = len(text).to_bytes(8, "little") + text
    digest = xxhash.xxh3_128(begin)
    file.write(begin)
    for _, x in parts:
        data = memoryview(x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy())  # type: ignore[arg-type]
        digest.update(data)
        file.write(data)
    file.seek(begin.index(b'"checksum":"') + len(b'"checksum":"'))
    file.write(digest.hexdigest().encode())
    return str(digest.hexdigest())


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file, without its checksum, which is compared.

    The tensors are mapped into memory: what is not used is not kept there. Comparing the checksum reads the file once.

    Raises:
        InputError: when it is missing, damaged, or of ours and without a checksum.
    """
    header = check_safetensors(path)
    header.pop("checksum", None)
    with _reading(path), safe_open(str(path), framework="pt") as file:
        return {k: file.get_tensor(k) for k in file.keys()}, header  # noqa: SIM118 - it is not a mapping


def check_safetensors(path: str | Path) -> dict[str, str]:
    """The header of a safetensors file, ``"checksum"`` included, after comparing that; the tensors are not kept.

    Raises:
        InputError: as ``read_safetensors``.
    """
    with _reading(path):
        found = _sums(Path(path)) if verifies() else None
        with safe_open(str(path), framework="pt") as file:
            header: dict[str, str] = dict(file.metadata() or {})
    if found is not None and found[0] != found[1]:
        raise DamagedError(f"{str(path)!r} is damaged (its checksum does not match); {_ANEW}")
    if found is None and verifies() and header.get("format", "").startswith("mechclust-"):
        raise InputError(f"{str(path)!r} has no checksum (it is damaged, or from another version); {_ANEW}")
    return header


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """An error of the disk or the format, in a sentence."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}; give the path of a safetensors file") from None
    except (SafetensorError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)!r} is truncated or not a safetensors file ({why}); {_OURS_ANEW}") from None


def _sums(path: Path) -> tuple[str, str] | None:
    """The checksum that a file names and the one that it has, or ``None`` when it names none."""
    with open(path, "rb") as file:
        begin = bytearray(file.read(8))
        begin += file.read(min(int.from_bytes(begin, "little"), _LONGEST_HEADER))
        if (named := _SUM.search(begin)) is None:
            return None
        given = named[1].decode()
        begin[slice(*named.span(1))] = _ZEROS.encode()
        digest = xxhash.xxh3_128(begin)
        _add(digest, file)
    return given, str(digest.hexdigest())


# ---- JSON ----


def write_json(path: str | Path, value: Any) -> None:
    """Write a file of strict JSON, whole or not at all: what is not finite becomes null.

    An object gets a field ``"checksum"``, xxh3_128 of the rest; in a list every object gets that of the whole list, so
    that one that was removed or moved is found too.

    Raises:
        InputError: where it cannot be written, and for an object that has a field ``"checksum"`` already.

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
    """Return what ``write_json`` writes.

    Raises:
        InputError: for an object that has a field ``"checksum"`` already.
    """
    value = json.loads(json.dumps(value), parse_constant=lambda constant: None)
    if any("checksum" in item for item in _objects(value)):
        raise InputError("cannot have a field 'checksum', which the file itself uses; rename it")
    found = _sum_of(value)
    for item in _objects(value):
        item["checksum"] = found
    return (json.dumps(value, indent=1) + "\n").encode()


def read_json(path: str | Path, *, handwritten: bool = False) -> Any:
    """What ``write_json`` wrote, without the checksums, which are compared.

    Args:
        path: the file.
        handwritten: take objects without a checksum too.

    Raises:
        DamagedError: when it was changed since it was written.
        InputError: for a file that is missing, no JSON, or without a checksum.
    """
    try:
        value = json.loads(Path(path).read_bytes())
        sums = [item.pop("checksum", None) for item in _objects(value)]
        found = _sum_of(value)
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}") from None
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):  # no UTF-8, an integer of 4,301 digits, lists in lists too deep
        raise InputError(f"{str(path)!r} is damaged (it is not JSON); {_OURS_ANEW}") from None
    for named in sums if verifies() else ():
        if named is None and not handwritten:
            raise InputError(f"{str(path)!r} has no checksum (it is damaged, or from another version); {_ANEW}")
        if named not in (None, found):
            raise DamagedError(f"{str(path)!r} is damaged (its checksum does not match); {_ANEW}")
    return value


def _objects(value: Any) -> list[dict[str, Any]]:
    """Those that have a checksum."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]


def _sum_of(value: Any) -> str:
    return str(xxhash.xxh3_128(json.dumps(value).encode()).hexdigest())


def versions() -> dict[str, str]:
    """Versions of what numbers depend on, for metadata."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("mechclust", "torch", "transformer-lens", "scikit-learn", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
