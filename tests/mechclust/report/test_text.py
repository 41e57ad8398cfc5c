"""Numbers as text, and p-values that are read together."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from mechclust.evidence.p_values import CHANCE_LEVEL, corrected_p_values, least_permutations_for_p_values
from mechclust.report.html import table_html
from mechclust.report.table_text import table_text
from mechclust.report.text import list_text, ranges_text


def test_what_rounds_to_zero_has_no_sign_in_any_table():
    table = pd.DataFrame({"name": ["a", "b", "c"], "x": [-0.0001, -0.6, math.nan]})
    assert table_text(table, ".2f").splitlines() == ["name     x", "   a  0.00", "   b -0.60", "   c     -"]
    page = table_html(table, number=".2f", missing="–")
    assert "-0.00" not in page
    assert all(f"<td>{cell}</td>" in page for cell in ("0.00", "-0.60", "–"))


def test_layers_and_names_in_words():
    assert ranges_text([0, 2, 3, 4, 7]) == "0, 2-4, 7"
    assert (list_text(["a"]), list_text(["a", "b"]), list_text("abc")) == ("a", "a and b", "a, b and c")


def test_corrected_p_by_the_definition():
    """The step-up procedure: the most places k of which the k-th smallest p is at most k / m of the level."""
    draw = np.random.default_rng(0)
    for m in (1, 2, 5, 40):
        p = draw.beta(0.3, 1, m)
        order = np.sort(p)
        for level in (0.01, CHANCE_LEVEL, 0.2):
            most = max((k for k in range(1, m + 1) if order[k - 1] <= k * level / m), default=0)
            assert (corrected_p_values(p) <= level).sum() == most


def test_a_p_that_is_nowhere_is_no_test():
    found = corrected_p_values([math.nan, 0.03, 0.02])
    assert math.isnan(found[0])
    assert found[1:].tolist() == pytest.approx([0.03, 0.03])
    assert np.isnan(corrected_p_values([math.nan])).all()


@pytest.mark.parametrize("m", [1, 3, 13, 144])
def test_so_many_relabellings_let_one_place_alone_be_above_chance(m):
    for n, above in ((least_permutations_for_p_values(m), True), (least_permutations_for_p_values(m) - 1, False)):
        p = [1 / (1 + n), *(m - 1) * [1.0]]
        assert (corrected_p_values(p)[0] <= CHANCE_LEVEL + 1e-12) == above
