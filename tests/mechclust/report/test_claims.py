"""Claims: how a value is judged, and what is written down about it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from mechclust.report.claims import (
    Bound,
    Claim,
    claim,
    interval,
    load_claims,
    markdown_table,
    save_claims,
    share_interval,
    text_table,
)


def made(values, bounds, **options):
    return claim("X1", "a statement", "a source", values, bounds, **options)


class TestBound:
    @pytest.mark.parametrize(
        ("relation", "below", "at", "above"),
        [(">=", False, True, True), (">", False, False, True), ("<=", True, True, False), ("<", True, False, False)],
    )
    def test_met(self, relation, below, at, above):
        bound = Bound(relation, 0.5)
        assert [bound.met(x) for x in (0.4, 0.5, 0.6)] == [below, at, above]
        assert not bound.met(math.nan)

    def test_infinity_meets_what_it_should(self):
        assert Bound(">=", 5).met(math.inf)
        assert not Bound("<=", 5).met(math.inf)

    def test_text(self):
        assert str(Bound(">=", 0.95)) == ">= 0.95"
        assert str(Bound("<", 3)) == "< 3"


class TestInterval:
    @pytest.mark.parametrize("n", [2, 3, 10])
    def test_is_student_t(self, n):
        values = np.random.default_rng(n).normal(3, 2, n).tolist()
        expected = stats.t.interval(0.95, n - 1, loc=np.mean(values), scale=stats.sem(values))
        assert interval(values) == pytest.approx(expected)

    def test_of_equal_values_has_no_width(self):
        assert interval([0.5, 0.5, 0.5]) == (0.5, 0.5)

    @pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf, 2.0]])
    def test_is_none_where_there_is_none(self, values):
        assert interval(values) is None

    def test_covers_the_mean_in_95_percent_of_samples(self):
        draws = np.random.default_rng(0).normal(1.0, 1.0, (2000, 3))
        spans = [interval(row.tolist()) for row in draws]
        inside = [low <= 1.0 <= high for low, high in spans]
        assert np.mean(inside) == pytest.approx(0.95, abs=0.015)


class TestShareInterval:
    @pytest.mark.parametrize(("k", "n"), [(0, 5), (3, 7), (40, 40)])
    def test_is_wilsons(self, k, n):
        share, z = k / n, 1.959963984540054
        centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
        found = share_interval([1.0] * k + [0.0] * (n - k))
        assert found == pytest.approx((max(0, centre - half), min(1, centre + half)))

    def test_of_nothing_is_none(self):
        assert share_interval([]) is None

    def test_a_claim_about_a_share_has_it(self):
        values = [1.0, 1.0, 0.0]
        assert made(values, Bound(">", 0.5), shares=True).interval == share_interval(values)
        assert made([1.0] * 30, Bound(">", 0.5), shares=True).interval[0] < 0.9  # no certainty from equal values


class TestClaim:
    def test_is_judged_by_its_mean(self):
        c = made([0.9, 1.0, 1.1], Bound(">=", 1.0), paper=0.99, chance="0.1")
        assert c.measured == pytest.approx(1.0)
        assert c.holds is True
        assert c.verdict == "holds"
        assert c.interval == pytest.approx(interval([0.9, 1.0, 1.1]))
        assert (c.seeds, c.per_seed, c.bound, c.paper, c.chance) == (3, (0.9, 1.0, 1.1), ">= 1", 0.99, "0.1")
        assert made([0.9, 1.0], Bound(">=", 1.0)).verdict == "does not hold"

    def test_of_one_seed_has_no_interval(self):
        c = made([0.5], Bound("<", 1))
        assert (c.seeds, c.interval, c.holds) == (1, None, True)

    def test_not_tested_at_this_size_still_says_what_was_measured(self):
        c = made([0.5, 0.7], Bound(">=", 0.1), tested=False)
        assert c.holds is None
        assert c.verdict == "not tested at this size"
        assert c.measured == pytest.approx(0.6)

    def test_not_measured(self):
        c = made([], Bound(">=", 0.1))
        assert (c.measured, c.interval, c.seeds, c.holds) == (None, None, 0, None)

    @pytest.mark.parametrize("values", [[math.nan], [math.nan, math.nan], [0.9, math.nan]])
    @pytest.mark.parametrize("relation", [">=", ">", "<=", "<"])
    def test_nan_never_holds(self, values, relation):
        c = made(values, Bound(relation, 0.5))
        assert (c.measured, c.interval, c.holds) == (None, None, False)

    def test_all_parts_must_be_met(self):
        def parts(second):
            return [("end", [0.6, 0.8], Bound(">=", 0.5)), ("ratio", second, Bound(">=", 5))]

        good = made([0.6, 0.8], parts([6.0, 8.0]))
        assert good.holds is True
        assert good.bound == "end >= 0.5; ratio >= 5"
        assert good.note == "ratio 7"
        assert good.measured == pytest.approx(0.7)
        assert made([0.6, 0.8], parts([4.0, 5.0])).holds is False
        assert made([0.6, 0.8], parts([math.nan, 5.0])).holds is False

    def test_of_no_seeds_in_parts(self):
        c = made([], [("end", [], Bound(">=", 0.5)), ("ratio", [], Bound(">=", 5))])
        assert (c.measured, c.holds) == (None, None)


class TestFile:
    CLAIMS = (
        made([0.5, 0.7], Bound(">=", 0.1), note="ä <b>"),
        made([math.nan, 0.7], [("a", [math.nan, 0.7], Bound(">=", 0.1)), ("b", [math.inf], Bound(">=", 5))]),
        made([], Bound("<", 1)),
        made([0.1], Bound("<", 1), tested=False),
    )

    def test_is_strict_json_with_the_fields_of_the_contract(self, tmp_path):
        save_claims(self.CLAIMS, tmp_path / "claims.json")
        records = json.loads((tmp_path / "claims.json").read_text(), parse_constant=pytest.fail)
        required = {"id", "statement", "source", "paper", "measured", "interval", "seeds", "bound", "holds"}
        assert all(required <= record.keys() for record in records)
        assert [record["holds"] for record in records] == [True, False, None, None]
        assert records[1]["measured"] is None
        assert records[1]["per_seed"] == [None, 0.7]

    def test_round_trip(self, tmp_path):
        save_claims(self.CLAIMS, tmp_path / "claims.json")
        loaded = load_claims(tmp_path / "claims.json")
        assert loaded[0] == self.CLAIMS[0]
        assert loaded[2:] == list(self.CLAIMS[2:])
        save_claims(loaded, tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "claims.json").read_bytes()


class TestTables:
    HEADS = ("statement", "measured", "95% interval", "seeds", "bound", "verdict")

    def test_text_has_a_row_a_claim(self):
        lines = text_table(TestFile.CLAIMS).splitlines()
        assert len(lines) == 2 + len(TestFile.CLAIMS)
        assert all(head in lines[0] for head in self.HEADS)
        assert "0.600" in lines[2]
        assert lines[2].endswith("holds")
        assert lines[3].endswith("does not hold")
        assert "-" in lines[4].split()
        assert lines[5].endswith("not tested at this size")

    def test_text_shortens_a_long_statement_only(self):
        long = Claim("T1", "s" * 300, "src", None, 0.5, (0.4, 0.6), 2, "b" * 90, True)
        row = text_table([long]).splitlines()[2]
        assert "s" * 61 + "…" in row
        assert "s" * 62 not in row
        assert "b" * 90 in row

    def test_of_nothing_is_a_heading(self):
        assert all(head in text_table([]).splitlines()[0] for head in self.HEADS)
        assert len(markdown_table([]).splitlines()) == 2

    def test_markdown_has_as_many_cells_in_every_row(self):
        odd = Claim("T1", "a | b " + "s" * 300, "src", None, 0.5, (0.4, 0.6), 2, "|x| < 1", True)
        lines = markdown_table([*TestFile.CLAIMS, odd]).splitlines()
        assert len(lines) == 3 + len(TestFile.CLAIMS)
        cells = [line.replace("\\|", "").count("|") for line in lines]
        assert set(cells) == {8}
        assert "s" * 300 in lines[-1]
        assert "not tested at this size" in lines[-2]
