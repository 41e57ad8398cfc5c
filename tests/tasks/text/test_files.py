"""Files that are no UTF-8 text, which are named by their first bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import zipfile

import pytest

from tasks import InputError
from tasks.text.files import read_text
from tasks.text.streams.corpus_stream import CorpusStream

TEXT = '{"text": "a b"}\n'


def zipped(text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.jsonl", text)
    return file.getvalue()


FORMATS = {
    "utf-16": (TEXT.encode("utf-16"), "is UTF-16; convert it, for example with iconv -f utf-16 -t utf-8"),
    "utf-32": (TEXT.encode("utf-32"), "is UTF-32; convert it, for example with iconv -f utf-32 -t utf-8"),
    "utf-16 without mark": (TEXT.encode("utf-16-le"), "begins with zero bytes, as UTF-16 or a binary file does"),
    "gzip": (gzip.compress(TEXT.encode()), "is compressed (gzip); unpack it"),
    "bzip2": (bz2.compress(TEXT.encode()), "is compressed (bzip2); unpack it"),
    "xz": (lzma.compress(TEXT.encode()), "is compressed (xz); unpack it"),
    "zip": (zipped(TEXT), "is a zip archive; unpack it"),
    "parquet": (b"PAR1\x15\x04", "is parquet; name it .parquet"),
    "pdf": (b"%PDF-1.4\n%\xe2\xe3", "is a PDF; save its text as UTF-8"),
    "image": (b"\x89PNG\r\n\x1a\n\0\0", "is an image; give text"),
    "pickle": (pickle.dumps(TEXT, protocol=4), "is a Python pickle; save its texts as UTF-8"),
    "safetensors": (b"\x10\0\0\0\0\0\0\0{}", "begins with zero bytes, as UTF-16 or a binary file does"),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_other_formats_are_named_with_the_way_out(tmp_path, kind):
    data, said = FORMATS[kind]
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    for read in (read_text, CorpusStream):
        with pytest.raises(InputError) as refused:
            list(read(path))
        assert str(refused.value).startswith(f"{str(path)!r} {said}")


@pytest.mark.parametrize("text", ["PAR1 is a receptor.", "BZhao wrote this.", "BZh91 is a code."])
def test_a_text_that_begins_like_another_format_is_text(tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_text(text)
    assert read_text(path) == text


def test_a_byte_order_mark_of_utf_8_is_left_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT.encode("utf-8-sig"))
    assert read_text(tmp_path / "a.txt") == TEXT
