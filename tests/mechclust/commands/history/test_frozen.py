"""What the command concludes from curves made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mechclust.commands.history.curves import Curve
from mechclust.commands.history.integrity import Defect
from tests.frozen import check_frozen, said_by
from tests.mechclust.commands.history.made import made_curve, made_result

N = 6
LOW = 0.001


def drawn_curve(name: str, seed: int, width: int = 4) -> Curve:
    """A curve of values in no order, with intervals, of which the upper layers cross chance at some checkpoint."""
    draw = np.random.default_rng(seed)
    value = draw.random((N, width))
    p = np.where(np.arange(N)[:, None] >= np.arange(width)[::-1] + 1, LOW, 0.5)
    p[:, 0] = 0.4
    ends = {"value_low": value - 0.1, "value_high": value + 0.05}
    halves = value[..., None] + draw.normal(0, 0.02, (N, width, 8))
    return made_curve(p, name, value=value, halves=halves, n_units=30, n=list(range(20, 20 + N)), **ends)


def of_all_measures() -> dict[str, Any]:
    curves = [
        drawn_curve("clusters", 0),
        drawn_curve("cka_last", 1),
        drawn_curve("cka_first", 2),
        drawn_curve("cka_previous", 3),
        drawn_curve("heads", 4, 3),
        drawn_curve("topics", 5, 2),
        drawn_curve("LinearDecodability_accuracy", 6),
    ]
    return said_by(made_result(curves, flagged=(2,)))


def of_undefined() -> dict[str, Any]:
    """Many defects; a curve that is measured at two checkpoints only, and one nowhere."""
    some = drawn_curve("clusters", 7).without([1, 3, 4])
    none = drawn_curve("topics", 8).without(range(N))
    result = made_result([some, none], flagged=(4,))
    defects = [Defect("last", (i % 3,), "stale") for i in range(11)]
    return said_by(replace(result, findings=[*result.findings, *defects][1:], starts_random=False))


def of_two_checkpoints() -> dict[str, Any]:
    curve = drawn_curve("cka_last", 9)
    two = {name: getattr(curve, name)[:2] for name in ("value", "low", "high", "p", "n", "value_low", "value_high")}
    return said_by(made_result([replace(curve, **two, halves=None)]))


CASES = {"history": of_all_measures, "history undefined": of_undefined, "history of two": of_two_checkpoints}


@pytest.mark.parametrize("name", CASES)
def test_conclusions_are_the_recorded_ones(name: str) -> None:
    check_frozen(name, CASES[name])
