"""Long measurements, each made once and kept in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def kept_runs(path: Path) -> list[dict[str, Any]]:
    """Return every run in a file: its settings, and what it took."""
    return json.loads(path.read_text()) if path.exists() else []


def measure_missing(path: Path, settings: Iterable[Mapping[str, Any]], measure: Callable[..., dict[str, Any]]) -> None:
    """Measure the settings of which no run is kept, and keep each run when it ends."""
    for given in settings:
        if any(given.items() <= run.items() for run in kept_runs(path)):
            continue
        run = {**given, **measure(**given)}
        path.write_text(json.dumps([*kept_runs(path), run], indent=1) + "\n")
        print(run, flush=True)
