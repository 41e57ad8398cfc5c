"""Files as chunks and lines, plain or compressed, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import InputError
from tasks.text.files import check_text_file_start
from tasks.text.visible import quoted

COMPRESSED = (".gz", ".bz2")
LONGEST = 2**22  # characters of a line or a document, about 4 MB of English

_CHUNK_BYTES = 2**16


@dataclass
class StreamReading:
    """Progress in reading one file.

    Attributes:
        path: path of the file.
        documents: number of documents that were read.
        short: number of documents that were left out because they have too few words.
        cut: number of cuts of documents or lines that were longer than ``LONGEST`` characters.
        ended: why the file broke off, or empty if it did not.
    """

    path: Path
    documents: int = 0
    short: int = 0
    cut: int = 0
    ended: str = ""

    @property
    def note(self) -> str:
        """A sentence that the file breaks off, or ``""`` if it does not."""
        if not self.ended:
            return ""
        return (
            f"{str(self.path)!r} breaks off ({self.ended}); the {self.documents} documents before are kept. "
            "Fetch the file again to have the rest."
        )

    def count_cut(self) -> None:
        """Count a cut."""
        self.cut += 1


def read_stream_bytes(reading: StreamReading) -> Iterator[bytes]:
    """Yield a file's bytes, unpacked. A compressed file that is damaged gives the bytes before the damage.

    Raises:
        InputError: for a file that cannot be opened or read, and a compressed one that cannot be unpacked at all.
    """
    path = reading.path
    has_begun = False
    try:
        with _opened(path) as file:
            while chunk := file.read1(_CHUNK_BYTES):
                has_begun = True
                yield chunk
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(
                f"cannot read {quoted(str(path), 300)} ({error.strerror}); give a file of the corpus that can be read"
            ) from None
        if not has_begun:
            packed = "gzip" if path.suffix.lower() == ".gz" else "bzip2"
            raise InputError(
                f"{str(path)!r} is not {packed}, as its name says, or is damaged at its start ({error}); "
                "download it again, or rename it"
            ) from None
        reading.ended = " ".join(str(error).split()) or type(error).__name__


def _opened(path: Path) -> gzip.GzipFile | bz2.BZ2File | io.BufferedReader:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")
    return bz2.open(path, "rb") if path.suffix.lower() == ".bz2" else open(path, "rb")


def _text_chunks(reading: StreamReading) -> Iterator[str]:
    """Yield a UTF-8 file's text, with line ends as on Unix and without byte order mark.

    Raises:
        InputError: as ``read_stream_bytes``, and for content that is not UTF-8 (with its format, or the line).
    """
    characters = codecs.getincrementaldecoder("utf-8-sig")()
    decoder = io.IncrementalNewlineDecoder(characters, translate=True)
    line = 1
    try:
        for number, chunk in enumerate(read_stream_bytes(reading)):
            if number == 0:
                check_text_file_start(reading.path, chunk)
            text = decoder.decode(chunk)
            yield text
            line += text.count("\n")
        if not reading.ended:  # otherwise half a character may be left
            yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        raise InputError(
            f"{str(reading.path)!r} is not UTF-8 (line {line}: 0x{error.object[error.start]:02x}); convert it, for "
            "example with iconv -f latin1 -t utf-8"
        ) from None


def read_stream_lines(reading: StreamReading, *, whole: bool = False) -> Iterator[str]:
    """Yield a text file's lines, without their ends.

    A line longer than ``LONGEST`` comes in parts, cut at a space if there is one. If a file breaks off, its last line
    comes without its last word.

    Args:
        reading: of the file.
        whole: yield whole lines only: refuse longer ones, and leave out the last line of a file that breaks off.

    Raises:
        InputError: as ``_text_chunks``, and for a line that is too long.
    """
    rest = ""
    number = 1
    for chunk in _text_chunks(reading):
        *full, rest = (rest + chunk).split("\n")
        yield from full
        number += len(full)
        while len(rest) > LONGEST:
            if whole:
                raise InputError(
                    f"{reading.path}, line {number} has more than {LONGEST:,} characters; write one document per line, "
                    "and split longer ones"
                )
            end = rest.rfind(" ", 0, LONGEST) + 1 or LONGEST
            reading.count_cut()
            yield rest[:end]
            rest = rest[end:]
    if reading.ended:
        rest = "" if whole else rest.rpartition(" ")[0]
    yield rest
