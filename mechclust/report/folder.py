"""Check and own the folder of a run or report, and record the run in it."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechclust.report.manifest import (
    MANIFEST,
    WAY_OUT,
    check_files,
    check_links,
    holds_files,
    may_hold_ours,
    read_manifest,
    write_manifest,
)
from probes.store.files import DamagedError, read_json, remove_leftovers, write_json
from probes.store.versions import package_versions
from tasks import InputError

_LEAST = 2**20  # bytes that a report takes at least
_PAGES = ("findings.json", "findings.csv", "report.html")  # which a report may write
# Subjects that a digest tells apart.
_UNNAMED = {"texts": "other texts", "corpus": "another corpus or none", "weights": "other weights of this model"}


def check_writable(out: Path, way: str = "choose another folder with --out") -> None:
    """Refuse a folder that cannot be made or written to, and a full disk, before any work. No folder is made.

    Args:
        out: the folder.
        way: out of it.

    Raises:
        InputError: saying why.
    """
    nearest = _there(out)
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:  # permissions or an empty file do not reveal a full disk
            file.write(bytes(_LEAST))
            file.flush()
            return
    except OSError as error:
        why = os.strerror(error.errno or errno.EACCES)
    raise InputError(f"cannot write to {str(out.absolute())!r} ({why}); {way}")


def check_command(out: Path, command: str, way_out: str = WAY_OUT) -> None:
    """Refuse a folder that cannot be written, or in which a file is not this command's. No file is changed.

    A folder with files belongs to a command if its manifest says so, or if it is the command's run. Otherwise only
    files of kinds that no command writes are welcome, such as ``notes.txt``.

    Args:
        out: the folder.
        command: as it is called, such as ``"clusters"``.
        way_out: out of it.

    Raises:
        InputError: for a folder of another command or of unknown files, a link out of the folder, and a file of the
            report that was changed.
    """
    check_writable(out)
    manifest = read_manifest(out, way_out)
    owner = manifest.command or _run_in(out, way_out)
    if not owner and may_hold_ours(out):
        raise InputError(f"{str(out)!r} holds files that no {MANIFEST} lists; {way_out}")
    if owner not in ("", command):
        raise InputError(f"{str(out)!r} holds a report of mechclust {owner}; {way_out}")
    check_links(out, way_out)
    figures = ["figures"] if not manifest.files and holds_files(out / "figures") else []
    check_files(out, [*manifest.files, *_PAGES, *figures], way_out)


def check_subject(out: Path, subject: Mapping[str, str]) -> None:
    """Refuse a folder in which something else was measured.

    Args:
        out: the folder.
        subject: the inputs to measure, by kind, such as ``{"model": "gpt2"}``.

    Raises:
        InputError: naming the input that differs.
    """
    held = read_manifest(out).subject
    for kind, wanted in subject.items():
        if kind in held and held[kind] != wanted:
            what = _UNNAMED.get(kind, f"the {kind} {held[kind]!r}, and this is {wanted!r}")
            raise InputError(f"{str(out)!r} holds what was measured of {what}; {WAY_OUT}")


def record_command(out: Path, command: str, subject: Mapping[str, str] | None = None) -> None:
    """Record in the manifest of the folder ``out`` that this command writes there.

    Args:
        out: the folder.
        command: its name.
        subject: the measured inputs, added to those already recorded.
    """
    manifest = read_manifest(out)
    recorded = replace(manifest, command=command, subject={**manifest.subject, **(subject or {})})
    if recorded != manifest:
        write_manifest(out, recorded)


def _run_in(out: Path, way_out: str) -> str:
    """Return the command whose run a folder is, or an empty string."""
    try:
        return f"run {read_record(out, way_out)['study']}"
    except DamagedError:
        raise
    except InputError:
        return ""


def free_space(out: Path) -> int:
    """Return the bytes that are free where ``out`` is, or would be made."""
    return shutil.disk_usage(_there(out)).free


def kept_bytes(rows: Path) -> int:
    """Return the bytes of the hidden states that are kept in a folder already."""
    return sum(path.stat().st_size for path in rows.rglob("*.safetensors"))


def _there(out: Path) -> Path:
    """Return a folder, or the nearest existing one above it."""
    out = out.absolute()
    return next(path for path in (out, *out.parents) if path.exists())


@contextmanager
def rows_errors(fewer: str) -> Iterator[None]:
    """Replace an error's advice for Python by the command line's option.

    Args:
        fewer: the option that gives fewer prompts, such as ``"--max-rows"``.
    """
    words = {
        "call save_rows with the same arguments": "run the same command again",
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
        message = str(error)
        for python, command in words.items():
            if python in message and command not in message:
                raise InputError(message.replace(python, command)) from error
        raise


def machine_facts() -> dict[str, Any]:
    """Return date, versions and machine, for reports."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "versions": package_versions(),
    }


@contextmanager
def open_folder(out: Path, study: str, config: Mapping[str, Any]) -> Iterator[None]:
    """Begin a run in the folder ``out``, or resume one of equal study and settings. The block owns the folder.

    Temporary files of killed processes are removed. If somebody removes the folder inside the block, later files still
    belong to this run, and the record is written again at the end.

    Raises:
        InputError: when ``out`` cannot be written, or holds something else.
    """
    check_writable(out)
    if not (out / "config.json").exists():
        lost = [name for name in ("models", "results") if (out / name).exists()]
        if lost:
            raise InputError(
                f"{str(out)!r} has {lost[0]}/ but no config.json, which says which run they are from; put config.json "
                "back, or choose another folder with --out"
            )
        check_command(out, f"run {study}")
        _begin(out, study, config)
    held = read_record(out, "choose another folder with --out")
    different = "" if held["study"] == study else f"study {held['study']}"
    if not different and held["config"] != config:
        name, (old, new) = next(differing_fields(held["config"], config), ("", ("", "")))
        different = f"{name} = {old!r}, not {new!r}" if name else "other fields"
        if name == "seeds":
            different += "; seeds can only be added after these"
    if different:
        raise InputError(
            f"{str(out)!r} holds another run ({different}); choose another folder with --out, "
            "or the same settings to continue"
        )
    check_command(out, f"run {study}")
    remove_leftovers(out, recursive=True)
    try:
        yield
    finally:
        if out.is_dir() and not (out / "config.json").exists():
            with suppress(InputError):
                _begin(out, study, config)


def _begin(out: Path, study: str, config: Mapping[str, Any]) -> None:
    write_json(out / "config.json", {"study": study, "config": config, "machine": machine_facts()})


def read_record(out: Path, way_out: str) -> dict[str, Any]:
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


def differing_fields(
    held: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the fields that differ, nested ones by dots, with both values.

    Example:
        >>> dict(differing_fields({"seed": 0, "training": {"lr": 0.1}}, {"seed": 0, "training": {"lr": 0.2}}))
        {'training.lr': (0.1, 0.2)}
    """
    for name, new in wanted.items():
        old = held.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differing_fields(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}", (old, new)
