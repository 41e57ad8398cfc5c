"""The checks that other checks are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tasks import InputError
from tasks.errors import check_at_least, check_count


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "3", None, True, 1j, -1, [3]])
def test_what_is_no_number_or_too_small_is_refused(value: Any) -> None:
    for check in (check_at_least, check_count):
        with pytest.raises(InputError, match=r"^steps is .*; expected (at least 1|a number|an integer)"):
            check(steps=(value, 1))


def test_numbers_pass() -> None:
    check_at_least(tol=(0.5, 0), steps=(np.int64(3), 1))
    check_count(steps=(np.int64(3), 1))
    with pytest.raises(InputError, match=r"steps is 2\.5; expected an integer of at least 1"):
        check_count(steps=(2.5, 1))
