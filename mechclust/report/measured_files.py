"""Digests of a run's measurements: listed in its manifest at the end, cleared when it goes on, and checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mechclust.report.folder import folder_file_digest, visible_folder_files
from mechclust.report.manifest import read_manifest, write_manifest
from probes.engine.result_place import result_place, saved_result_place
from probes.store.files import files_are_verified
from probes.store.safetensors_files import is_whole_file
from tasks import InputError

_NOT_MEASURED = "is not what this run measured; delete it and run the study again with the same --out"


def list_measured_files(folder: Path) -> None:
    """Write the digest of each file in ``results/`` of a finished run into its manifest."""
    write_manifest(folder, replace(read_manifest(folder), measured=_measurements(folder)))


def forget_measured_files(folder: Path) -> None:
    """Remove the digests from the manifest of a run that goes on, since its files may change. The files stay."""
    manifest = read_manifest(folder)
    if manifest.measured:
        write_manifest(folder, replace(manifest, measured={}))


def check_measured_files(folder: Path) -> None:
    """Refuse a run in which a file of ``results/`` was replaced, such as by one of another seed, step or split.

    A saved ``ProbeResult`` records its place, which is always compared. The manifest of a finished run has each file's
    digest, which is compared unless ``MECHCLUST_VERIFY=0``: a changed or added file is refused. Missing and damaged
    files pass, because the code that reads them has a better error.

    Raises:
        InputError: naming the first file that is not as the run wrote it.
    """
    for path in sorted(visible_folder_files(folder / "results")):
        if path.suffix == ".safetensors" and saved_result_place(path) not in ("", result_place(path)):
            raise InputError(f"{str(path)!r} holds {saved_result_place(path)!r}, which {_NOT_MEASURED}")
    measured = read_manifest(folder).measured
    if not (measured and files_are_verified()):
        return
    for name, digest in _measurements(folder).items():
        path = folder / name
        if digest != measured.get(name) and (path.suffix not in (".safetensors", ".json") or is_whole_file(path)):
            raise InputError(f"{str(path)!r} {_NOT_MEASURED}")


def _measurements(folder: Path) -> dict[str, str]:
    """Return the digest of each file in ``results/``, by its path in the folder."""
    files = sorted(path for path in visible_folder_files(folder / "results") if path.is_file())
    return {path.relative_to(folder).as_posix(): folder_file_digest(path) for path in files}
