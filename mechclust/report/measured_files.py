"""The files that a run measured, in ``results/``: listed in its manifest, and compared with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mechclust.report.folder import folder_file_digest, visible_folder_files
from mechclust.report.manifest import read_manifest, write_manifest
from probes.engine.result_place import result_place, saved_result_place
from probes.store.files import files_are_verified
from probes.store.safetensors_files import is_whole_file
from tasks import InputError

_OTHER = "is not what this run measured; delete it and run the study again with the same --out"


def list_measured_files(folder: Path) -> None:
    """List the measurements of a finished run in its manifest."""
    write_manifest(folder, replace(read_manifest(folder), measured=_measurements(folder)))


def forget_measured_files(folder: Path) -> None:
    """Remove the measurements from the manifest of a run that goes on: until it is finished they may change."""
    manifest = read_manifest(folder)
    if manifest.measured:
        write_manifest(folder, replace(manifest, measured={}))


def check_measured_files(folder: Path) -> None:
    """Refuse a run in which a file of ``results/`` was replaced, such as by one of another seed, step or split.

    Every saved ``ProbeResult`` records its place, which is compared always. The manifest of a finished run also has
    each file's digest, which is compared unless ``MECHCLUST_VERIFY=0``. Code that reads a file reports it if it is
    missing or damaged.

    Raises:
        InputError: naming the first file that is not as the run wrote it.
    """
    for path in sorted(visible_folder_files(folder / "results")):
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
    files = sorted(path for path in visible_folder_files(folder / "results") if path.is_file())
    return {path.relative_to(folder).as_posix(): folder_file_digest(path) for path in files}
