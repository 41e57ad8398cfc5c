"""Calls in Python, by name: every probe, every loader, stored rows, and what each package exports.

A call receives a ``Library``, from which it reads public names, and the folder of inputs, and returns what is compared.
The current folder is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.parity import library_functional, library_models, library_probes, library_rows
from tests.parity.names import Library

CALLS: dict[str, Callable[[Library, Path], Any]] = {
    **library_models.CALLS,
    **library_probes.CALLS,
    **library_rows.CALLS,
    **library_functional.CALLS,
}
