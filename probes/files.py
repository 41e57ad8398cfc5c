"""Files of ours: whole or not at all, safetensors, the versions that wrote them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tasks import InputError


def file_name(name: str) -> str:
    """Any name as part of a file's; ``urllib.parse.unquote`` gives it back."""
    return quote(name, safe=" ")


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` holds the old bytes or the new ones, never half of them."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file.

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
