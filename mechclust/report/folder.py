"""Check and own the folder of a run or report, and write its files. No file of another owner is replaced or deleted."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from mechclust.report.manifest import MANIFEST, WAY_OUT, read_manifest, write_manifest
from mechclust.report.run_record import machine_facts, read_run_record, record_differences
from probes import ProbeResult
from probes.store.files import DamagedError, write_atomic, write_errors, write_json
from probes.store.temporary_files import remove_leftovers
from tasks import InputError

_LEAST = 2**20  # bytes that a report takes at least
_PAGES = ("findings.json", "findings.csv", "report.html")  # which a report may write
# Subjects that a digest tells apart.
_UNNAMED = {"texts": "other texts", "corpus": "another corpus or none", "weights": "other weights of this model"}
_COMMAND_FILE = "command.txt"  # in records of earlier versions
_WRITTEN_KINDS = (".csv", ".html", ".json", ".safetensors", ".xz")


def check_writable(out: Path, way_out: str = "choose another folder with --out") -> None:
    """Refuse a folder that cannot be made or written to, and a full disk, before any work. No folder is made.

    Args:
        out: the folder.
        way_out: advice that ends the message of an error.

    Raises:
        InputError: saying why.
    """
    try:
        nearest = nearest_existing_folder(out)
        with tempfile.TemporaryFile(dir=nearest) as file:  # permissions or an empty file do not reveal a full disk
            file.write(bytes(_LEAST))
            file.flush()
            return
    except OSError as error:
        why = os.strerror(error.errno or errno.EACCES)
    raise InputError(f"cannot write to {str(out.absolute())!r} ({why}); {way_out}")


def check_folder(out: Path, command: str, way_out: str = WAY_OUT) -> None:
    """Refuse a folder that cannot be written, or in which a file is not this command's. No file is changed.

    A folder with files belongs to a command if its manifest says so, or if it is the command's run. Otherwise only
    files of kinds that no command writes are welcome, such as ``notes.txt``.

    Args:
        out: the folder.
        command: the command's name, such as ``"clusters"`` or ``"run mossa"``.
        way_out: advice that ends the message of an error.

    Raises:
        InputError: for a folder of another command or of unknown files, a link out of the folder, and a file of the
            report that was changed.
    """
    check_writable(out)
    manifest = read_manifest(out, way_out)
    owner = manifest.command or _run_in(out, way_out)
    if not owner and _has_unlisted_files(out):
        raise InputError(f"{str(out)!r} holds files that no {MANIFEST} lists; {way_out}")
    if owner not in ("", command):
        raise InputError(f"{str(out)!r} holds a report of mechclust {owner}; {way_out}")
    _check_links(out, way_out)
    # Figures of unknown origin: as a name that the manifest does not list, they are refused.
    figures = ["figures"] if not manifest.files and _holds_files(out / "figures") else []
    check_folder_files(out, [*manifest.files, *_PAGES, *figures], way_out)


def _run_in(out: Path, way_out: str) -> str:
    """Return the command whose run a folder is, or an empty string."""
    try:
        return f"run {read_run_record(out, way_out)['study']}"
    except DamagedError:
        raise
    except InputError:
        return ""


def _has_unlisted_files(folder: Path) -> bool:
    """Return whether a folder without a manifest has a file of a kind that mechclust writes, or a folder with files."""
    entries = [path for path in folder.iterdir() if path.name[0] != "."] if folder.is_dir() else []
    return any(_holds_files(path) or path.suffix in _WRITTEN_KINDS or path.name == _COMMAND_FILE for path in entries)


def _holds_files(folder: Path) -> bool:
    """Return whether a folder has a visible file at any depth outside hidden folders. False for a file."""
    return any(visible_folder_files(folder))


def check_folder_subject(out: Path, subject: Mapping[str, str]) -> None:
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


def claim_folder(out: Path, command: str, subject: Mapping[str, str] | None = None) -> None:
    """Claim the folder ``out`` for a command, in its manifest.

    Args:
        out: the folder.
        command: its name.
        subject: the measured inputs, added to those already recorded.
    """
    manifest = read_manifest(out)
    recorded = replace(manifest, command=command, subject={**manifest.subject, **(subject or {})})
    if recorded != manifest:
        write_manifest(out, recorded)


def open_folder(out: Path, study: str, config: Mapping[str, Any]) -> None:
    """Begin a run in the folder ``out``, or resume it there if study and settings are the same.

    Temporary files of killed processes are removed.

    Raises:
        InputError: when ``out`` cannot be written, or holds something else.
    """
    is_new = not (out / "config.json").exists()
    if not is_new:
        _check_same_run(out, study, config)
    else:
        lost = [name for name in ("models", "results") if (out / name).exists()]
        if lost:
            raise InputError(
                f"{str(out)!r} has {lost[0]}/ but no config.json, which says which run they are from; put config.json "
                "back, or choose another folder with --out"
            )
    check_folder(out, f"run {study}")
    if is_new:
        write_json(out / "config.json", {"study": study, "config": config, "machine": machine_facts()})
    remove_leftovers(out, recursive=True)


def _check_same_run(out: Path, study: str, config: Mapping[str, Any]) -> None:
    """Refuse a folder with a run of another study or other settings, naming the first that differs, seeds last."""
    held = read_run_record(out, "choose another folder with --out")
    different = "" if held["study"] == study else f"study {held['study']}"
    if not different and held["config"] != config:
        differences = dict(record_differences(held["config"], config))
        different = "other fields"
        if differences:
            name = next((name for name in differences if name != "seeds"), "seeds")
            old, new = differences[name]
            different = f"{name} = {old!r}, not {new!r}"
            if name == "seeds":
                different += "; seeds can only be added after these"
    if different:
        raise InputError(
            f"{str(out)!r} holds another run ({different}); choose another folder with --out, "
            "or the same settings to continue"
        )


def save_folder_results(
    out: str | Path, command: str, results: Mapping[str, ProbeResult], subject: Mapping[str, str]
) -> None:
    """Write measurements into the folder ``out``, before anything is drawn of them, and delete those of earlier runs.

    Args:
        out: the folder.
        command: that reports there.
        results: by name, for ``results/NAME.safetensors``.
        subject: the measured inputs, by kind, such as ``{"model": "gpt2"}``. The folder remembers it.

    Raises:
        InputError: when ``out`` cannot be written, or holds the report of another command.
    """
    out = Path(out)
    check_folder(out, command)
    claim_folder(out, command, subject)
    contents = {f"results/{name}.safetensors": result.to_bytes() for name, result in results.items()}
    earlier = {name for name in read_manifest(out).files if name.startswith("results/")}
    _delete_folder_files(out, earlier - set(contents))
    write_folder_files(out, contents)


def nearest_existing_folder(out: Path) -> Path:
    """Return a folder, or the nearest existing one above it."""
    out = out.absolute()
    return next(path for path in (out, *out.parents) if path.exists())


def check_folder_files(folder: Path, names: Iterable[str], way_out: str = WAY_OUT) -> None:
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
        if path.exists() and folder_file_digest(path) not in files.get(name, []):
            why = f"is not what {MANIFEST} says was written" if name in files else f"is not listed in {MANIFEST}"
            raise InputError(f"{str(path)!r} {why}; move it away, or {way_out}")


def _check_links(folder: Path, way_out: str) -> None:
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


def write_folder_files(folder: Path, contents: Mapping[str, bytes], way_out: str = WAY_OUT) -> None:
    """Write files in order, and list them in the manifest.

    The manifest is written first, with the old and the new digest of each, so that a process killed in between leaves
    no file that is not listed.

    Args:
        folder: the folder.
        contents: by path in the folder.
        way_out: advice that ends the message of an error.

    Raises:
        InputError: as ``check_folder_files``, before any file is written. Also if a file cannot be written.
    """
    check_folder_files(folder, contents, way_out)
    manifest = read_manifest(folder, way_out)
    written = {name: [xxhash.xxh3_128_hexdigest(content)] for name, content in contents.items()}
    before = {name: [folder_file_digest(folder / name)] for name in contents if (folder / name).exists()}
    either = {name: list(dict.fromkeys([*before.get(name, []), *digest])) for name, digest in written.items()}
    write_manifest(folder, replace(manifest, files={**manifest.files, **either}))
    for name, content in contents.items():
        write_atomic(folder / name, content)
    if either != written:
        write_manifest(folder, replace(manifest, files={**manifest.files, **written}))


def replace_folder_files(folder: Path, contents: Mapping[str, bytes], way_out: str = WAY_OUT) -> None:
    """Write files, and delete all others that the manifest lists.

    Raises:
        InputError: as ``check_folder_files``, before any file is written or deleted. Also if a file cannot be
            written or deleted.
    """
    manifest = read_manifest(folder, way_out)
    check_folder_files(folder, {*manifest.files, *contents}, way_out)
    _delete_folder_files(folder, set(manifest.files) - set(contents))
    write_folder_files(folder, contents, way_out)


def _delete_folder_files(folder: Path, names: Iterable[str]) -> None:
    """Delete files that the manifest lists, and take them off its list."""
    deleted = set(names)
    for name in sorted(deleted):
        with write_errors(folder / name):
            (folder / name).unlink(missing_ok=True)
            _remove_empty(folder, (folder / name).parent)
    manifest = read_manifest(folder)
    kept = {name: digests for name, digests in manifest.files.items() if name not in deleted}
    if kept != manifest.files:
        write_manifest(folder, replace(manifest, files=kept))


def _remove_empty(folder: Path, below: Path) -> None:
    """Remove folders below ``folder`` in which a deleted file was the last one."""
    while below != folder and below.is_dir() and not any(below.iterdir()):
        below.rmdir()
        below = below.parent


def visible_folder_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden files and files in hidden folders, which are never ours."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place) / name for name in names if not name.startswith("."))


def folder_file_digest(path: Path) -> str:
    """Return the digest of a file, or an empty string if it is no file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
