"""Checkpoints of Hugging Face's Trainer: which of them were written to their end, and are as they were written."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from probes.store.digest import digest_of
from probes.store.files import read_json, write_errors, write_json
from tasks import InputError

_MARK = "whole.json"
_NUMBERED = re.compile(r"checkpoint-(\d+)")
_WRITER = re.compile("inline_container|PytorchStreamWriter|iostream|Parent directory|be opened")  # of PyTorch's files
_FULL_DISK_BYTES = 2**20  # with less space a disk counts as full


def newest_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """Return step and path of the last whole checkpoint in a Trainer's folder, and remove incomplete ones."""
    checkpoints: dict[int, Path] = {}
    for path in folder.glob("checkpoint-*") if folder.exists() else ():
        match = _NUMBERED.fullmatch(path.name)
        if match and _is_whole(path):
            checkpoints[int(match[1])] = path
        else:
            shutil.rmtree(path, ignore_errors=True)
    return max(checkpoints.items()) if checkpoints else None


def _is_whole(path: Path) -> bool:
    try:
        return bool(read_json(path / _MARK) == _digests(path))
    except (InputError, OSError):
        return False


def _digests(path: Path) -> dict[str, str]:
    """Return a digest of every file: a power cut leaves some that have their length and not their bytes."""
    files = (file for file in sorted(path.iterdir()) if file.is_file() and file.name != _MARK)
    return {file.name: digest_of([file.read_bytes()]) for file in files}


def mark_checkpoint(checkpoint: Path) -> None:
    """Mark a checkpoint as whole, once it is."""
    write_json(checkpoint / _MARK, _digests(checkpoint))


@contextmanager
def saving_checkpoint(folder: Path) -> Iterator[None]:
    """Turn an error of torch or safetensors that cannot write into one sentence. Others are raised as they are.

    Raises:
        InputError: naming the folder, the reason, and the way out.
    """
    with write_errors(folder):
        try:
            yield
        except (RuntimeError, SafetensorError) as error:
            number = _system_error_number(error, folder)
            if number:
                raise OSError(number, os.strerror(number)) from error
            if isinstance(error, SafetensorError) or _WRITER.search(str(error)):
                raise OSError(" ".join(str(error).split())[:200]) from error
            raise


def _system_error_number(error: Exception, folder: Path) -> int:
    """Return the number of the operating system's error that another error is about, or 0."""
    match = re.search(r"os error (\d+)", str(error))
    if match:
        return int(match[1])
    return errno.ENOSPC if shutil.disk_usage(folder).free < _FULL_DISK_BYTES else 0
