"""A finding and its control have the same bounds and methods."""

from __future__ import annotations

import numpy as np
import pytest

from mechclust.evidence import Bound, mean_part, share_part
from mechclust.evidence.compared import compared, compared_with_untrained

BOUNDS = {"accuracy": Bound(">=", 0.8), "ARI": Bound("<=", 0.3)}
ACCURACY = np.array([[0.1, 0.5, 0.9], [0.2, 0.6, 1.0]])
ARI = np.array([[0.0, 0.1, 0.2], [0.1, 0.1, 0.1]])


def test_the_control_is_judged_as_the_finding():
    values = [ACCURACY[:, -1], ARI[:, -1]]
    on_control = [ACCURACY[:, 1], ARI[:, 1]]
    finding = compared("X1", "read", BOUNDS, values, "another", on_control, shares=["accuracy"], source="ours")
    assert finding.parts == (
        share_part("accuracy", [0.9, 1.0], BOUNDS["accuracy"]),
        mean_part("ARI", [0.2, 0.1], BOUNDS["ARI"]),
    )
    assert finding.control.name == "another"
    assert [part.values for part in finding.control.parts] == [(0.5, 0.6), (0.1, 0.1)]
    assert [part.method for part in finding.control.parts] == ["share", "mean"]


def test_untrained_networks_are_the_first_checkpoint():
    finding = compared_with_untrained("X1", "read", BOUNDS, [ACCURACY, ARI], source="ours", shown="headline")
    assert [part.values for part in finding.parts] == [(0.9, 1.0), (0.2, 0.1)]
    assert finding.control.name == "untrained networks"
    assert [part.values for part in finding.control.parts] == [(0.1, 0.2), (0.0, 0.1)]
    assert finding.shown == "headline"


def test_each_bound_needs_values():
    with pytest.raises(ValueError, match="zip"):
        compared("X1", "read", BOUNDS, [ACCURACY[:, 0]], "another", [ACCURACY[:, 0]], source="ours")
