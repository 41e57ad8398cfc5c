"""MediaWiki's XML export: the articles of a dump, and their text without markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from tasks.errors import InputError
from tasks.text.streams.reading import read_stream_bytes

_FILE_NAMESPACES = frozenset({"file", "image", "media", "category"})  # MediaWiki's names, in every language
_FILE_NAMESPACE_KEYS = ("-2", "6", "14")  # media, file and category among a wiki's namespaces
_HIDDEN_TAGS = ("ref", "table", "gallery", "math", "chem", "score", "timeline", "syntaxhighlight", "source", "imagemap")
_EXPECTED = "expected a MediaWiki export, such as enwiki-latest-pages-articles.xml.bz2"


@dataclass(frozen=True)
class MediaWikiPage:
    """An article.

    Attributes:
        title: title of the page.
        wikitext: text of its last revision in the dump.
        files: names, in lower case, of the namespaces whose links show no text: files, categories.
    """

    title: str
    wikitext: str
    files: frozenset[str]


def wiki_articles(path: Path) -> Iterator[MediaWikiPage]:
    """Yield the articles of a dump: pages of the main namespace that are no redirects. Memory: one revision.

    Raises:
        InputError: for a file that is no XML, is damaged or breaks off, or is no MediaWiki export.
    """
    parser: Any = XMLPullParser(events=("start", "end"))
    reader = _Reader(path)
    try:
        for chunk in read_stream_bytes(path):
            parser.feed(chunk)
            yield from reader.pages(parser.read_events())
        parser.close()
        yield from reader.pages(parser.read_events())
    except ParseError as error:
        if reader.root is None:
            raise InputError(f"{str(path)!r} is not XML ({error}); {_EXPECTED}") from None
        raise InputError(f"the XML of {str(path)!r} is damaged or breaks off ({error}); fetch it again") from None


class _Reader:
    """Reader that turns the parser's events into pages, and frees the elements that were read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root: Element | None = None
        self.files = _FILE_NAMESPACES
        self._fields: dict[str, str] = {}  # fields of the current page
        self._parents: list[str] = []

    def pages(self, events: Iterable[tuple[str, Any]]) -> Iterator[MediaWikiPage]:
        """Yield the articles that end in these events."""
        for event, element in events:
            name = element.tag.rpartition("}")[2]
            if event == "start":
                self._start(element, name)
                continue
            self._parents.pop()
            self._read(element, name)
            if name == "page":
                if self._is_article():
                    yield MediaWikiPage(self._fields.get("title", ""), self._fields.get("text", ""), self.files)
                self._fields = {}
            self._free(element, name)

    def _start(self, element: Element, name: str) -> None:
        if self.root is None:
            if name != "mediawiki":
                raise InputError(f"{str(self.path)!r} is XML of another kind (its root is <{name[:60]}>); {_EXPECTED}")
            self.root = element
        self._parents.append(name)

    def _read(self, element: Element, name: str) -> None:
        """Keep an element's information on its page, or on the wiki's namespaces."""
        parent = self._parents[-1] if self._parents else ""
        if name == "namespaces":
            local_names = [space.text for space in element if space.get("key") in _FILE_NAMESPACE_KEYS]
            self.files = _FILE_NAMESPACES | {text.lower() for text in local_names if text}
        elif parent == "page" or (parent == "revision" and name == "text"):
            self._fields[name] = element.text or ""

    def _is_article(self) -> bool:
        return self._fields.get("ns", "0").strip() == "0" and "redirect" not in self._fields

    def _free(self, element: Element, name: str) -> None:
        if name in ("revision", "page", "siteinfo"):
            element.clear()
        if self._parents == ["mediawiki"] and self.root is not None:
            self.root.clear()


def plain_text(page: MediaWikiPage) -> str:
    """Return an article's text without markup, templates, tables, references, files and categories.

    Raises:
        InputError: if mwparserfromhell is not installed.
    """
    parser = wikitext_parser()
    code = parser.parse(page.wikitext, skip_style_tags=True)
    for tag in code.filter_tags(recursive=True, matches=_is_hidden):
        _remove(code, tag)
    for link in code.filter_wikilinks(recursive=True):
        namespace, colon, _ = str(link.title).partition(":")
        if colon and namespace.strip().lower() in page.files:
            _remove(code, link)
    text = code.strip_code(normalize=True, collapse=True)
    return re.sub(r"'{2,}|__[A-Z]+__", "", str(text)).strip()


def _is_hidden(tag: Any) -> bool:
    return str(tag.tag).strip().lower() in _HIDDEN_TAGS


def _remove(code: Any, node: Any) -> None:
    try:
        code.remove(node)
    except ValueError:  # inside an element that is removed already
        return


def wikitext_parser() -> Any:
    """Return the library that knows MediaWiki's markup.

    Raises:
        InputError: if it is not installed.
    """
    try:
        import mwparserfromhell
    except ImportError:
        raise InputError(
            "reading a MediaWiki dump needs mwparserfromhell; install it with: pip install 'mechclust[corpora]'"
        ) from None
    return mwparserfromhell
