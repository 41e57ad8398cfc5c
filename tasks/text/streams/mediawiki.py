"""MediaWiki's XML export: the articles of a dump, and their text without markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from tasks.errors import InputError
from tasks.text.streams.reading import FileProgress, byte_chunks

_FILES = ("file", "image", "media", "category")  # MediaWiki's own names, which hold in every language
_FILE_KEYS = ("-2", "6", "14")  # media, file and category among a wiki's namespaces
_HIDDEN = ("ref", "table", "gallery", "math", "chem", "score", "timeline", "syntaxhighlight", "source", "imagemap")
_EXPECTED = "expected a MediaWiki export, such as enwiki-latest-pages-articles.xml.bz2"


@dataclass(frozen=True)
class Page:
    """An article.

    Attributes:
        title: of the page.
        wikitext: of its last revision in the dump.
        files: names, in lower case, of the namespaces whose links show no text: files, categories.
    """

    title: str
    wikitext: str
    files: frozenset[str]


def pages(reading: FileProgress) -> Iterator[Page]:
    """The articles of a dump: pages of the main namespace that are no redirects. Memory: one revision.

    Where the dump breaks off, those before; ``reading.ended`` says why.

    Raises:
        InputError: for what is no XML, or no MediaWiki export.
    """
    parser: Any = XMLPullParser(events=("start", "end"))
    reader = _Reader(reading.path)
    try:
        for chunk in byte_chunks(reading):
            parser.feed(chunk)
            yield from reader.pages(parser.read_events())
        if not reading.ended:
            parser.close()
            yield from reader.pages(parser.read_events())
    except ParseError as error:
        if reader.root is None:
            raise InputError(f"{str(reading.path)!r} is not XML ({error}); {_EXPECTED}") from None
        reading.ended = f"its XML is damaged: {error}"


class _Reader:
    """Pages out of the parser's events; what was read is forgotten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root: Element | None = None
        self.files = frozenset(_FILES)
        self._field: dict[str, str] = {}
        self._inside: list[str] = []

    def pages(self, events: Iterable[tuple[str, Any]]) -> Iterator[Page]:
        for event, element in events:
            name = element.tag.rpartition("}")[2]
            if event == "start":
                if self.root is None:
                    self._begin(element, name)
                self._inside.append(name)
                continue
            self._inside.pop()
            if name == "namespaces":
                named = (n.text for n in element if n.get("key") in _FILE_KEYS)
                self.files = frozenset(_FILES) | {text.lower() for text in named if text}
            elif self._inside[-1:] == ["page"]:
                self._field[name] = element.text or ""
            elif name == "text" and self._inside[-1:] == ["revision"]:
                self._field["text"] = element.text or ""
            elif name == "page":
                if self._field.get("ns", "0").strip() == "0" and "redirect" not in self._field:
                    yield Page(self._field.get("title", ""), self._field.get("text", ""), self.files)
                self._field = {}
            if name in ("revision", "page", "siteinfo"):
                element.clear()
            if self._inside == ["mediawiki"] and self.root is not None:
                self.root.clear()

    def _begin(self, element: Element, name: str) -> None:
        if name != "mediawiki":
            raise InputError(f"{str(self.path)!r} is XML of another kind (its root is <{name[:60]}>); {_EXPECTED}")
        self.root = element


def plain_text(page: Page) -> str:
    """An article's text: without templates, tables, references, files, categories and the markup of what is left.

    Raises:
        InputError: where mwparserfromhell is not installed.
    """
    parser = wikitext_parser()
    code = parser.parse(page.wikitext, skip_style_tags=True)
    for tag in code.filter_tags(recursive=True, matches=lambda tag: str(tag.tag).strip().lower() in _HIDDEN):
        _remove(code, tag)
    for link in code.filter_wikilinks(recursive=True):
        if str(link.title).partition(":")[0].strip().lower() in page.files and ":" in str(link.title):
            _remove(code, link)
    text = code.strip_code(normalize=True, collapse=True)
    return re.sub(r"'{2,}|__[A-Z]+__", "", str(text)).strip()


def _remove(code: Any, node: Any) -> None:
    try:
        code.remove(node)
    except ValueError:  # it was inside one that is removed already
        return


def wikitext_parser() -> Any:
    """The library that knows MediaWiki's markup."""
    try:
        import mwparserfromhell
    except ImportError:
        raise InputError(
            "reading a MediaWiki dump needs mwparserfromhell; install it with: pip install 'mechclust[corpora]'"
        ) from None
    return mwparserfromhell
