"""Findings: how they are judged, what is written down about them, and how they are shown."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from mechclust.report.findings import (
    Finding,
    Findings,
    EarlierRun,
    finding,
    lacking_severity,
    load_findings,
    markdown_table,
    save_findings,
    text_table,
    untested,
    with_history,
    with_severity,
)
from mechclust.report.html import findings_html
from mechclust.report.severity import NOT_COMPUTED, Severity
from mechclust.evidence.bounds import Bound
from mechclust.evidence.intervals import mean_interval, share_interval
from tasks import InputError

FIELDS = [
    "id", "kind", "statement", "source", "paper", "measured", "interval", "seeds", "bound", "verdict", "parts",
    "chance", "severity", "severity_draws", "severity_note", "power", "history", "note", "per_seed",
]  # fmt: skip


def made(values, bounds, **options):
    return finding("X1", "a statement", "a source", values, bounds, **options)


def given(**fields):
    about = {"id": "T1", "statement": "s", "source": "src", "measured": 0.5, "interval": (0.4, 0.6), "seeds": 2}
    return Finding(**{**about, "bound": "< 1", "verdict": "holds", "per_seed": (0.4, 0.6), **fields})


class TestFinding:
    def test_is_judged_by_its_interval(self):
        values = [0.99, 1.0, 1.01]
        c = made(values, Bound(">=", 0.9), paper=0.99, chance="0.1")
        assert c.measured == pytest.approx(1.0)
        assert (c.kind, c.verdict, c.parts) == ("finding", "holds", ())
        assert c.interval == pytest.approx(mean_interval(values))
        assert (c.seeds, c.per_seed, c.bound, c.paper, c.chance) == (3, (0.99, 1.0, 1.01), ">= 0.9", 0.99, "0.1")
        assert made(values, Bound(">=", 1.0)).verdict == "undecided"  # the mean satisfies it
        assert made(values, Bound(">=", 1.1)).verdict == "does not hold"

    @pytest.mark.parametrize("shares", [False, True])
    def test_of_one_seed_is_not_tested(self, shares):
        c = made([1.0], Bound(">", 0.2), shares=shares, note="a note")
        assert (c.seeds, c.interval, c.verdict, c.measured) == (1, None, "not tested", 1.0)
        assert c.note == "not tested: one seed; a note"

    def test_a_part_of_one_seed_leaves_the_finding_not_tested(self):
        parts = [("a", [1.0, 1.1], Bound(">", 0)), ("b", [1.0], Bound(">", 0))]
        c = made([1.0, 1.1], parts)
        assert (c.verdict, [part.verdict for part in c.parts]) == ("not tested", ["holds", "not tested"])
        assert c.note == "not tested: one seed"
        false = made([1.0, 1.1], [("a", [1.0, 1.1], Bound("<", 0)), parts[1]])
        assert false.verdict == "does not hold"

    def test_an_interval_may_be_given(self):
        c = made([0.5], Bound("<", 1), interval=(0.2, 0.8))
        assert (c.interval, c.verdict) == ((0.2, 0.8), "holds")
        assert made([0.5, 0.5], Bound("<", 1), interval=(0.2, 1.1)).verdict == "undecided"
        assert made([0.5], Bound("<", 1), interval=(math.nan, math.nan)).verdict == "undecided"

    def test_intervals_of_parts_may_be_given_by_name(self):
        parts = [("a", [0.5], Bound(">", 0)), ("a", [0.5], Bound("<", 1)), ("b", [2.0], Bound(">", 1))]
        first = made([0.5], parts, interval=(0.2, 0.8))
        assert [part.verdict for part in first.parts] == ["holds", "holds", "not tested"]
        both = made([0.5], parts, interval={"a": (0.2, 0.8), "b": (1.5, 2.5)})
        assert (both.verdict, both.parts[2].interval) == ("holds", (1.5, 2.5))

    def test_an_interval_that_cannot_be_is_refused(self):
        with pytest.raises(InputError) as refused:
            made([0.5], [("a", [0.5], Bound(">", 0)), ("b", [1.0], Bound(">", 0))], interval={"c": (0.0, 1.0)})
        assert str(refused.value) == "finding X1 has an interval of 'c'; expected one of its parts ('a', 'b')"
        with pytest.raises(InputError) as refused:
            made([0.5], Bound(">", 0), interval=(0.6, 0.4))
        assert str(refused.value) == "finding X1 has the interval 0.6 to 0.4; give the lower end first"

    def test_about_a_share_has_its_interval(self):
        values = [1.0, 1.0, 0.0]
        assert made(values, Bound(">", 0.5), shares=True).interval == share_interval(values)
        assert made([1.0] * 30, Bound(">", 0.5), shares=True).interval[0] < 0.9  # no certainty from equal values
        assert made([1.0] * 30, Bound(">=", 0.95), shares=True).verdict == "undecided"

    def test_about_an_accuracy_has_an_interval_within_0_and_1(self):
        values = [1.0, 0.9, 0.31, 0.98]
        high = mean_interval(values)[1]
        assert high > 1  # what Student's t says of them
        c = made(values, Bound("<=", 1.0), shares=True)
        assert 0 <= c.interval[0] < c.measured < c.interval[1] <= 1
        assert c.verdict == "holds"

    def test_only_some_parts_may_be_shares(self):
        parts = [("accuracy", [0.9, 1.0, 1.0], Bound(">", 0)), ("error", [3.0, 5.0, 4.0], Bound(">", 0))]
        c = made([0.9, 1.0, 1.0], parts, shares=("accuracy",))
        assert [part.interval for part in c.parts] == [share_interval([0.9, 1.0, 1.0]), mean_interval([3.0, 5.0, 4.0])]
        with pytest.raises(InputError, match=r"^finding X1 has a share 'acuracy'; expected one of its parts"):
            made([0.9], parts, shares=("acuracy",))
        with pytest.raises(InputError, match=r"^3.0 is not between 0 and 1"):
            made([0.9], parts, shares=True)

    def test_not_tested_says_why_and_what_was_measured(self):
        c = made([0.5, 0.7], Bound(">=", 0.1), tested=False, note="a note")
        assert (c.verdict, c.measured) == ("not tested", pytest.approx(0.6))
        assert c.note == "not tested: this size of the study cannot test it; a note"
        assert made([], Bound(">=", 0.1), tested=False, why_not="no model").note == "not tested: no model"
        assert untested(c) is c
        other = untested(made([1.0, 1.1], [("a", [1.0, 1.1], Bound(">", 0)), ("b", [1.0, 2.0], Bound(">", 0))]), "why")
        assert (other.verdict, other.note, {p.verdict for p in other.parts}) == (
            "not tested", "not tested: why", {"not tested"}
        )  # fmt: skip

    def test_not_measured(self):
        c = made([], Bound(">=", 0.1))
        assert (c.measured, c.interval, c.seeds, c.verdict) == (None, None, 0, "not tested")
        assert c.note == "not tested: the value could not be measured"
        part = made([1.0, 1.1], [("a", [1.0, 1.1], Bound(">", 0)), ("b", [], Bound(">", 0))])
        assert (part.verdict, part.note) == ("not tested", "not tested: b could not be measured")

    @pytest.mark.parametrize("values", [[math.nan, math.nan], [0.9, math.nan]])
    @pytest.mark.parametrize("relation", [">=", ">", "<=", "<"])
    def test_an_undefined_value_decides_nothing(self, values, relation):
        c = made(values, Bound(relation, 0.5))
        assert (c.measured, c.interval, c.verdict) == (None, None, "undecided")
        assert c.note == f"the value is undefined in {sum(map(math.isnan, values))} of {len(values)} seeds"

    def test_all_parts_must_hold(self):
        def parts(second):
            return [("end", [0.6, 0.61], Bound(">=", 0.5)), ("ratio", second, Bound(">=", 5))]

        good = made([0.6, 0.61], parts([6.0, 6.1]))
        assert (good.verdict, good.bound, good.note) == ("holds", "end >= 0.5; ratio >= 5", "")
        assert good.measured == pytest.approx(0.605)
        assert [(p.name, p.per_seed, p.bound, p.verdict) for p in good.parts] == [
            ("end", (0.6, 0.61), ">= 0.5", "holds"),
            ("ratio", (6.0, 6.1), ">= 5", "holds"),
        ]
        assert good.parts[1].interval == pytest.approx(mean_interval([6.0, 6.1]))
        assert made([0.6, 0.61], parts([4.0, 8.0])).verdict == "undecided"
        assert made([0.6, 0.61], parts([4.0, 4.1])).verdict == "does not hold"

    def test_a_check_is_judged_by_its_worst_value(self):
        c = made([0.1, 0.2, 0.3], Bound("<=", 0.3), kind="check")
        assert (c.verdict, c.worst, c.severity_note) == ("holds", 0.3, "")
        assert made([0.1, 0.1, 0.31], Bound("<=", 0.3), kind="check").verdict == "does not hold"
        assert made([0.1], Bound("<=", 0.3), kind="check").verdict == "holds"
        assert made([], Bound("<=", 0.3), kind="check").worst is None

    def test_bounds_on_one_part_are_one_row(self):
        c = made([0.5, 0.5], [("x", [0.5, 0.5], Bound(">", 0)), ("x", [0.5, 0.5], Bound("<", 0.4))])
        (row,) = c.rows
        assert (row.bound, row.verdict) == ("> 0; < 0.4", "does not hold")


class TestSeverity:
    def test_of_a_finding(self):
        c = made([1.0, 1.1], Bound(">", 0), severity=Severity(0.94, 200, "labels exchanged", power=0.8))
        assert (c.severity, c.severity_draws, c.severity_note, c.power, c.weak) == (
            0.94, 200, "labels exchanged", 0.8, True
        )  # fmt: skip
        assert not replace(c, severity=0.95).weak
        assert not made([1.0], Bound(">", 0)).weak

    def test_is_lacking_where_nothing_is_said(self):
        finding, check = made([1.0], Bound(">", 0)), made([1.0], Bound(">", 0), kind="check")
        assert lacking_severity([finding, check]) == ["X1"]
        filled = with_severity([finding, check])
        assert [c.severity_note for c in filled] == [NOT_COMPUTED.note, ""]
        assert lacking_severity(filled) == []

    def test_by_id_goes_before_what_a_finding_has(self):
        mine, other = Severity(1.0, 200, "mine"), Severity(0.5, 300, "other")
        c = made([1.0], Bound(">", 0), severity=mine)
        assert with_severity([c])[0] == c
        assert with_severity([c], {"X1": other})[0].severity_draws == 300


class TestFile:
    FINDINGS = (
        made([0.5, 0.7], Bound(">=", 0.1), note="ä <b>", severity=Severity(0.99, 200, "noise", 0.9)),
        made([math.nan, 0.7], [("a", [math.nan, 0.7], Bound(">=", 0.1)), ("b", [math.inf, 6.0], Bound(">=", 5))]),
        made([], Bound("<", 1)),
        made([0.1], Bound("<", 1), tested=False),
        made([0.1, 0.2], [("a", [0.1, 0.2], Bound("<", 1)), ("b", [1.0, 1.1], Bound(">=", 5))], shares=False),
        made([0.1], Bound("<", 1), kind="check"),
    )

    def test_is_strict_json_with_the_fields_of_the_contract(self, tmp_path):
        save_findings(self.FINDINGS, tmp_path / "findings.json")
        records = json.loads((tmp_path / "findings.json").read_text(), parse_constant=pytest.fail)
        assert [list(record) for record in records] == [[*FIELDS, "checksum"]] * len(self.FINDINGS)
        assert [record["verdict"] for record in records] == [
            "undecided", "undecided", "not tested", "not tested", "does not hold", "holds"
        ]  # fmt: skip
        assert records[1]["measured"] is None
        assert records[1]["per_seed"] == [None, 0.7]
        assert records[4]["parts"][1] == {
            "name": "b",
            "per_seed": [1.0, 1.1],
            "measured": pytest.approx(1.05),
            "interval": pytest.approx(mean_interval([1.0, 1.1])),
            "bound": ">= 5",
            "verdict": "does not hold",
        }

    def test_round_trip(self, tmp_path):
        save_findings(self.FINDINGS, tmp_path / "findings.json")
        loaded = load_findings(tmp_path / "findings.json")
        assert [c for i, c in enumerate(loaded) if i != 1] == [c for i, c in enumerate(self.FINDINGS) if i != 1]
        assert np.isnan(loaded[1].per_seed[0])
        save_findings(loaded, tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "findings.json").read_bytes()

    @pytest.mark.parametrize(
        ("field", "value"), [("verdict", "perhaps"), ("kind", "guess"), ("holds", True), ("parts", None)]
    )
    def test_of_another_form_is_refused(self, tmp_path, field, value):
        save_findings([given()], tmp_path / "findings.json")
        (record,) = json.loads((tmp_path / "findings.json").read_text())
        record.pop("checksum")
        (tmp_path / "findings.json").write_text(json.dumps([{**record, field: value}]))
        with pytest.raises(InputError, match=r"findings\.json' is not a list of findings \(.+\); delete it"):
            load_findings(tmp_path)


class TestHistory:
    ROW = {"finding": "T1", "run": "seeds 0 to 2", "seeds": 3, "verdict": "does not hold", "changed": "more steps"}
    EARLIER = EarlierRun("seeds 0 to 2", 3, "does not hold", "more steps")

    def test_stands_beside_the_findings(self, tmp_path):
        save_findings([given(), given(id="T2")], tmp_path / "findings.json")
        assert {c.history for c in load_findings(tmp_path)} == {()}
        (tmp_path / "history.json").write_text(json.dumps([self.ROW, {**self.ROW, "run": "a second"}]))
        first, second = load_findings(tmp_path)
        assert first.history == (self.EARLIER, replace(self.EARLIER, run="a second"))
        assert second.history == ()

    def test_is_kept_once_in_the_findings(self, tmp_path):
        (tmp_path / "history.json").write_text(json.dumps([self.ROW]))
        save_findings(with_history([given()], tmp_path), tmp_path / "findings.json")
        assert json.loads((tmp_path / "findings.json").read_text())[0]["history"][0]["run"] == "seeds 0 to 2"
        assert load_findings(tmp_path)[0].history == (self.EARLIER,)

    @pytest.mark.parametrize("text", ['{"T1": 3}', '[{"finding": "T1"}]', "[1", '[{"finding": "T1", "verdict": "no"}]'])
    def test_that_is_none_is_refused(self, tmp_path, text):
        (tmp_path / "history.json").write_text(text)
        with pytest.raises(
            InputError, match=r"history\.json' is not a list of earlier verdicts.*; expected objects with"
        ):
            with_history([given()], tmp_path)


class TestTables:
    HEADS = ("statement", "measured", "95% interval", "n", "bound", "verdict", "severity")

    def test_text_has_a_row_a_part(self):
        lines = text_table(TestFile.FINDINGS).splitlines()
        assert all(head in lines[0] for head in self.HEADS)
        rows, (empty, head, _, check) = lines[2:-4], lines[-4:]
        assert "0.600" in rows[0]
        assert TestFile.FINDINGS[0].verdict != "holds"
        assert rows[0].split("  ")[-1] == "0.990 of 200, power 0.90"
        assert [row.split("  ")[0] for row in rows] == ["X1", "X1", "", "X1", "X1", "X1", ""]
        assert "and: b" in rows[-1]
        assert rows[-1].endswith("does not hold")
        assert "not tested" in rows[3]
        assert empty == ""
        assert "worst value" in head
        assert "severity" not in head
        assert check.endswith("holds")

    def test_a_weak_finding_is_marked(self):
        weak = given(severity=0.9, severity_draws=250, severity_note="noise")
        for table in (text_table([weak]), markdown_table([weak])):
            assert "0.900 of 250 (weak)" in table
            assert "(weak)" not in table.replace("0.900 of 250 (weak)", "")
        assert "weak" not in text_table([given(severity=0.95, severity_draws=250)])

    def test_the_power_of_what_holds_is_left_out(self):
        strong = given(severity=0.99, severity_draws=250, power=0.9)
        assert strong.verdict == "holds"
        assert "power" not in text_table([strong])

    def test_small_numbers_are_not_shown_as_zero(self):
        row = text_table([given(measured=0.0003, interval=(-0.00047, 0.0011))]).splitlines()[2]
        assert "0.0003  -0.00047 to 0.001" in re.sub(" {2,}", "  ", row)
        assert "0.000  0.000 to 0.500" in re.sub(
            " {2,}", "  ", text_table([given(measured=0.0, interval=(-1e-17, 0.5))])
        )

    def test_text_is_no_wider_than_can_be_read(self):
        row = text_table([given(statement="s" * 300, bound="b" * 90)]).splitlines()[2]
        assert "s" * 61 + "…" in row
        assert "s" * 62 not in row
        assert "b" * 47 + "…" in row
        assert len(row) < 190

    def test_of_nothing_is_a_heading(self):
        assert all(head in text_table([]).splitlines()[0] for head in self.HEADS)
        assert len(markdown_table([]).splitlines()) == 2

    def test_of_checks_alone_has_no_findings(self):
        assert "95% interval" not in text_table([given(kind="check")])
        assert markdown_table([given(kind="check")]).splitlines()[0].startswith("|  | check | worst value |")

    def test_markdown_has_as_many_cells_in_every_row(self):
        odd = given(statement="a | b " + "s" * 300, bound="|x| < 1")
        findings, checks = markdown_table([*TestFile.FINDINGS, odd]).split("\n\n")
        for table, cells in ((findings, 9), (checks, 7)):
            assert {line.replace("\\|", "").count("|") for line in table.splitlines()} == {cells}
        assert "s" * 300 in findings.splitlines()[-1]
        assert len(findings.splitlines()) == 2 + 8
        assert len(checks.splitlines()) == 3

    def test_frame_has_verdict_and_severity(self):
        frame = Findings(TestFile.FINDINGS).to_dataframe()
        assert frame["verdict"].tolist() == [c.verdict for c in TestFile.FINDINGS]
        assert frame.loc[0, ["severity", "severity_draws", "power"]].tolist() == [0.99, 200, 0.9]
        assert frame["kind"].tolist() == ["finding"] * 5 + ["check"]

    def test_html_lists_checks_apart(self):
        page = findings_html(TestFile.FINDINGS)
        findings, checks = page.split("Worst value")
        assert "0.990 of 200" in findings
        assert "severity: noise" in findings
        assert "power 0.900" in findings
        assert "and: b" in findings
        assert 'class="verdict does-not-hold"' in findings
        assert checks.count("<tr>") == 1
        weak = findings_html([given(severity=0.9, severity_draws=200, history=(TestHistory.EARLIER,))])
        assert "<b>weak</b>" in weak
        assert "earlier: seeds 0 to 2, 3 seeds: does not hold; more steps" in weak
        assert "<b>weak</b>" not in page
