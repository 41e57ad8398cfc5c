"""The folder of a run or a report."""

from __future__ import annotations

import errno
import os
import platform
import time
from pathlib import Path
from typing import Any

from probes.files import versions
from tasks import InputError


def check_writable(out: Path) -> None:
    """Refuse a folder that cannot be made or written to, before any work; makes nothing.

    Raises:
        InputError: saying why.
    """
    out = out.absolute()
    nearest = next(path for path in (out, *out.parents) if path.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return
    why = os.strerror(errno.EACCES if nearest.is_dir() else errno.ENOTDIR)
    raise InputError(f"cannot write to {str(out)!r} ({why}); choose another folder with --out")


def machine() -> dict[str, Any]:
    """Date, versions and machine, for reports."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "versions": versions(),
    }
