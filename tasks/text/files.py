"""Text files as texts, or one sentence that says why not."""

from __future__ import annotations

from pathlib import Path

from tasks.errors import InputError
from tasks.text.visible import quoted

_LONGEST = 300  # characters of a path in a message


def read_text(path: str | Path, what: str = "a text file", called: str = "file") -> str:
    """A UTF-8 file's text, with line ends as on Unix and without byte order mark.

    Args:
        path: of the file.
        what: was expected, for the message.
        called: what such a file is called there.

    Raises:
        InputError: for a file that is missing, a directory, one that cannot be read, or one that is not UTF-8 (with
            line and byte).
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"no {called} {str(path)!r}; give the path of {what}") from None
    except IsADirectoryError:
        raise InputError(f"{str(path)!r} is a directory; give {what}") from None
    except OSError as error:
        raise InputError(f"cannot read {quoted(str(path), _LONGEST)} ({error.strerror}); give {what}") from None
    except ValueError:  # a zero byte, or half a character
        raise InputError(f"no {called} can be named {quoted(str(path), _LONGEST)}; give the path of {what}") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        raise InputError(
            f"{str(path)!r} is not UTF-8 (line {before.count(10) + 1}, byte {error.start - before.rfind(10)}: "
            f"0x{data[error.start]:02x}); convert it, for example with iconv -f latin1 -t utf-8"
        ) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def check_texts(texts: object, what: str) -> None:
    """Refuse what is not a sequence of texts that can be written as UTF-8.

    Args:
        texts: what was given.
        what: one of them is called, such as ``"prompts: prompt"``; its number follows.

    Raises:
        InputError: naming the first that is not text.
    """
    if isinstance(texts, str):
        raise InputError(f"{what}s: the string {quoted(texts)} was given; expected a list of strings")
    for i, text in enumerate(texts, start=1):  # type: ignore[arg-type, var-annotated]
        if not isinstance(text, str):
            raise InputError(f"{what} {i} is {quoted(text)}; expected a string")
        if not text.isascii() and (half := next((c for c in text if "\ud800" <= c <= "\udfff"), None)):
            raise InputError(f"{what} {i} has half a character ({half!r}), which no tokenizer reads; fix it")
