"""A small run of the study of task clusters, by its command."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from mechclust.cli import main

SMALL = [
    "run",
    "task-clusters",
    "--preset",
    "smoke",
    "--workers",
    "1",
    "--arms",
    "private",
    "--no-tsne",
    "--n-init",
    "1",
]


def small_run(out: Path) -> str:
    """Make it, without pictures, and return what it printed."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr("mechclust.report.panel.png_bytes", lambda figure: b"\x89PNG\r\n\x1a\n")
        assert main([*SMALL, "--out", str(out)]) == 0
    return printed.getvalue()
