"""Drawing functions shared by the figures of this study."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from mechclust.studies.clustering_heads.config import SOLVED

SHARE_SOLVED = f"share above {SOLVED}"
_INK = "#555555"  # of guides and remarks
GUIDE: dict[str, Any] = {"color": _INK, "ls": ":", "lw": 1}  # a threshold, or the level of guessing
REMARK: dict[str, Any] = {"color": _INK, "fontsize": 8}


def title_left(axis: Axes, text: str) -> None:
    """Write a small title at the left."""
    axis.set_title(text, loc="left", fontsize=10)


def name_guide(axis: Axes, y: float, text: str) -> None:
    """Write the meaning of a horizontal guide above its right end."""
    axis.annotate(text, (1, y), xycoords=("axes fraction", "data"), ha="right", xytext=(0, 2),
                  textcoords="offset points", **REMARK)  # fmt: skip


def draw_cloud(
    axis: Axes, x: float, values: Float[np.ndarray, "unit"], spread: Float[np.ndarray, "unit"], color: str
) -> None:
    """Draw a point for each unit at ``x``, moved sideways so that equal ones show."""
    axis.plot(x + spread, values, "o", color=color, ms=4, mew=0, alpha=0.6)
