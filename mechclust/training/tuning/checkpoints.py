"""Checkpoints of Hugging Face's Trainer: which of them were written to their end, and are as they were written."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from probes.store.digest import digest_of
from probes.store.files import read_json, write_errors, write_json
from tasks import InputError

_MARK = "whole.json"
_NUMBERED = re.compile(r"checkpoint-(\d+)")
_ROOM = 2**20  # bytes; with less a disk counts as full


def newest_whole(folder: Path) -> tuple[int, Path] | None:
    """Step and place of the last whole checkpoint in a Trainer's folder; those that are not whole are removed."""
    found: dict[int, Path] = {}
    for path in folder.glob("checkpoint-*") if folder.exists() else ():
        if (match := _NUMBERED.fullmatch(path.name)) and _is_whole(path):
            found[int(match[1])] = path
        else:
            shutil.rmtree(path, ignore_errors=True)
    return max(found.items()) if found else None


def _is_whole(path: Path) -> bool:
    try:
        return bool(read_json(path / _MARK) == _digests(path))
    except (InputError, OSError):
        return False


def _digests(path: Path) -> dict[str, str]:
    """Of every file: a power cut leaves some that have their length and not their bytes."""
    files = (file for file in sorted(path.iterdir()) if file.is_file() and file.name != _MARK)
    return {file.name: digest_of([file.read_bytes()]) for file in files}


def keep_whole() -> Any:
    """A callback that marks a checkpoint as whole, once it is."""
    from transformers import TrainerCallback

    class _Mark(TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_json(path / _MARK, _digests(path))

    return _Mark()


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """What torch and safetensors raise where they cannot write, as one sentence.

    Raises:
        InputError: naming the folder, the reason, and the way out.
    """
    with write_errors(folder):
        try:
            yield
        except (RuntimeError, SafetensorError) as error:
            raise _of_the_system(error, folder) from error


def _of_the_system(error: Exception, folder: Path) -> OSError:
    """They tell the error's number in their text, or not at all."""
    told = re.search(r"os error (\d+)", str(error))
    number = int(told[1]) if told else errno.ENOSPC if shutil.disk_usage(folder).free < _ROOM else 0
    return OSError(number, os.strerror(number)) if number else OSError(" ".join(str(error).split())[:200])
