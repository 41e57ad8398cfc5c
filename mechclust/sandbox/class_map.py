"""The grid of the map of a network's answers."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def class_map_grid(half_height: float, cells: tuple[int, int]) -> Float[np.ndarray, "point 2"]:
    """Return the centres of a map's cells, row by row from below. The map is 1.6 times as wide as high.

    Example:
        >>> class_map_grid(1.0, (64, 40))[[0, -1]].round(3).tolist()
        [[-1.575, -0.975], [1.575, 0.975]]
    """
    across, up = cells
    x = ((np.arange(across) + 0.5) / across * 2 - 1) * half_height * across / up
    y = ((np.arange(up) + 0.5) / up * 2 - 1) * half_height
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
