"""A corpus that is read document by document, each time anew."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import get_args

from tasks._random import generator
from tasks.errors import InputError, check_at_least, check_choice
from tasks.text.corpus import Corpus
from tasks.text.files import check_texts
from tasks.text.json_lines import check_field, parse_object
from tasks.text.parquet import parquet_rows
from tasks.text.splitting import SplitBy, split_lines
from tasks.text.streams.mediawiki import pages, plain_text, wikitext_parser
from tasks.text.streams.reading import COMPRESSED, LONGEST, FileProgress, byte_chunks, file_kind, lines
from tasks.text.visible import quoted
from tasks.text.words import word_spans

_JSON_LINES = (".jsonl", ".ndjson", ".json")
_KINDS = (".txt", *_JSON_LINES, ".parquet", ".xml")
_ROWS = 64  # of a parquet file at once
_KEYS = 1024  # random numbers at once


class CorpusStream:
    r"""Texts read from files one document at a time, in each pass: for corpora larger than memory.

    The name tells a file's format: ``.jsonl``, ``.ndjson`` and ``.json`` (one object per line), ``.parquet``,
    ``.xml`` (a MediaWiki dump), anything else is text; all but parquet also as ``.gz`` or ``.bz2``. A file that breaks
    off, such as an incomplete download, gives the documents before the break, and ``notes`` says so.

    Memory: two documents and a chunk of a file; of parquet, 64 rows and a page.

    Attributes:
        files: that are read, in order, each once.
        readings: how far each was read when last gone through.

    Args:
        paths: files, and directories, of which every file with such a name in it and below is read, sorted by name.
        split: what a document of a text file is: a ``"paragraph"``, a ``"file"`` or a ``"line"``; see
            ``Corpus.from_files``. Each object, row and article is one document.
        min_words: of a paragraph; shorter ones are joined.
        least_words: documents with fewer words are left out; gensim's ``make_wiki`` uses 50 for articles.
        text_field: where an object or a row has its text.

    Raises:
        InputError: before anything is read: for no files, ones that are missing, empty, or begin as something else,
            and where a library is not installed. While it is read: for what is not UTF-8, not JSON, or has no text.

    Example:
        >>> import gzip, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with gzip.open(f"{folder}/a.jsonl.gz", "wt") as file:
        ...         _ = file.write('{"text": "Cats chase cats."}\n{"text": "Dogs."}\n')
        ...     stream = CorpusStream([folder])
        ...     list(stream), list(stream)[0], stream.readings[0].documents
        (['Cats chase cats.', 'Dogs.'], 'Cats chase cats.', 2)
    """

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        split: SplitBy = "paragraph",
        min_words: int = 100,
        least_words: int = 1,
        text_field: str = "text",
    ) -> None:
        check_choice(split=(split, get_args(SplitBy)))
        check_at_least(min_words=(min_words, 1), least_words=(least_words, 1))
        self.split, self.min_words, self.least_words, self.text_field = split, min_words, least_words, text_field
        self.files = list(_files([paths] if isinstance(paths, (str, Path)) else list(paths)))
        self.readings: list[FileProgress] = []
        for path in self.files:
            self._check_beginning(path)

    def __iter__(self) -> Iterator[str]:
        readings: list[FileProgress] = []
        self.readings = readings
        for path in self.files:
            reading = FileProgress(path)
            readings.append(reading)
            for text in self._documents(reading):
                if len(word_spans(text)) < self.least_words:
                    reading.short += 1
                    continue
                reading.documents += 1
                yield text

    def __repr__(self) -> str:
        return f"CorpusStream({len(self.files)} files, split={self.split!r})"

    @property
    def notes(self) -> list[str]:
        """What was left out or cut when it was last gone through, in sentences."""
        found = [reading.note for reading in self.readings if reading.note]
        if short := sum(reading.short for reading in self.readings):
            found.append(
                f"{short} document{'s have' * (short != 1)}{' has' * (short == 1)} fewer than {self.least_words} "
                f"word{'s' * (self.least_words != 1)} and {'were' if short != 1 else 'was'} left out."
            )
        if cut := sum(reading.cut for reading in self.readings):
            found.append(f"Texts of more than {LONGEST:,} characters were cut, {cut} times.")
        return found

    def read(self) -> Corpus:
        """Read all documents into memory. One pass.

        Raises:
            InputError: for a corpus without words.
        """
        documents = [(text, str(self.readings[-1].path)) for text in self]
        if not documents:
            named = f"{str(self.files[0])!r}" if len(self.files) == 1 else f"the corpus of {len(self.files)} files"
            raise InputError(f"{named} holds no words; give texts in a script with letters and word breaks")
        texts, sources = zip(*documents, strict=True)
        empty = [str(reading.path) for reading in self.readings if not reading.documents]
        return Corpus(texts, sources, empty, self.notes)

    def sample(self, n: int, seed: int = 0) -> Corpus:
        """``n`` documents drawn without replacement, in the corpus's order; all when there are fewer. One pass.

        Memory: ``n`` documents.

        Raises:
            InputError: for a corpus without documents.
        """
        check_at_least(n=(n, 1))
        kept: list[tuple[float, int, str, str]] = []
        keys = (float(key) for block in _counted() for key in generator(seed, "stream sample", block).random(_KEYS))
        for i, text in enumerate(self):
            key = -next(keys)  # the n smallest stay; the heap's first is the largest of them
            entry = (key, i, text, str(self.readings[-1].path))
            if len(kept) < n:
                heapq.heappush(kept, entry)
            elif key > kept[0][0]:
                heapq.heapreplace(kept, entry)
        kept.sort(key=lambda entry: entry[1])
        if not kept:
            raise InputError(f"the corpus of {len(self.files)} files holds no words; give files with text")
        return Corpus([text for *_, text, _ in kept], [source for *_, source in kept])

    def _documents(self, reading: FileProgress) -> Iterator[str]:
        path, kind = reading.path, file_kind(reading.path)
        if kind == ".xml":
            return map(plain_text, pages(reading))
        if kind == ".parquet":
            rows = parquet_rows(path, (self.text_field,), extra="corpora", at_once=_ROWS)
            return (self._text(record, where) for where, record in rows)
        if kind in _JSON_LINES:
            return self._objects(reading)

        def was_cut() -> None:
            reading.cut += 1

        return split_lines(lines(reading), self.split, self.min_words, LONGEST, was_cut)

    def _objects(self, reading: FileProgress) -> Iterator[str]:
        for number, line in enumerate(lines(reading, whole=True), start=1):
            if line.strip():
                where = f"{reading.path}, line {number}"
                yield self._text(parse_object(line, where, f'"{self.text_field}"'), where)

    def _text(self, record: object, where: str) -> str:
        field = self.text_field
        assert isinstance(record, dict)
        check_field(record, field, where, "add it, or say which field has the text: text_field (--text-field)")
        text = record[field]
        if not isinstance(text, str):
            raise InputError(f'{where}: "{field}" is {quoted(text)}; expected a string')
        check_texts([text], f"{where}: text")
        return text

    def _check_beginning(self, path: Path) -> None:
        """Refuse a file that is another thing than its name says, by its first documents."""
        kind = file_kind(path)
        if kind == ".parquet" and path.suffix.lower() in COMPRESSED:
            raise InputError(
                f"{str(path)!r} is compressed parquet; decompress it, because parquet is read from its end"
            )
        if kind == ".xml":
            wikitext_parser()
        reading = FileProgress(path)
        if kind != ".parquet" and next(byte_chunks(reading), None) is None:
            raise InputError(f"{str(path)!r} is empty; give a file with text, or leave it out")
        first: Iterator[object] = pages(reading) if kind == ".xml" else self._documents(reading)
        if next(islice(first, 1), None) is None and kind == ".xml" and not reading.ended:
            raise InputError(
                f"{str(path)!r} holds no article; give a MediaWiki export with pages of the main namespace"
            )


def _files(paths: list[str | Path]) -> dict[Path, None]:
    if not paths:
        raise InputError("no corpus files given; name at least one file or a directory of them")
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and file_kind(file) in _KINDS)
            if not inside:
                raise InputError(
                    f"the directory {str(path)!r} holds no corpus file ({', '.join(_KINDS)}, or these with .gz or "
                    ".bz2); name the files themselves"
                )
            found.update(dict.fromkeys(inside))
        elif not path.exists():
            raise InputError(f"no corpus file {str(path)!r}; give the path of a file or of a directory of them")
        else:
            found[path] = None
    return found


def _counted() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
