"""The measurements of a run in one small file, from which its findings can be judged again."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Collection
from pathlib import Path

from tasks import InputError


def pack_folder(folder: Path, without: Collection[str] = ()) -> bytes:
    """Return all files of ``folder`` as a ``.tar.xz``. Equal files give equal bytes.

    Args:
        folder: a folder of files. Temporary files of killed processes are left out.
        without: names of files that are left out too, in any subfolder.
    """
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.name.startswith(".") and file.name not in without:
                entry = tarfile.TarInfo(f"{folder.name}/{file.relative_to(folder).as_posix()}")
                entry.size = file.stat().st_size
                with file.open("rb") as data:
                    archive.addfile(entry, data)
    return lzma.compress(held.getvalue(), preset=9)


def unpack_folder(path: Path, folder: Path) -> None:
    """Write the files of an archive into ``folder``.

    Raises:
        InputError: if it is damaged, or a file in it would lie outside of ``folder``.
    """
    try:
        data = lzma.decompress(path.read_bytes())  # whole, so that its checksum is verified
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise InputError(f"{str(path)!r} is damaged or not an archive of results ({error}); get it again") from None
