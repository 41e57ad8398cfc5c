"""Corpora as streams: every form gives the same documents, memory is bounded, and what breaks off is refused."""

from __future__ import annotations

import bz2
import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tasks import CorpusStream, InputError
from tasks.text.files import read_text
from tasks.text.splitting import split_lines
from tasks.text.streams import corpus_stream
from tasks.text.streams.mediawiki import MediaWikiPage, plain_text

TEXTS = [f"Café number{i} has a cat, a dog\nand bird{i}." for i in range(40)]
DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11">
<siteinfo><namespaces><namespace key="0"/><namespace key="6">Datei</namespace></namespaces></siteinfo>
{pages}</mediawiki>
"""


def page(title: str, *texts: str, ns: int = 0, more: str = "") -> str:
    revisions = "".join(f"<revision><id>7</id><text>{text}</text></revision>" for text in texts)
    return f"<page><title>{title}</title><ns>{ns}</ns>{more}{revisions}</page>\n"


def dump(pages: list[str]) -> bytes:
    return DUMP.format(pages="".join(pages)).encode()


def packed(path: Path, data: bytes) -> Path:
    packs = {".gz": gzip.compress, ".bz2": lambda text: bz2.compress(text, 1)}  # in blocks of 100 kB
    path.write_bytes(packs.get(path.suffix, bytes)(data))
    return path


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(InputError) as error:
        call(*args, **kwargs)
    return str(error.value)


# ---- what is read ----


def test_read_into_memory(tmp_path):
    paths = [packed(tmp_path / "a.txt", b"Cats.\n\nDogs."), packed(tmp_path / "b.txt", b"1")]
    corpus = CorpusStream(paths, min_words=1).read()
    assert list(corpus.documents) == ["Cats.", "Dogs."]
    assert list(corpus.sources) == [str(paths[0])] * 2
    assert corpus.empty_files == [str(paths[1])]
    message = f"'{paths[1]}' holds no words; give texts in a script with letters and word breaks"
    assert refused(CorpusStream(paths[1]).read) == message


@pytest.mark.parametrize("end", ["", ".gz", ".bz2"])
@pytest.mark.parametrize("kind", [".jsonl", ".txt", ".xml"])
def test_every_form_gives_the_same_documents_each_time(tmp_path, kind, end):
    data = {
        ".jsonl": "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS).encode(),
        ".txt": "\ufeff".encode() + "\r\n \t\r\n".join(text.replace("\n", "\r\n") for text in TEXTS).encode(),
        ".xml": dump([page("a", text) for text in TEXTS]),
    }[kind]
    stream = CorpusStream(packed(tmp_path / f"a{kind}{end}", data), min_words=1)
    assert list(stream) == TEXTS
    assert list(stream) == TEXTS
    assert [r.documents for r in stream.readings] == [40]
    assert stream.notes == []


def test_parquet(tmp_path, monkeypatch):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"n": range(40), "article": TEXTS}), tmp_path / "a.parquet")
    monkeypatch.setattr(corpus_stream, "_ROWS_IN_MEMORY", 7)
    assert list(CorpusStream(tmp_path, text_field="article")) == TEXTS
    assert refused(CorpusStream, tmp_path) == (
        f'{tmp_path}/a.parquet, row 1 has no "text" (it has n, article); add it, or say which field has the text: '
        "text_field (--text-field)"
    )


def test_short_paragraphs_are_joined_and_the_rest_goes_to_the_last(tmp_path):
    path = packed(tmp_path / "a.txt", b"a b\n\nc\n \t\n  d e f\n\n\n---\n\ng h i j\r\n\r\nk\n")
    assert list(CorpusStream(path, min_words=3)) == ["a b\n\nc", "d e f", "g h i j\n\nk"]


def test_a_file_with_too_few_words_is_one_document(tmp_path):
    assert list(CorpusStream(packed(tmp_path / "a.txt", b"a b\n\nc"))) == ["a b\n\nc"]


def test_paragraphs_of_different_files_are_not_joined(tmp_path):
    paths = [packed(tmp_path / "1.txt", b"a"), packed(tmp_path / "2.txt", b"b")]
    assert list(CorpusStream(paths)) == ["a", "b"]


def test_a_file_that_is_named_in_two_ways_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one two three\n\nfour five six\n")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    monkeypatch.chdir(tmp_path)
    paths = ["a.txt", tmp_path / "a.txt", tmp_path]
    assert len(list(CorpusStream(paths, "paragraph", 1))) == 2


@pytest.mark.parametrize(("split", "documents"), [("line", ["a b", "c"]), ("file", ["a b\n\n---\nc\n"])])
def test_other_splits(tmp_path, split, documents):
    path = packed(tmp_path / "a.txt", "\ufeffa b\r\n\r\n---\rc\n".encode())
    assert list(CorpusStream(path, split)) == documents


@pytest.mark.parametrize(
    "text",
    [
        "\n\nOne é two\n \nthree\r\n\r\n\r\n4 5\n\nsix seven\neight\n\t\n\nnine\n\nten\n",
        "a b\r\r\nc\rd\r\r e",
        "a\r",
        "a\n\r\n",
    ],
)
@pytest.mark.parametrize("split", ["paragraph", "line", "file"])
def test_text_is_split_as_in_memory(tmp_path, split, text):
    path = packed(tmp_path / "a.txt", text.encode())
    lines = read_text(path).split("\n")
    for least in (1, 2, 3, 100):
        assert list(CorpusStream(path, split, least)) == list(split_lines(lines, split, least))


def test_directories_are_read_by_name_and_short_documents_left_out(tmp_path):
    for name, text in (("b.txt", "b c"), ("a.jsonl", '{"text": "a"}\n\n{"text": ""}\n'), ("c.md", "c"), ("z.txt", "z")):
        (tmp_path / name).write_text(text)
    stream = CorpusStream([tmp_path, tmp_path / "b.txt"])
    assert list(stream) == ["a", "b c", "z"]
    assert [path.name for path in stream.files] == ["a.jsonl", "b.txt", "z.txt"]
    assert stream.notes == ["1 document has fewer than 1 word and was left out."]
    longer = CorpusStream(tmp_path, least_words=2)
    assert list(longer) == ["b c"]
    assert longer.notes == ["3 documents have fewer than 2 words and were left out."]


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(n: int) -> int:
        path = tmp_path / f"{n}.xml.bz2"
        packed(path, dump([page(str(i), "word " * 400) for i in range(n)]))
        stream = CorpusStream(path)
        tracemalloc.start()
        try:
            assert sum(1 for _ in stream) == n
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(50), peak(300)  # 100 kB and 600 kB of text
    assert many < few + 200_000


def test_a_sample_is_one_pass_in_order_and_addressed(tmp_path):
    path = packed(tmp_path / "a.jsonl", "".join(json.dumps({"text": f"w{i}"}) + "\n" for i in range(3000)).encode())
    stream = CorpusStream(path)
    first = [int(text[1:]) for text in stream.sample(300, seed=1).documents]
    assert first == sorted(set(first))
    assert len(first) == 300
    assert first == [int(text[1:]) for text in stream.sample(300, seed=1).documents]
    assert first != [int(text[1:]) for text in stream.sample(300, seed=2).documents]
    assert 1300 < sum(first) / 300 < 1700  # 1499.5, with a standard error of 47
    assert len(stream.sample(9999)) == 3000


# ---- MediaWiki ----


def test_articles_are_pages_of_the_main_namespace(tmp_path):
    pages = [
        page("A", "old words", "new words"),
        page("Talk:A", "chat", ns=1),
        page("B", "go", more='<redirect title="A"/>'),
        page("C", "last"),
    ]
    assert list(CorpusStream(packed(tmp_path / "a.xml", dump(pages)))) == ["new words", "last"]


def test_an_article_is_the_text_among_the_tags_of_its_revision(tmp_path):
    """As MediaWiki exports it: tags before the text and after it, and some within others."""
    revision = (
        "<revision><id>7</id><contributor><username>text</username><id>1</id></contributor><model>wikitext</model>"
        '<text bytes="9">the words</text><sha1>phoiac9h4m842xq45sp7s6u21eteeq1</sha1><comment>a reason</comment>'
        "</revision>"
    )
    assert list(CorpusStream(packed(tmp_path / "a.xml", dump([page("A", more=revision)])))) == ["the words"]


def test_markup_is_left_out():
    wikitext = (
        "'''Cats''' are [[Felidae|felines]].<ref name=x>{{cite|a=b}} Source</ref> {{Infobox|name=Tom}}\n"
        "[[Datei:Cat.jpg|thumb|A [[grey]] one]] [[File:x.png]] [[Category:Pets]]<!-- no -->\n"
        "{| class=x\n| cell\n|}\n== Life ==\n* They [https://example.org purr] &amp; ''sleep''. "
        "__NOTOC__ <math>x^2</math>"
    )
    found = plain_text(MediaWikiPage("Cat", wikitext, frozenset({"datei", "file", "category"})))
    assert found.split() == ["Cats", "are", "felines.", "Life", "They", "purr", "&", "sleep."]


def test_what_is_no_mediawiki_dump_is_refused_before_reading(tmp_path):
    feed = packed(tmp_path / "a.xml", b"<rss><channel/></rss>")
    expected = "expected a MediaWiki export, such as enwiki-latest-pages-articles.xml.bz2"
    assert refused(CorpusStream, feed) == f"'{feed}' is XML of another kind (its root is <rss>); {expected}"
    text = packed(tmp_path / "b.xml.gz", b"Just text")
    assert refused(CorpusStream, text) == f"'{text}' is not XML (syntax error: line 1, column 0); {expected}"
    none = packed(tmp_path / "c.xml", dump([page("T", "x", ns=1)]))
    assert refused(CorpusStream, none) == (
        f"'{none}' holds no article; give a MediaWiki export with pages of the main namespace"
    )


# ---- what breaks off ----


@pytest.mark.parametrize("kind", [".jsonl", ".txt", ".xml"])
@pytest.mark.parametrize("end", [".gz", ".bz2"])
def test_a_compressed_file_that_breaks_off_is_refused(tmp_path, kind, end):
    draw = np.random.default_rng(0)
    texts = [" ".join(map(str, draw.integers(10**9, size=30))) for _ in range(600)]  # several blocks of bzip2
    data = {
        ".jsonl": "".join(json.dumps({"text": f"a {text}"}) + "\n" for text in texts).encode(),
        ".txt": "\n".join(f"a {text}" for text in texts).encode(),
        ".xml": dump([page(str(i), f"a {text}") for i, text in enumerate(texts)]),
    }[kind]
    path = packed(tmp_path / f"a{kind}{end}", data)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * 0.8)])
    name = {".gz": "gzip", ".bz2": "bzip2"}[end]
    message = f"'{path}' is not {name}, as its name says, or is damaged or incomplete (Compressed file ended before"
    assert refused(list, CorpusStream(path, "line")).startswith(message)
    damaged = bytearray(whole)
    damaged[len(whole) * 9 // 10] ^= 0xFF
    path.write_bytes(damaged)
    assert str(path) in refused(list, CorpusStream(path, "line"))


def test_a_dump_that_breaks_off_unpacked(tmp_path):
    data = dump([page(str(i), f"word{i} " * 10**4) for i in range(9)])
    path = packed(tmp_path / "a.xml", data[: data.index(b"word6")])
    message = f"the XML of '{path}' is damaged or breaks off (no element found: line "
    assert refused(list, CorpusStream(path)).startswith(message)


# ---- refusals ----


def test_what_is_refused_before_reading(tmp_path):
    assert refused(CorpusStream, []) == "no corpus files given; name at least one file or a directory of them"
    assert refused(CorpusStream, tmp_path / "x") == (
        f"no corpus file '{tmp_path / 'x'}'; give the path of a file or of a directory of them"
    )
    assert refused(CorpusStream, tmp_path) == (
        f"the directory '{tmp_path}' holds no corpus file (.txt, .jsonl, .ndjson, .json, .parquet, .xml, or these with "
        ".gz or .bz2); name the files themselves"
    )
    (tmp_path / "a.txt").touch()
    assert refused(CorpusStream, tmp_path) == (f"'{tmp_path}/a.txt' is empty; give a file with text, or leave it out")
    (tmp_path / "a.txt.gz").write_bytes(b"plain")
    assert refused(CorpusStream, tmp_path / "a.txt.gz") == (
        f"'{tmp_path}/a.txt.gz' is not gzip, as its name says, or is damaged or incomplete (Not a gzipped "
        "file (b'pl')); download it again, or rename it"
    )
    (tmp_path / "b.parquet.gz").write_bytes(b"x")
    assert refused(CorpusStream, tmp_path / "b.parquet.gz") == (
        f"'{tmp_path}/b.parquet.gz' is compressed parquet; decompress it, because parquet is read from its end"
    )
    (tmp_path / "c.parquet").write_bytes(b"no")
    assert refused(CorpusStream, tmp_path / "c.parquet").startswith(
        f"'{tmp_path}/c.parquet' cannot be read as parquet ("
    )
    assert refused(CorpusStream, tmp_path / "a.txt.gz", split="page").startswith("split is 'page'; expected")
    assert refused(CorpusStream, tmp_path, least_words=0) == "least_words is 0; expected at least 1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"body": "x"}', ', line 2 has no "text" (it has body); add it, or say which field has the text: text_field'),
        ('{"text": 7}', ', line 2: "text" is 7; expected a string'),
        ("{", ", line 2 is not JSON (Expecting property name enclosed in double quotes at column 2): '{'"),
        ('{"text": "\\ud800"}', ", line 2: text 1 has half a character ('\\ud800'), which no tokenizer reads; fix it"),
    ],
)
def test_lines_that_are_refused(tmp_path, line, message):
    path = packed(tmp_path / "a.jsonl", f'{{"text": "a"}}\n{line}\n'.encode())
    assert refused(list, CorpusStream(path)).startswith(f"{path}{message}")


def test_what_is_not_utf_8_is_refused_with_its_line(tmp_path):
    path = packed(tmp_path / "a.txt", b"one\ntwo\nthr\xe9e\n")
    assert refused(list, CorpusStream(path, "line")) == (
        f"'{path}' is not UTF-8 (line 3: 0xe9); convert it, for example with iconv -f latin1 -t utf-8"
    )
