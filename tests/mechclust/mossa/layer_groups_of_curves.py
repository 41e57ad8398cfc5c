"""Layer groups of one pair of curves that are written down."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mechclust.mossa.layer_groups import LayerGroups, group_boundaries


def layer_groups(*curves: ArrayLike) -> LayerGroups:
    """Return the groups of base, tuned, spread and perhaps dimensions, by layer from 1."""
    arrays = [np.asarray(values, dtype=float) for values in curves]
    shared, end = (int(layer) for layer in group_boundaries(*arrays))
    return LayerGroups(range(1, shared + 1), range(shared + 1, end + 1), range(end + 1, len(arrays[0]) + 1))
