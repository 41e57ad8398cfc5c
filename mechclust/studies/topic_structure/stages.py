"""When weights moved during training: shares of the total change, and the order of two stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from tasks import InputError

_LATE_SHARE = 0.1  # of its change, at which a late group counts as moving
_EARLY_SHARE = 0.5  # of its change, which the early group must have made


def share_covered(values: ArrayLike) -> Float[np.ndarray, "step"]:
    """Return the share of the change from the first value to the last that has been made at each step.

    NaN throughout if the last value equals the first. Values may lie outside ``[0, 1]``: nothing is clamped.

    Example:
        >>> share_covered([1.0, 2.0, 5.0]).tolist()
        [0.0, 0.25, 1.0]
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) < 2:
        raise InputError(f"values has shape {x.shape}; expected one number per step, at least two steps")
    way = x[-1] - x[0]
    return (x - x[0]) / way if way else np.full(len(x), np.nan)


class TwoStages(NamedTuple):
    """Verdict of ``two_stages``.

    Attributes:
        boundary: index of the first step at which a late group has moved, or ``None`` if none did.
        early: share of its change that the early group has made by then (NaN if undefined).
        holds: whether training went in two stages.
    """

    boundary: int | None
    early: float
    holds: bool


def two_stages(changes: Mapping[str, ArrayLike], early: str = "W_V", late: Sequence[str] = ("W_K", "W_Q")) -> TwoStages:
    """Judge whether one group of weights moves before others do.

    Stage 1 ends at the first step at which a late group has made a tenth of its change from the first step to the
    last. Training has two stages if the early group has by then made half of its own change.

    Args:
        changes: how far each group is from where it began, or its norm, by name: one number for each step.
        early: the group expected to move first.
        late: the groups expected to move afterwards.

    Raises:
        InputError: for a name that is not in ``changes``, or curves of different length.

    Example:
        >>> two_stages({"W_V": [0, 4, 5, 5], "W_K": [0, 0, 3, 9], "W_Q": [0, 0, 2, 9]})
        TwoStages(boundary=2, early=1.0, holds=True)
    """
    for name in (early, *late):
        if name not in changes:
            raise InputError(f"no curve of {name!r} (there are {', '.join(changes)})")
    shares = {name: share_covered(changes[name]) for name in (early, *late)}
    if len({len(curve) for curve in shares.values()}) > 1:
        raise InputError("the curves have different numbers of steps; expected one step axis for all")
    moved = np.any([shares[name] >= _LATE_SHARE for name in late], axis=0)
    if not moved.any():
        return TwoStages(None, float("nan"), False)
    boundary = int(moved.argmax())
    share = float(shares[early][boundary])
    return TwoStages(boundary, share, share >= _EARLY_SHARE)
