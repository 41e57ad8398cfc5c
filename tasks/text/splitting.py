"""Lines as documents: paragraphs of enough words, lines, or all of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from tasks.text.words import word_spans

SplitBy = Literal["paragraph", "file", "line"]


def split_lines(
    lines: Iterable[str],
    split: SplitBy,
    min_words: int,
    longest: int | None = None,
    was_cut: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    r"""The documents of a text. Memory: two documents.

    Args:
        lines: without their ends.
        split: what a document is; see ``Corpus.from_files``.
        min_words: of a paragraph.
        longest: characters after which a file or paragraph is cut at the end of a line; ``None``: never.
        was_cut: called for each cut.

    Example:
        >>> list(split_lines("a b\n\nc d e\n\nf".split("\n"), "paragraph", min_words=3))
        ['a b\n\nc d e\n\nf']
    """
    if split == "line":
        found: Iterable[str] = lines
    elif split == "file":
        found = _parts(lines, longest, was_cut, blank_ends=False)
    else:
        found = _joined(_parts(lines, longest, was_cut, blank_ends=True), min_words)
    return (text for text in found if split == "paragraph" or word_spans(text))


def _parts(
    lines: Iterable[str], longest: int | None, was_cut: Callable[[], None], *, blank_ends: bool
) -> Iterator[str]:
    """Lines joined, up to the next blank one or to the end, and no longer than ``longest``."""
    part: list[str] = []
    size = 0
    for line in lines:
        ends = blank_ends and not line.strip()
        too_long = longest is not None and bool(part) and size + len(line) > longest
        if ends or too_long:
            yield "\n".join(part)
            part, size = [], 0
            if too_long and not ends:
                was_cut()
        if not ends:
            part.append(line)
            size += len(line) + 1
    yield "\n".join(part)


def _joined(paragraphs: Iterable[str], min_words: int) -> Iterator[str]:
    """Short paragraphs with what follows, and what is left at the end with what precedes."""
    before: str | None = None
    part, n = "", 0
    for paragraph in paragraphs:
        if words := len(word_spans(paragraph)):
            part, n = f"{part}\n\n{paragraph.strip()}" if part else paragraph.strip(), n + words
        if n >= min_words:
            if before is not None:
                yield before
            before, part, n = part, "", 0
    if part:
        before = part if before is None else f"{before}\n\n{part}"
    if before is not None:
        yield before
