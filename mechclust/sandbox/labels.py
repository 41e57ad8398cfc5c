"""Place the labels of points so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

# Above, right, left, below, and the corners, as shares of a label's width and height.
_PLACES = ((0, 1), (1, 0), (-1, 0), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


def place_labels(
    points: Float[np.ndarray, "n 2"], sizes: Sequence[tuple[float, float]], radius: float
) -> list[tuple[float, float] | None]:
    """Return the centre of each point's label, or ``None`` if there is no room beside the point.

    Labels are placed one after another, each at the first of eight places around its point without overlap with another
    label or point.

    Args:
        points: in pixels or any other unit of length.
        sizes: width and height of each label, in that unit.
        radius: of a point's marker.

    Example:
        >>> place_labels(np.array([[0.0, 0.0], [0.0, 6.0], [50.0, 0.0]]), [(8.0, 8.0)] * 3, 3.0)
        [(7.0, 0.0), (0.0, 13.0), (50.0, 7.0)]
    """
    boxes: list[tuple[float, float, float, float]] = []
    centres: list[tuple[float, float] | None] = []
    for i, ((x, y), (width, height)) in enumerate(zip(points, sizes, strict=True)):
        place = None
        others = np.delete(points, i, axis=0)
        for across, up in _PLACES if np.isfinite([x, y]).all() else ():
            at = (float(x + across * (width / 2 + radius)), float(y + up * (height / 2 + radius)))
            box = (at[0] - width / 2, at[0] + width / 2, at[1] - height / 2, at[1] + height / 2)
            free = all(box[0] >= b[1] or box[1] <= b[0] or box[2] >= b[3] or box[3] <= b[2] for b in boxes)
            inside = (np.abs(others - at) < [width / 2 + radius / 2, height / 2 + radius / 2]).all(axis=1)
            if free and not inside.any():
                place = at
                boxes.append(box)
                break
        centres.append(place)
    return centres
