"""The folder of a command: named by its subject, and owned by one command, model and data at a time."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from mechclust.jobs.interrupts import interrupt_message
from mechclust.report.folder import check_folder, check_folder_subject, claim_folder
from mechclust.report.manifest import WAY_OUT
from probes.store.locks import locked_folder
from probes.store.temporary_files import remove_leftovers
from tasks import InputError

_MAX_PART_LENGTH = 40  # characters of a part of a folder's name
# Folders and files that a command keeps before it is finished.
_MEASURED = (
    "adapters", "checkpoints", "rows", "measured", "roles", "results", "topics.safetensors", "documents.json",
)  # fmt: skip


def default_folder(command: str, *parts: Any) -> Path:
    """Return the folder of a command that is given none: ``runs/``, and the names of its subject.

    Args:
        command: name of the command.
        parts: models, adapters and files, each cut to its last part, leaving out ``None``.

    Example:
        >>> default_folder("compare", "openai/gpt2", "./tuned", "data/prompts.jsonl").as_posix()
        'runs/compare-gpt2-tuned-prompts'
    """
    return Path("runs") / "-".join([command, *(_short(part) for part in parts if part is not None)])


def _short(part: Any) -> str:
    """Return a path's last part without its ending, as part of any file's name.

    A name that is cut or changed gets a digest, so that different names stay different.
    """
    path = Path(part)
    name = (path if path.name else path.absolute()).name
    name = re.sub(r"\.(jsonl?|csv|tsv|parquet|txt|gguf|safetensors)$", "", name) or "x"
    plain = re.sub("[^A-Za-z0-9._+]+", "-", name)[:_MAX_PART_LENGTH].strip("-.")
    if plain == name:
        return name
    return f"{plain}-{xxhash.xxh32(name.encode(errors='surrogatepass')).hexdigest()}".removeprefix("-")


def check_outside(out: str | Path, folders: Iterable[Path]) -> None:
    """Refuse a folder of results inside one that is read: its files would be read the next time.

    Args:
        out: the folder of results.
        folders: files and folders that are read.

    Raises:
        InputError: naming both.
    """
    for folder in folders:
        if folder.is_dir() and Path(out).resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{str(out)!r} lies in {str(folder)!r}, which is read; {WAY_OUT}")


@contextmanager
def own_folder(out: str | Path | None, command: str, subject: Mapping[str, str] | None = None) -> Iterator[None]:
    """Own the folder ``out`` for the block.

    Unfinished files of killed processes are removed. The subject is recorded with the results
    (``save_folder_results``), so that a refusal before that changes no file.

    Args:
        out: the folder, or ``None`` if none is needed.
        command: name of the command.
        subject: the subject of the measurement, by kind, such as ``{"model": "gpt2"}``. ``None`` if hidden states in
            the folder identify it better than names do, or if only a report is written.

    Raises:
        InputError: if another process owns the folder, or it holds the report of another command or subject, or
            files that are not of this command.
    """
    if out is None:
        yield
        return
    out = Path(out)
    check_folder(out, command)
    with locked_folder(out, way=WAY_OUT):
        remove_leftovers(out, recursive=True)
        check_folder(out, command)  # another owner may just have ended
        check_folder_subject(out, subject or {})
        claim_folder(out, command)
        yield


@contextmanager
def folder_or_temporary(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder ``out`` or, if there is none, a temporary one that is removed after the block."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="mechclust-") as folder:
        yield Path(folder)


@contextmanager
def goes_on(out: Path) -> Iterator[None]:
    """Add to an interruption within the block where the measurements so far are."""
    with interrupt_message(partial(_so_far, out)):
        yield


def _so_far(out: Path) -> str:
    """Return a text on the files that an interruption left."""
    if any((out / name).exists() for name in _MEASURED):
        return f"; what was measured so far is in {out}; run the same command again to resume"
    return "; nothing was saved yet; the same command starts again from the beginning"
