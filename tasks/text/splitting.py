"""Lines as documents: paragraphs of enough words, lines, or a whole file."""

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
    was_cut: Callable[[], None] | None = None,
) -> Iterator[str]:
    r"""Return the documents of a text that have words. Memory: two documents.

    Args:
        lines: lines without their ends.
        split: the unit of a document, see ``CorpusStream``.
        min_words: words of a paragraph.
        longest: characters after which a file or paragraph is cut at the end of a line. ``None``: never.
        was_cut: called for each cut.

    Example:
        >>> list(split_lines("a b\n\nc d e\n\nf".split("\n"), "paragraph", min_words=3))
        ['a b\n\nc d e\n\nf']
    """
    if split == "line":
        return filter(word_spans, lines)
    if split == "file":
        return filter(word_spans, _join_lines(lines, longest, was_cut, blank_ends=False))
    return _join_short(_join_lines(lines, longest, was_cut, blank_ends=True), min_words)


def _join_lines(
    lines: Iterable[str], longest: int | None, was_cut: Callable[[], None] | None, *, blank_ends: bool
) -> Iterator[str]:
    """Yield lines joined, up to the next blank one or to the end, and no longer than ``longest``."""
    part: list[str] = []
    size = 0
    for line in lines:
        ends = blank_ends and not line.strip()
        too_long = longest is not None and bool(part) and size + len(line) > longest
        if ends or too_long:
            yield "\n".join(part)
            part = []
            size = 0
        if ends:
            continue
        if too_long and was_cut is not None:
            was_cut()
        part.append(line)
        size += len(line) + 1
    yield "\n".join(part)


def _join_short(paragraphs: Iterable[str], min_words: int) -> Iterator[str]:
    """Yield paragraphs of enough words: short ones joined with the next, and the last ones with the previous."""
    previous: list[str] = []
    current: list[str] = []
    n_words = 0
    for paragraph in paragraphs:
        n_new = len(word_spans(paragraph))
        if n_new == 0:
            continue
        current.append(paragraph.strip())
        n_words += n_new
        if n_words >= min_words:
            if previous:
                yield "\n\n".join(previous)
            previous = current
            current = []
            n_words = 0
    rest = previous + current
    if rest:
        yield "\n\n".join(rest)
