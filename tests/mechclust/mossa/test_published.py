"""The published numbers are those that were read off the figures."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from mechclust.mossa import published
from mechclust.mossa.layer_groups import layer_groups

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


def test_what_the_figures_do_not_show_is_undefined():
    assert math.isnan(published.SEEN["base"].median[0])
    assert np.isfinite(published.SEEN["base"].median[3:]).all()
