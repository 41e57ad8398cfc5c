from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Writes ``tasks/<name>`` with a line each, objects as JSON, and returns the folder ``tasks``."""
    folder = tmp_path / "tasks"

    def file(name: str, lines: Sequence[object]) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return folder

    folder.mkdir()
    return file


@pytest.fixture
def lines() -> Callable[..., list[dict[str, str]]]:
    def some(n: int, of: str = "copa", **more: str) -> list[dict[str, str]]:
        return [{"inputs": f"Question {i} of {of}?", "targets": f"answer {i}", **more} for i in range(n)]

    return some
