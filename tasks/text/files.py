"""Text files as texts, or one sentence that says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tasks.errors import InputError
from tasks.text.visible import quoted

_MAX_PATH_CHARACTERS = 300  # longest path in a message
_CONVERT = "convert it, for example with iconv -f {} -t utf-8"
# The format of files that begin with these bytes, and the way out. The first that fits counts.
_FORMATS = {
    b"\xff\xfe\0\0": f"is UTF-32; {_CONVERT.format('utf-32')}",
    b"\0\0\xfe\xff": f"is UTF-32; {_CONVERT.format('utf-32')}",
    b"\xff\xfe": f"is UTF-16; {_CONVERT.format('utf-16')}",
    b"\xfe\xff": f"is UTF-16; {_CONVERT.format('utf-16')}",
    b"\x1f\x8b": "is compressed (gzip); unpack it",
    **{b"BZh%d1AY&SY" % level: "is compressed (bzip2); unpack it" for level in range(1, 10)},
    b"\xfd7zXZ": "is compressed (xz); unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed (zstd); unpack it",
    b"PK\x03\x04": "is a zip archive; unpack it, or save a spreadsheet as CSV",
    b"PAR1\x15": "is parquet; name it .parquet",
    b"%PDF-": "is a PDF; save its text as UTF-8",
    b"\x89PNG": "is an image; give text",
    b"\x80\x04\x95": "is a Python pickle; save its texts as UTF-8",
    b"\x80\x05\x95": "is a Python pickle; save its texts as UTF-8",
}
_ZERO_BYTES = f"begins with zero bytes, as UTF-16 or a binary file does; give text, or {_CONVERT.format('utf-16le')}"


def read_text(path: str | Path, what: str = "a text file", called: str = "file") -> str:
    """Return a UTF-8 file's text, with line ends as on Unix and without byte order mark.

    Args:
        path: path of the file.
        what: was expected, for the message.
        called: name of such a file in the message.

    Raises:
        InputError: for a file that is missing, a directory, one that cannot be read, or one that is not UTF-8 (with
            its format, or line and byte).
    """
    data = _read_bytes(path, what, called)
    check_text_file_start(path, data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        raise InputError(
            f"{str(path)!r} is not UTF-8 (line {before.count(10) + 1}, byte {error.start - before.rfind(10)}: "
            f"0x{data[error.start]:02x}); {_CONVERT.format('latin1')}"
        ) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def check_text_file_start(path: str | Path, data: bytes) -> None:
    """Refuse a file whose first bytes belong to another format than UTF-8 text.

    Args:
        path: of the file, for the message.
        data: its first bytes, or all of them.

    Raises:
        InputError: naming the format, and how to make text of it.
    """
    known = [fault for start, fault in _FORMATS.items() if data.startswith(start)]
    if b"\0" in data[:8]:
        known.append(_ZERO_BYTES)
    if known:
        raise InputError(f"{str(path)!r} {known[0]}")


def _read_bytes(path: str | Path, what: str, called: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"no {called} {str(path)!r}; give the path of {what}") from None
    except IsADirectoryError:
        raise InputError(f"{str(path)!r} is a directory; give {what}") from None
    except OSError as error:
        name = quoted(str(path), _MAX_PATH_CHARACTERS)
        raise InputError(f"cannot read {name} ({error.strerror}); give {what}") from None
    except ValueError:  # a zero byte, or half a character
        name = quoted(str(path), _MAX_PATH_CHARACTERS)
        raise InputError(f"no {called} can be named {name}; give the path of {what}") from None


def corpus_files(paths: Iterable[str | Path], is_wanted: Callable[[Path], bool], kinds: str) -> list[Path]:
    """Return the files of a corpus, each once: given files, and the wanted ones of directories, sorted by name.

    Args:
        paths: files and directories.
        is_wanted: whether a file in a directory belongs to the corpus.
        kinds: the wanted files in words, for the message, such as ``"*.txt file"``.

    Raises:
        InputError: for no paths, one that is missing, and a directory without wanted files.
    """
    files: dict[Path, Path] = {}  # in order, each once, by where it lies
    for path in map(Path, paths):
        if path.is_dir():
            wanted = sorted(file for file in path.rglob("*") if is_wanted(file) and file.is_file())
            if not wanted:
                raise InputError(f"the directory {str(path)!r} holds no {kinds}; name the files themselves")
            for file in wanted:
                files.setdefault(file.resolve(), file)
        elif path.exists():
            files.setdefault(path.resolve(), path)
        else:
            raise InputError(f"no corpus file {str(path)!r}; give the path of a file or of a directory of them")
    if not files:
        raise InputError("no corpus files given; name at least one file or a directory of them")
    return list(files.values())
