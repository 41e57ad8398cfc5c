"""A corpus that is read document by document, again in each pass."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, get_args

from tasks._random import generator
from tasks.errors import InputError
from tasks.settings import check_choice, check_count
from tasks.text.corpus import Corpus
from tasks.text.files import corpus_files
from tasks.text.json_lines import check_json_field, parse_lines
from tasks.text.parquet import parquet_rows
from tasks.text.splitting import SplitBy, split_lines
from tasks.text.streams.mediawiki import plain_text, wiki_articles, wikitext_parser
from tasks.text.streams.reading import COMPRESSED, read_stream_bytes, read_stream_lines
from tasks.text.utf8 import check_utf8_texts
from tasks.text.visible import quoted
from tasks.text.words import word_spans

_JSON_LINES = (".jsonl", ".ndjson", ".json")
_KINDS = (".txt", *_JSON_LINES, ".parquet", ".xml")
_ROWS_IN_MEMORY = 64  # rows of a parquet file read at once
_KEYS_PER_BLOCK = 1024  # random numbers drawn at once


@dataclass
class StreamReading:
    """Progress in reading one file.

    Attributes:
        path: path of the file.
        documents: number of documents that were read.
        short: number of documents that were left out because they have too few words.
    """

    path: Path
    documents: int = 0
    short: int = 0


class CorpusStream:
    r"""Texts read from files one document at a time, in each pass: for corpora larger than memory.

    The name tells a file's format: ``.jsonl``, ``.ndjson`` and ``.json`` (one object per line), ``.parquet``, ``.xml``
    (a MediaWiki dump). Any other file is text. All but parquet may also be ``.gz`` or ``.bz2``.

    Memory: two documents and a line, or 64 rows and a page of parquet.

    Attributes:
        files: in the order in which they are read, each once.
        readings: progress in each file in the last pass.

    Args:
        paths: files and directories. All files with such names in a directory and below are read, sorted by name.
        split: the unit of a document of a text file: a ``"paragraph"`` (text between blank lines), a whole ``"file"``,
            or a ``"line"``. A paragraph is joined with the next until it has ``min_words`` words, and at the end of a
            file with the previous. Each object, row and article is one document.
        min_words: words of a paragraph.
        least_words: documents with fewer words are left out. gensim's ``make_wiki`` uses 50 for articles.
        text_field: field of an object or a row with its text.

    Raises:
        InputError: before anything is read: for no files, ones that are missing, empty, or begin as something else, and
            if a library is not installed. While it is read: for content that is not UTF-8, not JSON, or has no text,
            and for a file that is damaged or breaks off, such as an incomplete download.

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
        check_count(min_words=(min_words, 1), least_words=(least_words, 1))
        self.split = split
        self.min_words = min_words
        self.least_words = least_words
        self.text_field = text_field
        self.files = corpus_files(
            [paths] if isinstance(paths, (str, Path)) else paths,
            _is_wanted,
            f"corpus file ({', '.join(_KINDS)}, or these with .gz or .bz2)",
        )
        self.readings: list[StreamReading] = []
        for path in self.files:
            self._check_beginning(path)

    def __iter__(self) -> Iterator[str]:
        readings: list[StreamReading] = []
        self.readings = readings
        for path in self.files:
            reading = StreamReading(path)
            readings.append(reading)
            for text in self._documents(path):
                if len(word_spans(text)) < self.least_words:
                    reading.short += 1
                    continue
                reading.documents += 1
                yield text

    def __repr__(self) -> str:
        return f"CorpusStream({len(self.files)} files, split={self.split!r})"

    @property
    def notes(self) -> list[str]:
        """Sentences on documents left out in the last pass."""
        n_short = sum(reading.short for reading in self.readings)
        words = "word" if self.least_words == 1 else "words"
        if n_short == 1:
            return [f"1 document has fewer than {self.least_words} {words} and was left out."]
        if n_short > 1:
            return [f"{n_short} documents have fewer than {self.least_words} {words} and were left out."]
        return []

    def read(self) -> Corpus:
        """Read all documents into memory. One pass.

        Raises:
            InputError: for a corpus without words.
        """
        texts: list[str] = []
        sources: list[str] = []
        for text in self:
            texts.append(text)
            sources.append(str(self.readings[-1].path))
        if not texts:
            corpus = repr(str(self.files[0])) if len(self.files) == 1 else f"the corpus of {len(self.files)} files"
            raise InputError(f"{corpus} holds no words; give texts in a script with letters and word breaks")
        empty = [str(reading.path) for reading in self.readings if not reading.documents]
        return Corpus(texts, sources, empty, self.notes)

    def sample(self, n: int, seed: int = 0) -> Corpus:
        """Draw ``n`` documents without replacement, in the corpus's order, or all if there are fewer. One pass.

        Memory: ``n`` documents.

        Raises:
            InputError: for a corpus without documents.
        """
        check_count(n=(n, 1))
        keyed = zip(_random_keys(seed), enumerate(self), strict=False)
        entries = ((key, number, text, str(self.readings[-1].path)) for key, (number, text) in keyed)
        chosen = heapq.nsmallest(n, entries)
        if not chosen:
            raise InputError(f"the corpus of {len(self.files)} files holds no words; give files with text")
        in_order = sorted((number, text, source) for _, number, text, source in chosen)
        return Corpus([text for _, text, _ in in_order], [source for _, _, source in in_order])

    def _documents(self, path: Path) -> Iterator[str]:
        kind = _unpacked_suffix(path)
        if kind == ".xml":
            return map(plain_text, wiki_articles(path))
        if kind == ".parquet":
            records = parquet_rows(path, (self.text_field,), extra="corpora", at_once=_ROWS_IN_MEMORY)
        elif kind in _JSON_LINES:
            records = parse_lines(read_stream_lines(path), path, f'"{self.text_field}"')
        else:
            return split_lines(read_stream_lines(path), self.split, self.min_words)
        return (self._text(record, where) for where, record in records)

    def _text(self, record: Mapping[str, Any], where: str) -> str:
        field = self.text_field
        check_json_field(record, field, where, "add it, or say which field has the text: text_field (--text-field)")
        text = record[field]
        if not isinstance(text, str):
            raise InputError(f'{where}: "{field}" is {quoted(text)}; expected a string')
        check_utf8_texts([text], f"{where}: text")
        return text

    def _check_beginning(self, path: Path) -> None:
        """Refuse a file whose beginning does not fit its name."""
        kind = _unpacked_suffix(path)
        if kind == ".parquet" and path.suffix.lower() in COMPRESSED:
            raise InputError(
                f"{str(path)!r} is compressed parquet; decompress it, because parquet is read from its end"
            )
        if kind == ".xml":
            wikitext_parser()
        if kind != ".parquet" and next(read_stream_bytes(path), None) is None:
            raise InputError(f"{str(path)!r} is empty; give a file with text, or leave it out")
        if kind != ".xml":
            next(self._documents(path), None)
        elif next(wiki_articles(path), None) is None:
            raise InputError(
                f"{str(path)!r} holds no article; give a MediaWiki export with pages of the main namespace"
            )


def _is_wanted(path: Path) -> bool:
    return _unpacked_suffix(path) in _KINDS


def _random_keys(seed: int) -> Iterator[float]:
    """Yield a random number for each document."""
    for block in count():
        yield from generator(seed, "stream sample", block).random(_KEYS_PER_BLOCK).tolist()


def _unpacked_suffix(path: Path) -> str:
    """Return a file's suffix without the compression's, such as ``".xml"`` for ``a.xml.bz2``."""
    unpacked = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return unpacked.suffix.lower()
