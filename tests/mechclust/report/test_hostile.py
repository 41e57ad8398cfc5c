"""Hostile texts in figures, tables, spreadsheets and terminals."""

from __future__ import annotations

import csv as reader
import io
import math
import unicodedata
import warnings

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from mechclust.report.analysis import Analysis
from mechclust.report.figure_text import figure_text
from mechclust.report.html import table_html
from mechclust.report.page import render_report_page, write_report_page
from mechclust.report.panel import Panel
from mechclust.report.pictures import png_bytes
from mechclust.report.style import MATHTEXT
from mechclust.report.subplots import subplots
from mechclust.report.table_text import table_as_csv, table_text
from mechclust.web.scripts import script_content_policy
from tasks.text.visible import visible_text
from tests.faults.hostile import HOSTILE

BAD_FORMULA = "cost $_$ x"


def objects(texts) -> pd.Series:
    """Of Arrow strings, which pandas makes by default, none may hold half a character."""
    return pd.Series(list(texts), dtype=object)


def drawn(figure: Figure) -> dict[str, str]:
    """What matplotlib makes of each text of a figure: a formula, or the characters."""
    png_bytes(figure)
    return {
        text._preprocess_math(text.get_text())[0]: str(text._preprocess_math(text.get_text())[1])
        for text in figure.findobj(Text)
        if text.get_text()
    }


class TestFigures:
    def test_a_users_text_stands_there_as_it_is(self):
        texts = list(HOSTILE.values())
        plain = [figure_text(text) for text in texts]
        figure, (axis,) = subplots(1, size=(5, 5))
        figure.set_layout_engine("none")  # which a long name is tried with below
        for name in plain:
            axis.plot([0, 1], [0, 1], label=name or "nothing")
        axis.set_yticks(range(len(plain)), plain)
        assert len(axis.legend().get_texts()) == len(texts)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = drawn(figure)
        assert set(found.values()) == {"False"}
        for text in texts:
            if len(text) < 30 and text.isascii() and text.isprintable() and text[:1] not in ("", "_"):
                assert text in found

    def test_texts_that_nobody_made_plain_are_no_formulas_either(self):
        figure, (axis,) = subplots(1, size=(4, 3))
        axis.plot([1, 10], [1, 1000], label=f"legend {BAD_FORMULA}")
        axis.set(xlabel=f"label {BAD_FORMULA}", title=f"title {BAD_FORMULA}")
        axis.set_xticks([1, 2], [f"tick {BAD_FORMULA}", "b"])
        axis.text(1, 1, f"text {BAD_FORMULA}")
        figure.suptitle(f"over {BAD_FORMULA}")
        axis.legend(title=f"head {BAD_FORMULA}")
        found = drawn(figure)
        for place in ("legend", "label", "title", "tick", "text", "over", "head"):
            assert found[f"{place} {BAD_FORMULA}"] == "False"

    def test_marked_formulas_of_ours_and_powers_of_ten_are_drawn(self):
        figure, (axis,) = subplots(1, size=(4, 3))
        axis.plot([1, 10], [1, 1000])
        axis.set_yscale("log")
        axis.set_title("$W_V$", gid=MATHTEXT)
        for _ in range(2):  # a notebook has drawn it before the report does
            found = drawn(figure)
            assert found["$W_V$"] == "True"
            assert found["$\\mathdefault{10^{2}}$"] == "True"

    def test_a_name_that_begins_with_an_underscore_is_in_the_legend(self):
        _, (axis,) = subplots(1, size=(4, 3))
        axis.plot([0, 1], label=figure_text("_hidden"))
        assert [text.get_text().strip() for text in axis.legend().get_texts()] == ["_hidden"]

    def test_a_long_name_leaves_room_for_the_figure(self):
        figure, (axis,) = subplots(1, size=(6, 3))
        axis.set_yticks([0], [figure_text("\u4efb" * 10_000)])
        png_bytes(figure)
        assert axis.get_position().width > 0.25


class TestTables:
    def test_no_text_in_a_spreadsheet_is_a_formula(self):
        texts = list(HOSTILE.values())
        table = pd.DataFrame(
            {"=name": objects(texts), "x": np.linspace(-1, 1, len(texts)), "n": range(-3, len(texts) - 3)}
        )
        data = table_as_csv(table)
        rows = list(reader.reader(io.StringIO(data.decode(), newline="")))
        assert rows[0] == ["'=name", "x", "n"]
        for (cell, x, n), text, number in zip(rows[1:], texts, table["x"], strict=True):
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"))
            assert cell.removeprefix("'") == visible_text(text)
            assert (float(x), int(n)) == (number, int(n))
        assert rows[1][1] == "-1.0"
        assert len(data.splitlines()) == len(texts) + 1

    def test_numbers_stay_numbers(self):
        whole = pd.array([-1, None], dtype="Int64")
        mixed = np.array([-2, math.nan], dtype=object)
        data = table_as_csv(pd.DataFrame({"a": whole, "b": mixed, "c": [-0.5, math.nan], "d": ["-1", None]}))
        assert data == b"a,b,c,d\n-1,-2,-0.5,'-1\n,,,\n"

    def test_a_terminal_is_not_written_to_but_with_characters(self):
        text = table_text(pd.DataFrame({"task": objects(HOSTILE.values()), HOSTILE["colours"]: 1.0}), ".3f")
        assert len(text.splitlines()) == len(HOSTILE) + 1
        assert not [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
        assert max(map(len, text.splitlines())) < 100

    def test_a_page_holds_every_text(self):
        html = table_html(
            pd.DataFrame({"task": objects(HOSTILE.values())}), HOSTILE["script"], [HOSTILE["lone surrogate"]]
        )
        html.encode()
        assert "<script" not in html
        assert "<img" not in html
        assert "a\\ud800b" in html


class TestPage:
    def test_the_policy_allows_the_views_scripts_and_no_others(self):
        page = render_report_page(
            title="<script>title()</script>",
            source="<script>source()</script>",
            analysis=Analysis(
                views={"<script>name()</script>": "<script>view()</script><SCRIPT type=module>\r\nmore()</SCRIPT >"},
                folded={"f": "<script>folded()</script>"},
                notes=["<script>note()</script>"],
                headline="<script>headline()</script>",
            ),
            facts={"<script>fact()</script>": 1},
            config={"<script>config()</script>": 1},
        )
        policy = script_content_policy(
            "<script>view()</script>", "<script>\nmore()</script>", "<script>folded()</script>"
        )
        assert policy.count("'sha256-") == 3
        assert f'<meta http-equiv="Content-Security-Policy" content="{policy.replace(chr(39), "&#39;")}">' in page
        assert page.index("Content-Security-Policy") < page.index("<style")

    def test_a_page_without_scripts_may_run_none(self):
        assert "script-src 'none';" in script_content_policy("<p>text</p>")

    @pytest.mark.parametrize("texts", [list(HOSTILE.values()), [""]], ids=["all", "none"])
    def test_a_report_of_any_text_is_written(self, tmp_path, texts):
        together = "".join(texts)
        report = write_report_page(
            tmp_path,
            title=together,
            source=together,
            analysis=Analysis(
                panels=[Panel("figure", Figure(figsize=(1, 1)), together)],
                notes=texts,
                headline=together,
                views={text: f"<p>{chr(0xD800)}</p>" for text in texts},
            ),
            facts={"machine": together},
            config={"text": together, "texts": texts},
            tables={"table": pd.DataFrame({"task": objects(texts)})},
        )
        page = report.read_bytes().decode()
        assert "<script>" not in page
        assert "\x1b" not in page
        assert "\x00" not in page
