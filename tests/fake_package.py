"""An installed package that is not: for tests of what other packages register."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, source: str, package: str, points: dict[str, str]
) -> None:
    """Puts a package with entry points of a group where Python finds it, until the test ends."""
    folder, module = folder / package, package.replace("-", "_")
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    lines = [f"{name.replace('_', '-')} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    (folder / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
