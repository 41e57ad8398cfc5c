"""The place of a result's file below the folder ``results``, and the place that the file records."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open


def result_place(path: str | Path) -> str:
    """Return a file's path below the innermost folder ``results``, or ``""`` if it is in none.

    Example:
        >>> result_place("runs/mossa/results/seed0/base.dims.safetensors"), result_place("dims.safetensors")
        ('seed0/base.dims.safetensors', '')
    """
    _, folder, place = f"/{Path(path).as_posix()}".rpartition("/results/")
    return place if folder else ""


def saved_result_place(path: str | Path) -> str:
    """Return the place that a result's file records, or ``""`` if the file is damaged or lacks it."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return str((file.metadata() or {}).get("place", ""))
    except (SafetensorError, OSError):
        return ""
