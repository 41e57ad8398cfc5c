"""What is shown of users' texts."""

from __future__ import annotations

import unicodedata

from tasks.text.visible import quoted, shortened, visible_text
from tests.faults.hostile import HOSTILE


def test_nothing_acts_on_a_terminal_or_turns_the_reading_direction():
    for text in HOSTILE.values():
        for found in (visible_text(text), shortened(text), quoted(text)):
            assert not [c for c in found if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")], text
            assert not set(found) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
            found.encode()


def test_what_is_harmless_stays():
    family, hindi = "\U0001f469\u200d\U0001f467", "\u0915\u094d\u200d\u0937"
    for text in ("a b", "caf\u00e9", "\u4efb\u52a1", "\u05e9\u05dc\u05d5\u05dd", family, hindi, "a\\nb", "$x$"):
        assert visible_text(text) == text


def test_what_acts_is_written_out():
    assert visible_text("\x1b[31m\x9b\x00\r\u202e\ud800") == "\\x1b[31m\\x9b\\x00\\r\\u202e\\ud800"
    assert visible_text("a\nb\tc\x07", keep="\n") == "a\nb\\tc\\x07"


def test_a_long_text_is_cut_in_its_middle():
    assert shortened("task " + "x" * 10_000 + " end", 21) == "task xxxxx\u2026xxxxxx end"
    assert shortened("x" * 60) == "x" * 60
    assert len(shortened(HOSTILE["long"])) <= 61
    assert len(quoted(HOSTILE["long"])) < 80
