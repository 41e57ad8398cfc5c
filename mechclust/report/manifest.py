"""The manifest of an output folder: which files mechclust wrote there, so that no other file is replaced or deleted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash

from probes.engine.result import result_place, saved_result_place
from probes.store.files import (
    DamagedError,
    files_are_verified,
    is_whole_file,
    read_json,
    write_atomic,
    write_errors,
    write_json,
)
from tasks import InputError

MANIFEST = "mechclust.json"
WAY_OUT = "give another folder with --out"
_OTHER = "is not what this run measured; delete it and run the study again with the same --out"
_WRITTEN_KINDS = (".csv", ".html", ".json", ".safetensors", ".xz")


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


def holds_files(folder: Path) -> bool:
    """Return whether a folder has a visible file at any depth outside hidden folders. False for a file."""
    return any(_visible_files(folder))


def _visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden files and files in hidden folders, which are never ours."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place) / name for name in names if not name.startswith("."))


def may_hold_ours(folder: Path) -> bool:
    """Return whether a folder has a file of a type that mechclust writes, or a folder with files in it."""
    entries = [path for path in folder.iterdir() if path.name[0] != "."] if folder.is_dir() else []
    return any(holds_files(path) or path.suffix in _WRITTEN_KINDS or path.name == "command.txt" for path in entries)


def check_links(folder: Path, way_out: str = WAY_OUT) -> None:
    """Refuse a folder with a link that leads out of it or in a circle, because files behind the link are not ours.

    Raises:
        InputError: naming the link.
    """
    root = Path(os.path.realpath(folder))  # resolve() fails on links in a circle
    for place, folders, files in os.walk(folder):
        for path in (Path(place) / name for name in (*folders, *files)):
            if path.is_symlink() and not _leads_into(path, root):
                raise InputError(f"{str(path)!r} is a link out of the folder; remove it, or {way_out}")


def _leads_into(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # links in a circle
        return False


def check_files(folder: Path, names: Iterable[str], way_out: str = WAY_OUT) -> None:
    """Refuse a folder in which a file that would be replaced or deleted is not ours. Cost: reading these files once.

    Args:
        folder: may be missing.
        names: paths in the folder.
        way_out: advice that ends the message of an error.

    Raises:
        InputError: for a file that the manifest does not list, that was changed, or that lies outside of the folder.
    """
    files = read_manifest(folder, way_out).files
    root = Path(os.path.realpath(folder))  # resolve() fails on links in a circle
    for name in names:
        path = folder / name
        if not _leads_into(path, root):
            raise InputError(f"{str(path)!r} lies outside of {str(folder)!r}; {way_out}")
        if path.exists() and _digest_of(path) not in files.get(name, []):
            why = f"is not what {MANIFEST} says was written" if name in files else f"is not listed in {MANIFEST}"
            raise InputError(f"{str(path)!r} {why}; move it away, or {way_out}")


def add_files(folder: Path, contents: Mapping[str, bytes], way_out: str = WAY_OUT) -> None:
    """Write files in order, and list them in the manifest.

    The manifest is written first, with the old and the new digest of each, so that a process killed in between leaves
    no file that is not listed.

    Args:
        folder: the folder.
        contents: by path in the folder.
        way_out: advice that ends the message of an error.

    Raises:
        InputError: as ``check_files``, before any file is written. Also if a file cannot be written.
    """
    check_files(folder, contents, way_out)
    manifest = read_manifest(folder, way_out)
    written = {name: [xxhash.xxh3_128_hexdigest(content)] for name, content in contents.items()}
    before = {name: [_digest_of(folder / name)] for name in contents if (folder / name).exists()}
    either = {name: list(dict.fromkeys([*before.get(name, []), *digest])) for name, digest in written.items()}
    write_manifest(folder, replace(manifest, files={**manifest.files, **either}))
    for name, content in contents.items():
        write_atomic(folder / name, content)
    if either != written:
        write_manifest(folder, replace(manifest, files={**manifest.files, **written}))


def replace_files(folder: Path, contents: Mapping[str, bytes], way_out: str = WAY_OUT) -> None:
    """Write files, and delete all others that the manifest lists.

    Raises:
        InputError: as ``check_files``, before any file is written or deleted. Also if a file cannot be.
    """
    manifest = read_manifest(folder, way_out)
    check_files(folder, {*manifest.files, *contents}, way_out)
    for name in sorted(set(manifest.files) - set(contents)):
        with write_errors(folder / name):
            (folder / name).unlink(missing_ok=True)
            _remove_empty(folder, (folder / name).parent)
    kept = {name: digests for name, digests in manifest.files.items() if name in contents}
    write_manifest(folder, replace(manifest, files=kept))
    add_files(folder, contents, way_out)


def record_measured(folder: Path) -> None:
    """List the measurements of a finished run in its manifest."""
    write_manifest(folder, replace(read_manifest(folder), measured=_measurements(folder)))


def forget_measured(folder: Path) -> None:
    """Remove the measurements from the manifest of a run that goes on: until it is finished they may change."""
    manifest = read_manifest(folder)
    if manifest.measured:
        write_manifest(folder, replace(manifest, measured={}))


def check_measured(folder: Path) -> None:
    """Refuse a run in which a file of ``results/`` was replaced, such as by one of another seed, step or split.

    Every file says where it belongs. In a finished run their content is known too, unless checksums are not compared.
    Missing or damaged files are left to the code that reads them.

    Raises:
        InputError: naming the first file that is not as the run wrote it.
    """
    for path in sorted(_visible_files(folder / "results")):
        if path.suffix == ".safetensors" and saved_result_place(path) not in ("", result_place(path)):
            raise InputError(f"{str(path)!r} holds {saved_result_place(path)!r}, which {_OTHER}")
    measured = read_manifest(folder).measured
    if not (measured and files_are_verified()):
        return
    for name, digest in _measurements(folder).items():
        path = folder / name
        if digest != measured.get(name) and (path.suffix not in (".safetensors", ".json") or is_whole_file(path)):
            raise InputError(f"{str(path)!r} {_OTHER}")


def _measurements(folder: Path) -> dict[str, str]:
    """Return the digest of each file in ``results/``, by its path in the folder."""
    files = sorted(path for path in _visible_files(folder / "results") if path.is_file())
    return {path.relative_to(folder).as_posix(): _digest_of(path) for path in files}


def _remove_empty(folder: Path, below: Path) -> None:
    """Remove folders below ``folder`` in which a deleted file was the last one."""
    while below != folder and below.is_dir() and not any(below.iterdir()):
        below.rmdir()
        below = below.parent


def _digest_of(path: Path) -> str:
    """Return the digest of a file, or an empty string if it is no file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
