"""The published numbers are those that were read off the figures, and planted curves have them."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mechclust.report import published_mossa as published
from mechclust.report.layer_groups import layer_groups
from mechclust.report.planted_curves import planted
from mechclust.report.task_curves import TaskCurves

_DATA = Path(__file__).parents[2] / "data" / "mossa"
_COLUMNS = {"low": "q1", "median": "median", "high": "q3"}


@pytest.mark.parametrize(("curves", "file"), [("SEEN", "fig2_seen_tasks.csv"), ("HELD_OUT", "fig7_unseen_tasks.csv")])
@pytest.mark.parametrize(("which", "kind"), [("base", "pre"), ("tuned", "sft")])
def test_curves_are_those_of_the_figures(curves, file, which, kind):
    with open(_DATA / file) as lines:
        rows = list(csv.DictReader(lines))
    found = getattr(published, curves)[which]
    for name, column in _COLUMNS.items():
        expected = [float(row[f"{kind}_{column}"] or "nan") for row in rows]
        assert len(expected) == published.N_LAYERS
        assert getattr(found, name) == pytest.approx(expected, abs=0, nan_ok=True)


def test_groups_are_those_that_the_rule_finds():
    base, tuned = (published.SEEN[which] for which in ("base", "tuned"))
    found = layer_groups(base.median, tuned.median, tuned.spread)
    groups = {name: (layers[0], layers[-1]) for name, layers in vars(found).items()}
    assert groups == published.GROUPS


def test_medians_of_the_text_are_on_the_curves():
    """Medians that are named in numbers, to the error of reading."""
    named = {5: (0.988, 0.949), 9: (0.923, 0.941), 13: (0.817, 0.966), 20: (0.637, 0.952), 32: (0.533, 0.911)}
    for layer, values in named.items():
        found = [published.SEEN[which].median[layer - 1] for which in ("base", "tuned")]
        assert found == pytest.approx(values, abs=0.002)


def like(n_seen: int, n_held_out: int, n_layers: int, **covariates) -> TaskCurves:
    n = n_seen + n_held_out
    none = np.zeros((n, n_layers))
    return TaskCurves(
        tuple(map(str, range(n))), tuple(map(str, range(n_layers))), none, none, none, none, np.arange(n) >= n_seen,
        (None,) * n, {"base": np.ones(n_layers)}, covariates,
    )  # fmt: skip


class TestPlanted:
    def test_has_the_published_medians_and_quartiles(self):
        found = planted(like(8000, 8000, 32), np.random.default_rng(0))
        for part, numbers in ((found.seen, published.SEEN), (found.unseen, published.HELD_OUT)):
            for which in ("base", "tuned"):
                low, high = part.quartiles(which)
                for made, name in ((low, "low"), (part.median(which), "median"), (high, "high")):
                    expected = np.array(getattr(numbers[which], name))
                    known = np.isfinite([getattr(numbers[which], n) for n in _COLUMNS]).all(axis=0)
                    assert made[known] == pytest.approx(expected[known], abs=0.05 * max(part.spread(which)))

    def test_other_depths_are_matched_by_their_share(self):
        found = planted(like(4000, 0, 16), np.random.default_rng(0))
        expected = np.array(published.SEEN["base"].median)[1::2]
        assert found.median("base")[3:] == pytest.approx(expected[3:], abs=0.02)

    def test_known_covariates_have_the_published_correlations(self):
        names = (published.FLESCH_KINCAID, published.COLEMAN_LIAU, published.DATA_SIZE, "another")
        found = planted(like(4000, 0, 32, **dict.fromkeys(names, np.zeros(4000))), np.random.default_rng(0))
        for name, which, layer, r in (
            (names[0], "tuned", 20, 0.40),
            (names[1], "tuned", 20, 0.43),
            (names[2], "base", 1, 0.46),
            ("another", "tuned", 20, 0.0),
        ):
            values = getattr(found, which)[:, layer - 1]
            assert np.corrcoef(values, found.covariates[name])[0, 1] == pytest.approx(r, abs=0.08)

    def test_says_nothing_of_what_is_not_published(self):
        found = planted(like(5, 0, 8), np.random.default_rng(0))
        assert (found.ceiling, found.null) == (None, None)
        assert (found.base <= 1).all()
        assert replace(found, base=found.base).tasks == tuple("01234")

    def test_dimensions_are_the_published_ones_by_depth(self):
        curves = replace(like(5, 0, 16), dims={"base": np.zeros(16), "tuned": np.zeros(16)})
        dims = planted(curves, np.random.default_rng(0)).dims
        assert [dims["base"][i] for i in (4, 9, 15)] == [795, 735, 820]  # layers 10, 20 and 32 of 32
        assert dims["tuned"][15] == 1520


def test_what_the_figures_do_not_show_is_undefined():
    assert math.isnan(published.SEEN["base"].median[0])
    assert np.isfinite(published.SEEN["base"].median[3:]).all()
