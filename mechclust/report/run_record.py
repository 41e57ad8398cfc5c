"""The record of a run in its folder: study, settings and machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probes.store.files import DamagedError, read_json
from probes.store.versions import package_versions
from tasks import InputError


def read_run_record(out: Path, way_out: str) -> dict[str, Any]:
    """Return the ``config.json`` of a run's folder: ``study``, ``config`` and ``machine``.

    Raises:
        InputError: when it holds no run, or a changed record of it, with the way out.
    """
    path = out / "config.json"
    try:
        record = read_json(path)
        if isinstance(record["study"], str) and all(isinstance(record[key], dict) for key in ("config", "machine")):
            return dict(record)
    except DamagedError:
        why = "was changed or is damaged (its checksum does not match)"
        raise DamagedError(f"{str(path)!r} {why}; {way_out}") from None
    except (InputError, KeyError, TypeError):
        pass
    raise InputError(f"{str(out)!r} holds no run (no readable config.json); {way_out}")


def record_differences(
    held: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the fields that differ, nested ones by dots, with both values. ``None`` for a field that is not there.

    Example:
        >>> dict(record_differences({"seed": 0, "training": {"lr": 0.1}}, {"seed": 0, "training": {"lr": 0.2}}))
        {'training.lr': (0.1, 0.2)}
    """
    for name in {**held, **wanted}:
        old = held.get(name)
        new = wanted.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from record_differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}", (old, new)


def machine_facts() -> dict[str, Any]:
    """Return date, versions and machine, for reports."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "versions": package_versions(),
    }
