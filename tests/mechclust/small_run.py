"""A small run of the study of task clusters, by its command, and reports without figures."""

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


def leave_figures_out(patch: pytest.MonkeyPatch) -> None:
    """Put an empty picture in place of each figure of reports, for tests that look at no figure."""
    patch.setattr("mechclust.report.panel.png_bytes", lambda figure: b"\x89PNG\r\n\x1a\n")


def small_run(out: Path) -> str:
    """Make it, without pictures, and return what it printed."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        leave_figures_out(patch)
        assert main([*SMALL, "--out", str(out)]) == 0
    return printed.getvalue()
