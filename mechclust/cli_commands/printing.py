"""What commands print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.text.visible import visible


def print_visible(text: object) -> None:
    """Print lines in which users' texts may stand."""
    print(visible(str(text), keep="\n"))


def show(table: str, sentences: Sequence[str], report: Callable[[], Path], below: str = "") -> None:
    """Print what was found, before the report is written: then nothing is lost where that fails."""
    print_visible(table)
    if sentences:
        print_visible("\n" + "\n".join(f"- {visible(sentence)}" for sentence in sentences))
    if below:
        print_visible(f"\n{below}")
    sys.stdout.flush()
    print_visible(f"\nreport: {report()}")
