"""Files as bytes and as lines, plain or compressed."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.errors import InputError
from tasks.text.files import check_text_file_start
from tasks.text.visible import quoted

COMPRESSED = (".gz", ".bz2")

_CHUNK_BYTES = 2**16


def read_stream_bytes(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes, unpacked.

    Raises:
        InputError: for a file that cannot be opened or read, and a compressed one that is damaged or breaks off.
    """
    with _opened(path) as file:
        while chunk := file.read1(_CHUNK_BYTES):
            yield chunk


def read_stream_lines(path: Path) -> Iterator[str]:
    """Yield a UTF-8 file's lines, without their ends and without byte order mark. Memory: one line.

    Raises:
        InputError: as ``read_stream_bytes``, and for content that is not UTF-8 (with its format, or the line).
    """
    is_ended = True
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                check_text_file_start(path, line)
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{str(path)!r} is not UTF-8 (line {number}: 0x{line[error.start]:02x}); convert it, for example "
                    "with iconv -f latin1 -t utf-8"
                ) from None
            is_ended = text.endswith("\n")
            if is_ended:
                text = text.removesuffix("\n").removesuffix("\r")
            yield from text.split("\r")  # line ends of an old Mac
    if is_ended:
        yield ""


@contextmanager
def _opened(path: Path) -> Iterator[gzip.GzipFile | bz2.BZ2File | io.BufferedReader]:
    """Open a file to read its unpacked bytes, and refuse it if these cannot be read."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".gz":
            with gzip.open(path, "rb") as file:
                yield file
        elif suffix == ".bz2":
            with bz2.open(path, "rb") as file:
                yield file
        else:
            with open(path, "rb") as file:
                yield file
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(
                f"cannot read {quoted(str(path), 300)} ({error.strerror}); give a file of the corpus that can be read"
            ) from None
        packed = "gzip" if suffix == ".gz" else "bzip2"
        raise InputError(
            f"{str(path)!r} is not {packed}, as its name says, or is damaged or incomplete ({error}); download it "
            "again, or rename it"
        ) from None
