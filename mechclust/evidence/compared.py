"""Findings about means over units, judged beside the same means on a control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mechclust.evidence.bounds import Bound, Within
from mechclust.evidence.finding import Control, Finding, Part, mean_part, share_part

_Units = Float[np.ndarray, "_"]  # values and control may have different units
_Curve = Float[np.ndarray, "unit step"]


def compared(
    id: str,
    statement: str,
    bounds: Mapping[str, Bound | Within],
    values: Sequence[_Units],
    control: str,
    control_values: Sequence[_Units],
    *,
    shares: Sequence[str] = (),
    **details: Any,
) -> Finding:
    """Return a finding whose parts, and those of its control, are means over units with the same bounds.

    Args:
        id: short name.
        statement: what is stated.
        bounds: of each part, by its name.
        values: of each part, in the order of the bounds.
        control: what the control is.
        control_values: of each part, measured on the control.
        shares: names of parts that are shares, judged by Wilson's interval.
        details: further fields of ``Finding``, such as ``source``.

    Example:
        >>> trained = np.array([0.7, 0.8, 0.75])
        >>> untrained = np.array([0.1, 0.2, 0.1])
        >>> above = {"": Bound(">", 0.5)}
        >>> compared("X1", "ARI is above a half", above, [trained], "untrained networks", [untrained], source="ours")
        Finding('X1', 'ARI is above a half': holds)
    """
    parts = _parts(bounds, values, shares)
    control_parts = _parts(bounds, control_values, shares)
    return Finding(id=id, statement=statement, parts=parts, control=Control(control, control_parts), **details)


def beyond_untrained(
    id: str, statement: str, bounds: Mapping[str, Bound | Within], curves: Sequence[_Curve], **details: Any
) -> Finding:
    """Return a finding about the last checkpoint whose control are the networks at the first, before training.

    Arguments as ``compared``, with a curve over checkpoints for each part.
    """
    end = [curve[:, -1] for curve in curves]
    start = [curve[:, 0] for curve in curves]
    return compared(id, statement, bounds, end, "untrained networks", start, **details)


def _parts(bounds: Mapping[str, Bound | Within], values: Sequence[_Units], shares: Sequence[str]) -> tuple[Part, ...]:
    parts = []
    for (name, bound), of_units in zip(bounds.items(), values, strict=True):
        part = share_part if name in shares else mean_part
        parts.append(part(name, of_units, bound))
    return tuple(parts)
