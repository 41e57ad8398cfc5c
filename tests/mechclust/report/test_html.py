"""Tables, figures and findings as a notebook shows them."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from mechclust.evidence import Bound, Finding, Findings, mean_part
from mechclust.report import Analysis, Panel
from mechclust.report.html import table_html

HOSTILE = "</td><script>alert(1)</script>"


class TestTable:
    TABLE = pd.DataFrame({"site": ["hook_embed", HOSTILE], "ari": [0.123456, None], "n": [3, 4]})

    def test_numbers_and_what_is_missing(self) -> None:
        shown = table_html(self.TABLE, number=".2f", missing="–")
        assert "<td>0.12</td>" in shown
        assert "<td>–</td>" in shown
        assert "<td>3</td>" in shown
        assert "<th>0</th>" not in shown  # the index
        assert "<p>" not in shown

    def test_a_missing_text_is_no_none(self) -> None:
        shown = table_html(pd.DataFrame({"task": ["date", None], "learnt": [True, None]}), missing="–")
        assert shown.count("–") == 2
        assert "None" not in shown

    def test_title_and_notes(self) -> None:
        shown = table_html(self.TABLE, "Clusters & co", ["n < 4"])
        assert "<b>Clusters &amp; co</b>" in shown
        assert "<p>Note: n &lt; 4</p>" in shown
        assert "<td>0.1235</td>" in shown


def panel(name: str) -> Panel:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1])
    return Panel(name, figure, f"what {HOSTILE} shows")


class TestNotebook:
    FINDINGS = Findings(
        [Finding(id="T1", statement=HOSTILE, source="ours", parts=(mean_part("", [0.5, 0.6], Bound(">=", 0.1)),))]
    )

    def test_findings(self) -> None:
        shown = self.FINDINGS._repr_html_()
        assert "<td>0.550 (-0.085 to 1.185)</td>" in shown
        assert "<script>" not in shown

    def test_panel(self) -> None:
        shown = panel("curve")._repr_html_()
        assert 'src="data:image/png;base64,' in shown
        assert "<script>" not in shown

    def test_analysis(self) -> None:
        shown = Analysis(self.FINDINGS, [panel("one"), panel("two")], notes=[HOSTILE])._repr_html_()
        assert shown.count("<img ") == 2
        assert shown.count("<li>") == 1
        assert "T1" in shown
        assert "<script>" not in shown
        assert Analysis()._repr_html_() == ""
