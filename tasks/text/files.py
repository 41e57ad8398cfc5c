"""Text files as texts, or one sentence that says why not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from tasks.errors import InputError
from tasks.text.visible import quoted

_MAX_PATH_CHARACTERS = 300  # in a message
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def read_text(path: str | Path, what: str = "a text file", called: str = "file") -> str:
    """Return a UTF-8 file's text, with line ends as on Unix and without byte order mark.

    Args:
        path: of the file.
        what: was expected, for the message.
        called: what such a file is called there.

    Raises:
        InputError: for a file that is missing, a directory, one that cannot be read, or one that is not UTF-8 (with
            line and byte).
    """
    data = _read_bytes(path, what, called)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        raise InputError(
            f"{str(path)!r} is not UTF-8 (line {before.count(10) + 1}, byte {error.start - before.rfind(10)}: "
            f"0x{data[error.start]:02x}); convert it, for example with iconv -f latin1 -t utf-8"
        ) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


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
    """Return the files of a corpus, each once: those given, and the wanted ones of directories, sorted by name.

    Args:
        paths: files and directories.
        is_wanted: whether a file in a directory belongs to the corpus.
        kinds: the wanted files in words, for the message, such as ``"*.txt file"``.

    Raises:
        InputError: for no paths, one that is missing, and a directory without wanted files.
    """
    files: dict[Path, None] = {}  # in order, each once
    for path in map(Path, paths):
        if path.is_dir():
            wanted = sorted(file for file in path.rglob("*") if is_wanted(file) and file.is_file())
            if not wanted:
                raise InputError(f"the directory {str(path)!r} holds no {kinds}; name the files themselves")
            files.update(dict.fromkeys(wanted))
        elif path.exists():
            files[path] = None
        else:
            raise InputError(f"no corpus file {str(path)!r}; give the path of a file or of a directory of them")
    if not files:
        raise InputError("no corpus files given; name at least one file or a directory of them")
    return list(files)


def check_texts(texts: object, what: str) -> None:
    """Refuse a value that is not a sequence of texts that can be written as UTF-8.

    Args:
        texts: the value.
        what: one of them is called, such as ``"prompts: prompt"``; its number follows.

    Raises:
        InputError: naming the first that is not text.
    """
    if isinstance(texts, str):
        raise InputError(f"{what}s: the string {quoted(texts)} was given; expected a list of strings")
    for i, text in enumerate(texts, start=1):  # type: ignore[arg-type, var-annotated]
        if not isinstance(text, str):
            raise InputError(f"{what} {i} is {quoted(text)}; expected a string")
        check_whole_characters(text, f"{what} {i}")


def check_whole_characters(text: str, what: str) -> None:
    """Refuse a text with half a surrogate pair, which UTF-8 cannot write.

    Raises:
        InputError: calling the text ``what``.
    """
    half = None if text.isascii() else _HALF_CHARACTER.search(text)
    if half:
        raise InputError(f"{what} has half a character ({half[0]!r}), which no tokenizer reads; fix it")
