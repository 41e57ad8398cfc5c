"""Findings as a list: files, history, tables and data frames."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from mechclust.evidence import (
    Bound,
    Control,
    EarlierVerdict,
    Finding,
    Findings,
    TwoSidedBound,
    check_part,
    load_findings,
    mean_part,
    resampled_part,
)
from mechclust.evidence.finding_tables import (
    findings_in_tables,
    findings_markdown_table,
    findings_notebook_table,
    findings_text_table,
)
from mechclust.evidence.findings import findings_bytes, findings_with_history
from mechclust.evidence.intervals import mean_interval, mean_with_interval
from mechclust.report.html import findings_html
from tasks import InputError


def finding(id="T1", *parts, **fields):
    parts = parts or (mean_part("", [0.59, 0.61], Bound("<", 1)),)
    return Finding(**{"id": id, "statement": "a statement", "source": "ours", "parts": parts, **fields})


TWO_PARTS = (mean_part("a", [0.5, 0.7], Bound(">=", 0.1)), mean_part("b", [1.0, 1.1], Bound(">=", 5)))
LOW = (mean_part("a", [0.0, 0.02], Bound(">=", 0.1)), mean_part("b", [3.0, 3.5], Bound(">=", 5)))
FINDINGS = (
    finding("A", note="ä <b>", shown="headline", paper=0.9),
    finding("B", *TWO_PARTS, control=Control("untrained", LOW)),
    finding("C", mean_part("", [math.nan, 0.7], TwoSidedBound(0.25, 0.6))),
    finding("D", resampled_part("", [0.3], (0.2, 0.4), Bound(">", 0)), unit="tasks", shown="table"),
    finding("E", not_tested="too small"),
    Finding(id="F", statement="nothing", source="ours", parts=()),
    finding("G", check_part("", [0.1, 0.3], Bound("<=", 0.3)), kind="check"),
)
VERDICTS = ["holds", "does not hold", "undecided", "holds", "not tested", "not tested", "holds"]


class TestFile:
    def test_is_strict_json_with_values_intervals_and_verdicts(self, tmp_path):
        (tmp_path / "findings.json").write_bytes(findings_bytes(FINDINGS))
        records = json.loads((tmp_path / "findings.json").read_text(), parse_constant=pytest.fail)
        assert [record["verdict"] for record in records] == VERDICTS
        assert records[2]["parts"][0]["values"] == [None, 0.7]
        assert records[1]["parts"][1] == {
            "name": "b",
            "values": [1.0, 1.1],
            "bound": ">= 5",
            "interval": pytest.approx(mean_interval([1.0, 1.1])),
            "method": "mean",
            "measured": pytest.approx(1.05),
            "verdict": "does not hold",
        }
        assert records[1]["control"]["name"] == "untrained"
        assert records[1]["control"]["parts"][0]["measured"] == pytest.approx(0.01)

    def test_round_trip(self, tmp_path):
        (tmp_path / "findings.json").write_bytes(findings_bytes(FINDINGS))
        loaded = load_findings(tmp_path)
        assert [f for f in loaded if f.id != "C"] == [f for f in FINDINGS if f.id != "C"]
        assert math.isnan(loaded[2].parts[0].values[0])
        assert loaded[2].parts[0].bound == TwoSidedBound(0.25, 0.6)
        (tmp_path / "again.json").write_bytes(findings_bytes(loaded))
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "findings.json").read_bytes()

    def test_keeps_an_undefined_interval_undecided(self, tmp_path):
        undefined = finding("A", resampled_part("", [0.5], (math.nan, math.nan), Bound(">", 0)))
        (tmp_path / "findings.json").write_bytes(findings_bytes([undefined]))
        assert load_findings(tmp_path) == [undefined]
        assert load_findings(tmp_path)[0].verdict == "undecided"
        (record,) = json.loads(findings_bytes([undefined]))
        del record["checksum"]
        record["parts"][0]["interval"] = [None, None]  # as earlier files have it
        (tmp_path / "findings.json").write_text(json.dumps([record]))
        assert load_findings(tmp_path) == [undefined]

    def test_keeps_all_digits_of_bounds(self, tmp_path):
        parts = (
            check_part("", [3 / 7], Bound("<=", np.float64(3 / 7))),
            check_part("", [1 / 7, 2 / 7], TwoSidedBound(1 / 7, 2 / 7)),
            check_part("", [1e9 + 1], Bound("<=", 1e9 + 1)),
        )
        (tmp_path / "findings.json").write_bytes(findings_bytes([finding("A", *parts)]))
        (loaded,) = load_findings(tmp_path)
        assert loaded.verdict == "holds"
        assert loaded.parts == parts
        assert [str(part.bound) for part in loaded.parts] == ["<= 0.428571", "0.142857 to 0.285714", "<= 1e+09"]

    @pytest.mark.parametrize(
        ("field", "value"), [("kind", "guess"), ("shown", "nowhere"), ("severity", 0.9), ("parts", None)]
    )
    def test_of_another_form_is_refused(self, tmp_path, field, value):
        (tmp_path / "findings.json").write_bytes(findings_bytes([finding()]))
        (record,) = json.loads((tmp_path / "findings.json").read_text())
        record.pop("checksum")
        (tmp_path / "findings.json").write_text(json.dumps([{**record, field: value}]))
        with pytest.raises(InputError, match=r"findings\.json' is not a list of findings \(.+\); delete it"):
            load_findings(tmp_path)

    def test_changed_by_hand_is_refused(self, tmp_path):
        (tmp_path / "findings.json").write_bytes(findings_bytes([finding()]))
        text = (tmp_path / "findings.json").read_text()
        (tmp_path / "findings.json").write_text(text.replace("0.59", "0.58"))
        with pytest.raises(InputError, match="was changed or is damaged"):
            load_findings(tmp_path)

    def test_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(InputError, match=r"^no findings in "):
            load_findings(tmp_path)
        (tmp_path / "claims.json").write_text("[]")
        with pytest.raises(InputError, match=r"is of mechclust 0.1; mechclust report writes its findings anew$"):
            load_findings(tmp_path)


class TestHistory:
    ROW = {"finding": "T1", "run": "seeds 0 to 2", "seeds": 3, "verdict": "does not hold", "changed": "more steps"}
    EARLIER = EarlierVerdict("seeds 0 to 2", 3, "does not hold", "more steps")

    def test_stands_beside_the_findings(self, tmp_path):
        (tmp_path / "findings.json").write_bytes(findings_bytes([finding(), finding("T2")]))
        assert {found.history for found in load_findings(tmp_path)} == {()}
        (tmp_path / "history.json").write_text(json.dumps([self.ROW, {**self.ROW, "run": "a second"}]))
        first, second = load_findings(tmp_path)
        assert first.history == (self.EARLIER, replace(self.EARLIER, run="a second"))
        assert second.history == ()

    def test_is_kept_once_in_the_findings(self, tmp_path):
        (tmp_path / "history.json").write_text(json.dumps([self.ROW]))
        (tmp_path / "findings.json").write_bytes(findings_bytes(findings_with_history([finding()], tmp_path)))
        assert json.loads((tmp_path / "findings.json").read_text())[0]["history"][0]["run"] == "seeds 0 to 2"
        assert load_findings(tmp_path)[0].history == (self.EARLIER,)

    @pytest.mark.parametrize("text", ['{"T1": 3}', '[{"finding": "T1"}]', "[1", '[{"finding": "T1", "verdict": "no"}]'])
    def test_that_is_none_is_refused(self, tmp_path, text):
        (tmp_path / "history.json").write_text(text)
        with pytest.raises(InputError, match=r"history\.json' is not a list of earlier verdicts.*; expected objects"):
            findings_with_history([finding()], tmp_path)


class TestTables:
    def test_text_has_a_row_for_each_part_and_checks_apart(self):
        findings, checks = findings_text_table(FINDINGS).split("\n\n")
        rows = findings.splitlines()[2:]
        assert [row.split("  ")[0] for row in rows] == ["A", "B", "", "C", "D", "E", "F"]
        assert "0.600 (-0.671 to 1.871)" in rows[1]
        assert "untrained: 0.010" in rows[1]
        assert "✗ does not hold" in rows[1]
        assert "b: >= 5" in rows[2]
        assert "3.250" in rows[2]
        assert "not measured" in rows[0]
        assert "0.25 to 0.6" in rows[3]
        assert "– not tested" in rows[6]
        assert checks.splitlines()[-1].endswith("✓ holds")

    def test_small_numbers_are_not_shown_as_zero(self):
        small = finding("A", resampled_part("", [0.0003], (-0.00047, 0.0011), Bound(">", 0)))
        assert "0.0003 (-0.00047 to 0.001)" in findings_text_table([small])
        zero = finding("A", resampled_part("", [0.0], (-1e-17, 0.5), Bound(">", 0)))
        assert "0.000 (0.000 to 0.500)" in findings_text_table([zero])

    def test_text_is_no_wider_than_can_be_read(self):
        long = finding("A", mean_part("b" * 90, [0.1, 0.2], Bound(">", 0)), statement="s" * 300)
        row = findings_text_table([long]).splitlines()[2]
        assert "s" * 61 + "…" in row
        assert "b" * 47 + "…" in row
        assert "s" * 62 not in row

    def test_of_nothing_is_a_heading(self):
        assert "finding" in findings_text_table([])
        assert len(findings_markdown_table([]).splitlines()) == 2

    def test_of_checks_alone_has_no_findings(self):
        assert "control" not in findings_text_table(FINDINGS[-1:])

    def test_of_a_check_without_parts(self):
        table = findings_text_table([Finding(id="H", statement="s", source="ours", parts=(), kind="check")])
        assert table.splitlines()[2].split()[:5] == ["H", "s", "-", "-", "–"]

    def test_notebook_tables_are_escaped_and_uncut(self):
        html = findings_notebook_table([finding(statement="s" * 300 + " < t")])
        assert "s" * 300 + " &lt; t" in html

    def test_markdown_has_as_many_cells_in_every_row(self):
        odd = finding("H", statement="a | b " + "s" * 300)
        findings, checks = findings_markdown_table([*FINDINGS, odd]).split("\n\n")
        for table, bars in ((findings, 7), (checks, 6)):
            assert {line.replace("\\|", "").count("|") for line in table.splitlines()} == {bars}
        assert "s" * 300 in findings
        assert len(findings.splitlines()) == 2 + 8

    def test_what_stands_in_the_table_alone_is_not_shown(self):
        assert [f.id for f in findings_in_tables(FINDINGS)] == ["A", "B", "C", "E", "F", "G"]

    def test_frame_has_a_row_for_each_part(self):
        frame = Findings(FINDINGS).to_dataframe()
        assert frame["id"].tolist() == ["A", "B", "B", "C", "D", "E", "F", "G"]
        assert frame["verdict"].tolist() == [VERDICTS[0], *VERDICTS[1:2] * 2, *VERDICTS[2:]]
        second = frame.iloc[2]
        assert (second["part"], second["n"], second["bound"], second["control"]) == ("b", 2, ">= 5", "untrained")
        assert second["measured"] == pytest.approx(1.05)
        assert second["control_measured"] == pytest.approx(3.25)
        assert second[["low", "high"]].tolist() == pytest.approx(mean_interval([1.0, 1.1]))

    def test_list_prints_a_table_and_counts_verdicts(self):
        assert str(Findings(FINDINGS)) == findings_text_table(FINDINGS)
        assert repr(Findings(FINDINGS[:2])).startswith("Findings(2 findings: 1 'holds', 1 'does not hold'")


def test_a_mean_is_written_with_its_interval():
    values = [0.5, 0.7, 0.9]
    # Student's t with 2 degrees of freedom: 4.303 * 0.2 / sqrt(3)
    assert mean_with_interval(values) == "0.70 (0.20 to 1.20)"
    assert mean_with_interval(values, decimals=1) == "0.7 (0.2 to 1.2)"
    low, high = map(float, mean_with_interval(values, share=True)[6:-1].split(" to "))
    assert 0 < low < 0.7 < high < 1
    assert mean_with_interval([0.5, math.nan]) == mean_with_interval([]) == "–"
    assert mean_with_interval([0.5]) == "0.50"
    assert mean_with_interval([0.5, 0.7]) == "0.60 (-0.67 to 1.87)"


class TestPage:
    def test_shows_values_controls_and_verdicts_and_folds_the_rest(self):
        earlier = EarlierVerdict("seeds 0 to 2", 3, "does not hold", "more steps")
        page = findings_html([*FINDINGS, finding("T1", history=(earlier,))])
        table, checks = page.split("Worst value")
        assert 'class="verdict does-not-hold"' in table
        assert "0.600 (-0.671 to 1.871)" in table
        assert "untrained:" in table
        assert "not measured" in table
        assert "published: 0.900" in table
        assert "ä &lt;b&gt;" in table
        assert "earlier: seeds 0 to 2, 3 seeds: does not hold; more steps" in table
        assert "Not tested: E, F" in table
        assert "1 of 1 hold" in table
        assert '<td class="n">0.3</td>' in checks  # the worst of 0.1 and 0.3
        assert "1 further finding, judged alike, in findings.csv" in checks

    def test_a_check_of_the_table_alone_is_counted_there(self):
        page = findings_html(
            [*FINDINGS, finding("H", check_part("", [0.5], Bound(">", 0)), kind="check", shown="table")]
        )
        assert "1 of 1 hold" in page
        assert "2 further findings" in page
        assert "<b>H</b>" not in page

    def test_of_nothing_is_nothing(self):
        assert findings_html([]) == ""
