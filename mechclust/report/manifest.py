"""The manifest of an output folder, which lists the files that mechclust wrote there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes.store.files import (
    DamagedError,
    read_json,
    write_json,
)
from tasks import InputError

MANIFEST = "mechclust.json"
WAY_OUT = "give another folder with --out"


@dataclass(frozen=True)
class Manifest:
    """The content of ``mechclust.json``, which lists the files of its folder.

    Attributes:
        command: name of the command that writes there, such as ``clusters``. Empty in a folder without a manifest.
        subject: the measured inputs, by kind, such as ``{"model": "gpt2"}``.
        files: the digests of each file that was written, by its path in the folder. There are two if writing the
            second content may have been interrupted.
        measured: the digest of each file of a finished run's ``results/``, by its path in the folder.
    """

    command: str = ""
    subject: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, list[str]] = field(default_factory=dict)
    measured: Mapping[str, str] = field(default_factory=dict)


def read_manifest(folder: Path, way_out: str = WAY_OUT) -> Manifest:
    """Read the manifest of a folder. It is empty if the folder has none.

    Args:
        folder: may be missing.
        way_out: advice that ends the message of an error.

    Raises:
        InputError: if it is damaged, or cannot be read.
    """
    path = folder / MANIFEST
    if not path.exists():
        return Manifest()
    try:
        record = read_json(path)
        measured = _texts(record["measured"])
        return Manifest(str(record["command"]), _texts(record["subject"]), _digests(record["files"]), measured)
    except (InputError, TypeError, ValueError, KeyError, AttributeError) as error:
        if not os.access(path, os.R_OK):
            raise InputError(f"{str(path)!r} cannot be read; make it readable, or {way_out}") from error
        why = "its checksum does not match" if isinstance(error, DamagedError) else "it is not what was written"
        raise InputError(f"{str(path)!r} is damaged ({why}); delete it, or {way_out}") from error


def _texts(values: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}


def _digests(files: Any) -> dict[str, list[str]]:
    return {str(name): [*map(str, digests)] for name, digests in files.items()}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder."""
    write_json(folder / MANIFEST, {**vars(manifest), "files": dict(sorted(manifest.files.items()))})
