"""Files of ours: whole or not at all, safetensors, the versions that wrote them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tasks import InputError

_CHUNK = 2**22  # bytes
_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")


def file_name(name: str) -> str:
    """Any name as part of a file's; ``urllib.parse.unquote`` gives it back."""
    return quote(name, safe=" ")


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` holds the old bytes or the new ones, never half of them."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(path)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_of(path: Path) -> Path:
    """Where this process makes what is to be at ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether it is what ``temporary_of`` names."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes were making in ``folder``; what a living one makes stays."""
    for path in folder.iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or _others_life(int(match[1])):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _others_life(process: int) -> bool:
    """Whether another process of this number lives; what stands under our own was left by one before us."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def checksum(path: str | Path) -> str:
    """xxh3_128 of a file's bytes, 32 hexadecimal digits. Cost: reading it; the sum itself runs at over 10 GB/s."""
    digest, buffer = xxhash.xxh3_128(), memoryview(bytearray(_CHUNK))
    with open(path, "rb") as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return str(digest.hexdigest())


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file. The tensors are mapped into memory: what is not used is not read.

    Raises:
        InputError: when it is missing or damaged.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            names: Iterable[str] = file.keys()
            return {k: file.get_tensor(k) for k in names}, file.metadata() or {}
    except FileNotFoundError:
        raise InputError(f"no file {str(path)!r}; give the path of a safetensors file") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{str(path)!r} is truncated or not a safetensors file ({error})") from None


def versions() -> dict[str, str]:
    """Versions of what numbers depend on, for metadata."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("mechclust", "torch", "transformer-lens", "scikit-learn", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
