"""The folder of a run or a report: whether it can be written, and the record of what was run in it."""

from __future__ import annotations

import errno
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probes.files import versions, write_atomic
from tasks import InputError


def check_writable(out: Path, option: str = "--out") -> None:
    """Refuse a folder that cannot be made or written to, before any work; makes nothing.

    Args:
        out: the folder.
        option: with which another can be chosen.

    Raises:
        InputError: saying why.
    """
    out = out.absolute()
    nearest = next(path for path in (out, *out.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):  # permissions alone do not tell
            return
    except OSError as error:
        why = os.strerror(error.errno or errno.EACCES)
    raise InputError(f"cannot write to {str(out)!r} ({why}); choose another folder with {option}")


def machine() -> dict[str, Any]:
    """Date, versions and machine, for reports."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "versions": versions(),
    }


def open_folder(out: Path, study: str, config: Mapping[str, Any]) -> None:
    """Begin a run in the folder ``out``, or go on with one of the same study and settings.

    Raises:
        InputError: when ``out`` cannot be written, or holds something else.
    """
    check_writable(out)
    if not (out / "config.json").exists():
        write_json(out / "config.json", {"study": study, "config": config, "machine": machine()})
    held = read_record(out, "choose another folder with --out")
    different = "" if held["study"] == study else f"study {held['study']}"
    if not different and held["config"] != config:
        name, (old, new) = next(differences(held["config"], config), ("", ("", "")))
        different = f"{name} = {old!r}, not {new!r}" if name else "other fields"
    if different:
        raise InputError(
            f"{str(out)!r} holds another run ({different}); choose another folder with --out, "
            "or the same settings to go on"
        )


def read_record(out: Path, way_out: str) -> dict[str, Any]:
    """The ``config.json`` of a run's folder: ``study``, ``config`` and ``machine``.

    Raises:
        InputError: when it holds no run, with the way out.
    """
    try:
        record = json.loads((out / "config.json").read_text())
        if isinstance(record["study"], str) and isinstance(record["config"], dict):
            return dict(record)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{str(out)!r} holds no run (no readable config.json); {way_out}")


def differences(
    held: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Fields whose value is another, nested ones by dots, with both values.

    Example:
        >>> dict(differences({"seed": 0, "training": {"lr": 0.1}}, {"seed": 0, "training": {"lr": 0.2}}))
        {'training.lr': (0.1, 0.2)}
    """
    for name, new in wanted.items():
        old = held.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}", (old, new)


def write_json(path: Path, value: Any) -> None:
    """Write a file of strict JSON: what is not finite becomes null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda constant: None)
    write_atomic(path, (json.dumps(finite, indent=1) + "\n").encode())
