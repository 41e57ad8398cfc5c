"""Labels of points never lie on one another."""

from __future__ import annotations

import numpy as np
import pytest

from mechclust.sandbox.labels import place_labels


@pytest.mark.parametrize("spread", [200.0, 20.0, 2.0, 0.0])
def test_labels_cover_neither_labels_nor_points(spread):
    points = np.random.default_rng(0).uniform(0, max(spread, 1e-9), (14, 2))
    sizes = [(6.0 + i % 3 * 6, 8.0) for i in range(14)]
    placed = [(i, at) for i, at in enumerate(place_labels(points, sizes, 3.0)) if at is not None]
    assert placed
    for n, (i, (x, y)) in enumerate(placed):
        width, height = sizes[i]
        for j, (a, b) in placed[:n]:
            assert abs(x - a) >= (width + sizes[j][0]) / 2 - 1e-9 or abs(y - b) >= (height + sizes[j][1]) / 2 - 1e-9
        others = np.delete(points, i, axis=0)
        assert not ((np.abs(others - [x, y]) < [width / 2, height / 2]).all(axis=1)).any()
    if spread == 200.0:
        assert len(placed) == 14


def test_a_point_that_is_not_finite_has_no_label():
    found = place_labels(np.array([[0.0, 0.0], [np.nan, 1.0]]), [(5.0, 5.0)] * 2, 3.0)
    assert found == [(0.0, 5.5), None]
