"""Numbers as text, and p-values that are read together."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from mechclust.evidence.p_values import CHANCE_LEVEL, corrected_p_values, least_permutations_for_p_values
from mechclust.report.figure_text import figure_text
from mechclust.report.html import table_html
from mechclust.report.table_text import table_in_english, table_text
from mechclust.report.text import (
    duration_text,
    first_few,
    layers_text,
    list_text,
    model_name_text,
    ranges_text,
    size_text,
    span_text,
)


def test_what_rounds_to_zero_has_no_sign_in_any_table():
    table = pd.DataFrame({"name": ["a", "b", "c"], "x": [-0.0001, -0.6, math.nan]})
    assert table_text(table, ".2f").splitlines() == ["name     x", "   a  0.00", "   b -0.60", "   c     -"]
    page = table_html(table, number=".2f", missing="–")
    assert "-0.00" not in page
    assert all(f"<td>{cell}</td>" in page for cell in ("0.00", "-0.60", "–"))


def test_answers_are_yes_and_no_in_columns_that_hold_nothing_else():
    table = pd.DataFrame({"is_known": [True, False, None], "mixed": [True, "perhaps", None], "n": [1, 0, 1]})
    shown = table_in_english(table)
    assert shown["is known"].tolist()[:2] == ["yes", "no"]
    assert shown["mixed"].tolist()[:2] == [True, "perhaps"]
    assert shown["n"].tolist() == [1, 0, 1]


def test_layers_and_names_in_words():
    assert ranges_text([0, 2, 3, 4, 7]) == "0, 2-4, 7"
    assert (list_text(["a"]), list_text(["a", "b"]), list_text("abc")) == ("a", "a and b", "a, b and c")
    assert [first_few("abcdef"[:n], most=2) for n in (2, 3, 4)] == ["a and b", "a, b and c", "a, b and 2 others"]
    assert [layers_text(layers) for layers in ("", "3", "2-4")] == ["no layer", "layer 3", "layers 2-4"]
    models = [model_name_text(name) for name in ("org/name", "runs/a/tuned", "/a/tuned")]
    assert models == ["org/name", "tuned", "tuned"]
    assert [span_text(numbers) for numbers in ([3], [5, 3, 4])] == ["3", "3 to 5"]


def test_texts_with_wide_letters_are_cut_at_half_the_length():
    assert [len(figure_text(text, 20)) for text in ("a" * 50, "a" * 20, "a" + "字" * 50, "字" * 10)] == [21, 20, 11, 10]


def test_times_and_sizes_in_words():
    times = [duration_text(seconds) for seconds in (0.9, 1, 119, 120, 7199, 7200)]
    assert times == ["a second", "1 s", "119 s", "2 min", "120 min", "2.0 h"]
    sizes = [size_text(size) for size in (512, 2**20 - 2**14, 2**20, 3 * 2**29, 3 * 2**30)]
    assert sizes == ["0.5 KiB", "1008 KiB", "1 MiB", "1.5 GiB", "3 GiB"]
    sizes = [size_text(size * 2**30) for size in (99.96, 1000, 1536, 2**21)]
    assert sizes == ["100 GiB", "1000 GiB", "1.5 TiB", "2048 TiB"]


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
