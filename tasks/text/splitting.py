"""Lines as documents: paragraphs of enough words, lines, or a whole file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from tasks.text.words import word_spans

SplitBy = Literal["paragraph", "file", "line"]


def split_lines(lines: Iterable[str], split: SplitBy, min_words: int) -> Iterator[str]:
    r"""Return the documents of a text that have words. Memory: two documents.

    Args:
        lines: lines without their ends.
        split: the unit of a document, see ``CorpusStream``.
        min_words: words of a paragraph.

    Example:
        >>> list(split_lines("a b\n\nc d e\n\nf".split("\n"), "paragraph", min_words=3))
        ['a b\n\nc d e\n\nf']
    """
    if split == "line":
        return filter(word_spans, lines)
    if split == "file":
        return filter(word_spans, ["\n".join(lines)])
    return _join_short(_paragraphs(lines), min_words)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines between blank ones, joined."""
    part: list[str] = []
    for line in lines:
        if line.strip():
            part.append(line)
        else:
            yield "\n".join(part)
            part = []
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
