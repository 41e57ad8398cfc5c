"""Name the machine, measure its speed, and refuse work beyond time and memory."""

from __future__ import annotations

import os
import platform
import time
from functools import cache
from typing import Any

import torch

from mechclust.report.text import duration_text, size_text
from probes.engine.devices import free_memory_bytes
from probes.store.versions import package_versions
from tasks import InputError

_DAY_S = 24 * 3600
_TIMED_S = 0.05  # for which the matrix product is repeated


@cache  # every model of a comparison asks, and each timing takes a twentieth of a second
def matmul_speed(device: str, dtype: torch.dtype, width: int, rows: int) -> float:
    """Return multiplications and additions per second of a short matrix product.

    Args:
        device: where.
        dtype: of its numbers.
        width: of the square matrix.
        rows: of what it is multiplied with.
    """
    x = torch.ones(rows, width, device=device, dtype=dtype)
    weights = torch.ones(width, width, device=device, dtype=dtype)
    float((x @ weights)[0, 0])  # the first is slow, and reading a number waits for the device
    start = time.perf_counter()
    products = 0
    elapsed = 0.0
    while elapsed < _TIMED_S:
        float((x @ weights)[0, 0])
        products += 1
        elapsed = time.perf_counter() - start
    return 2.0 * products * rows * width * width / elapsed


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
    free = free_memory_bytes("cpu")
    excess = ""
    if seconds > _DAY_S:
        excess = f"{duration_text(seconds)}, more than a day"
    elif free is not None and memory > free:
        excess = f"{size_text(memory)} of memory, more than the {size_text(free)} that are free"
    if excess:
        raise InputError(f"this takes about {excess}; give {fewer}, or --yes to begin anyway")


def machine_facts() -> dict[str, Any]:
    """Return date, versions and machine, for reports."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "versions": package_versions(),
    }
