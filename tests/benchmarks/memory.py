"""Memory of a process, and of pieces of code that run in one of their own (Linux)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median


def held() -> float:
    """Resident memory of this process, in MiB."""
    return _mib("VmRSS")


def peak() -> float:
    """The most that this process held since ``forget_peak``, in MiB."""
    return _mib("VmHWM")


def forget_peak() -> None:
    """What was held so far, such as imports, is not the measurement's."""
    Path("/proc/self/clear_refs").write_text("5")


def printed(code: str, rounds: int = 1) -> list[float]:
    """The numbers that ``code`` prints in a process of its own: medians over processes."""
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(rounds)
    ]
    return [median(map(float, values)) for values in zip(*runs, strict=True)]


def _mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))
