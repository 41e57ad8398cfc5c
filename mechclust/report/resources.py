"""Free disk space, and refusal of work beyond time and memory."""

from __future__ import annotations

import shutil
from pathlib import Path

from mechclust.report.folder import nearest_existing_folder
from mechclust.report.text import duration_text, size_text
from probes.engine.devices import free_device_memory
from tasks import InputError

_DAY_S = 24 * 3600


def check_resources(seconds: float, memory: float = 0.0, *, yes: bool, fewer: str) -> None:
    """Refuse work that takes more than a day or more memory than is free, unless that was agreed to.

    Args:
        seconds: as estimated.
        memory: bytes, as estimated.
        yes: whether it was agreed to.
        fewer: what to give for less work, in words.

    Raises:
        InputError: with the estimate.

    Example:
        >>> check_resources(360_000, yes=False, fewer="fewer prompts")
        Traceback (most recent call last):
        tasks.errors.InputError: this takes about 100.0 h, more than a day; give fewer prompts, or --yes to begin anyway
    """
    if yes:
        return
    free = free_device_memory("cpu")
    excess = []
    if seconds > _DAY_S:
        excess.append(f"{duration_text(seconds)}, more than a day")
    if free is not None and memory > free:
        excess.append(f"{size_text(memory)} of memory, more than the {size_text(free)} that are free")
    if excess:
        raise InputError(f"this takes about {', and '.join(excess)}; give {fewer}, or --yes to begin anyway")


def free_disk_bytes(out: Path) -> int:
    """Return the free bytes of the disk on which ``out`` is, or would be made."""
    return shutil.disk_usage(nearest_existing_folder(out)).free
