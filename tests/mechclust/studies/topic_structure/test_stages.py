from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechclust.studies.topic_structure.stages import share_covered, two_stages
from tasks import InputError


def test_the_share_of_the_way_is_linear_in_the_values() -> None:
    assert share_covered([1, 2, 5]).tolist() == [0, 0.25, 1]
    assert share_covered([4.0, 3.0, 0.0]).tolist() == [0, 0.25, 1]  # downwards too
    assert share_covered([0.0, 3.0, -1.0, 2.0]).tolist() == [0, 1.5, -0.5, 1]  # nothing is clamped
    assert share_covered(np.array([1, 2], dtype=np.float32)).dtype == np.float64


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12), st.integers(1, 9), st.integers(-9, 9))
def test_the_share_is_blind_to_scale_and_origin(values: list[int], scale: int, origin: int) -> None:
    moved = [scale * x + origin for x in values]
    np.testing.assert_allclose(share_covered(moved), share_covered(values), atol=1e-12)


def test_no_way_has_no_shares() -> None:
    assert np.isnan(share_covered([2.0, 5.0, 2.0])).all()


@pytest.mark.parametrize("values", [[], [1.0], 3.0, [[1.0, 2.0]]], ids=str)
def test_a_way_needs_two_steps(values: Any) -> None:
    message = re.escape(f"values has shape {np.shape(values)}; expected one number per step, at least two steps")
    with pytest.raises(InputError, match=message):
        share_covered(values)


def ramp(start: int, end: int, steps: int = 21) -> np.ndarray:
    """A curve that rises by 1 a step between two steps, and is flat before and after."""
    return np.clip(np.arange(steps, dtype=np.float64) - start, 0, end - start)


def test_two_stages_planted_are_found() -> None:
    found = two_stages({"W_V": ramp(0, 8), "W_K": ramp(8, 18), "W_Q": ramp(10, 20), "b": [0.0]})
    assert found == (9, 1.0, True)  # W_K has gone a tenth of its 10 steps at step 9
    assert type(found.holds) is bool


def test_the_first_of_the_late_groups_ends_stage_one() -> None:
    curves = {"W_V": ramp(0, 20), "W_K": ramp(10, 20), "W_Q": ramp(2, 12)}
    assert two_stages(curves) == (3, pytest.approx(3 / 20), False)
    assert two_stages(curves, late=["W_K"]) == (11, pytest.approx(11 / 20), True)


def test_one_stage_is_not_two() -> None:
    together = two_stages({"W_V": ramp(0, 20), "W_K": ramp(0, 20), "W_Q": ramp(0, 20)})
    assert together == (2, pytest.approx(0.1), False)
    swapped = two_stages({"W_V": ramp(10, 20), "W_K": ramp(0, 10), "W_Q": ramp(0, 10)})
    assert swapped == (1, 0.0, False)


def test_reaching_a_share_exactly_counts() -> None:
    """0.1 and 0.5 of the way, on numbers that binary fractions hold exactly."""
    found = two_stages({"W_V": [0, 1, 2], "W_K": [0, 1, 10], "W_Q": [0, 0, 1]})
    assert found == (1, 0.5, True)


def test_norms_that_fall_are_moves_too() -> None:
    found = two_stages({"W_V": 20 - ramp(0, 8), "W_K": 20 - ramp(8, 18), "W_Q": ramp(8, 18)})
    assert found == (9, 1.0, True)


def test_what_never_moves_has_no_stages() -> None:
    still = np.ones(21)
    found = two_stages({"W_V": ramp(0, 8), "W_K": still, "W_Q": still})
    assert found.boundary is None
    assert math.isnan(found.early)
    assert found.holds is False
    one = two_stages({"W_V": ramp(0, 8), "W_K": still, "W_Q": ramp(8, 18)})
    assert one == (9, 1.0, True)
    first = two_stages({"W_V": still, "W_K": ramp(8, 18), "W_Q": ramp(8, 18)})
    assert (first.boundary, first.holds) == (9, False)
    assert math.isnan(first.early)


def test_what_two_stages_refuses() -> None:
    with pytest.raises(InputError, match=re.escape("no curve of 'W_Q' (there are W_V, W_K)")):
        two_stages({"W_V": [0, 1], "W_K": [0, 1]})
    with pytest.raises(InputError, match=re.escape("no curve of 'W_V' (there are a)")):
        two_stages({"a": [0, 1]})
    with pytest.raises(InputError, match="the curves have different numbers of steps; expected one step axis for all"):
        two_stages({"W_V": [0, 1, 2], "W_K": [0, 1], "W_Q": [0, 1]})
