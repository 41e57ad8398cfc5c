"""The folder of a run or a report: whether it can be written, whose it is, and the record of what was run in it."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probes.files import versions, write_atomic
from tasks import InputError

_OURS = "mechclust.json"  # whose report a folder holds, and which files belong to it
_OURS_IN = ("results", "figures")  # folders in which an earlier report's files are removed


def check_writable(out: Path, option: str = "--out") -> None:
    """Refuse a folder that cannot be made or written to, before any work; makes nothing.

    Args:
        out: the folder.
        option: with which another can be chosen.

    Raises:
        InputError: saying why.
    """
    nearest = _there(out)
    try:
        with tempfile.TemporaryFile(dir=nearest):  # permissions alone do not tell
            return
    except OSError as error:
        why = os.strerror(error.errno or errno.EACCES)
    raise InputError(f"cannot write to {str(out.absolute())!r} ({why}); choose another folder with {option}")


def check_command(out: Path, command: str) -> None:
    """Refuse a folder that cannot be written, and one in which another command reports; makes nothing.

    Args:
        out: the folder.
        command: as it is called, such as ``"clusters"``.

    Raises:
        InputError: naming the other command.
    """
    check_writable(out)
    held, _ = _held(out)
    if held not in (None, command):
        raise InputError(f"{str(out)!r} holds a report of mechclust {held}; give another folder with --out")


def record_command(out: Path, command: str, files: Collection[str] | None = None) -> None:
    """Record in the folder ``out`` that this command reports there.

    Args:
        out: the folder.
        command: as it is called.
        files: of its report, by their paths in the folder. What an earlier report had in ``results`` and ``figures``
            and this one has not is removed. ``None``: the report is not written yet.
    """
    held, before = _held(out)
    if files is None:
        if held == command:
            return
        files = []
    for name in set(before) - set(files):
        path = out / name
        if name.split("/")[0] in _OURS_IN and ".." not in path.parts:
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == out or any(folder.iterdir()):
                    break
                folder.rmdir()
    write_json(out / _OURS, {"command": command, "files": sorted(files)})


def _held(out: Path) -> tuple[str | None, list[str]]:
    """The command that reports in a folder, and its report's files."""
    try:
        record = json.loads((out / _OURS).read_text())
        return str(record["command"]), list(map(str, record["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return f"run {read_record(out, '')['study']}", []
    except InputError:
        return None, []


def free_space(out: Path) -> int:
    """Bytes that are free where ``out`` is, or would be made."""
    return shutil.disk_usage(_there(out)).free


def kept_bytes(rows: Path) -> int:
    """Bytes of the hidden states that are kept in a folder already."""
    return sum(path.stat().st_size for path in rows.rglob("*.safetensors"))


def _there(out: Path) -> Path:
    """A folder, or the nearest one above it that is there."""
    out = out.absolute()
    return next(path for path in (out, *out.parents) if path.exists())


@contextmanager
def rows_errors(fewer: str) -> Iterator[None]:
    """Say what to give on the command line where an error inside says what to call in Python.

    Args:
        fewer: the option that gives fewer prompts, such as ``"--max-rows"``.
    """
    words = {
        "call save_rows with the same arguments": "give the same command again",
        "give fewer prompts or layers, dtype=torch.bfloat16, or another folder": (
            f"give fewer prompts ({fewer}), --dtype bfloat16, or another folder with --out"
        ),
        "give fewer prompts or layers, or another folder": (
            f"give fewer prompts ({fewer}), or another folder with --out"
        ),
        "give a new folder": "give another folder with --out",
        "give another folder": "give another folder with --out",
    }
    try:
        yield
    except InputError as error:
        said = str(error)
        for python, command in words.items():
            if python in said and command not in said:
                said = said.replace(python, command)
                break
        if said == str(error):
            raise
        raise InputError(said) from error


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
        check_command(out, f"run {study}")
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
