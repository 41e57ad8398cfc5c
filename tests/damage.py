"""Ways in which a file is lost."""

from __future__ import annotations

from pathlib import Path


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    """To its first half, as a full disk leaves it."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path: Path) -> None:
    """One bit of its last byte, which is a number's."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


WAYS = (delete, truncate, flip)
