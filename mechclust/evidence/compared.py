"""Findings about values of units, such as means, each judged together with a control."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from mechclust.evidence.bounds import Bound, TwoSidedBound
from mechclust.evidence.control import Control
from mechclust.evidence.finding import Finding
from mechclust.evidence.parts import Part, mean_part, share_part

_Units = Sequence[float] | Shaped[np.ndarray, "_"]  # values and control may have different units
_Curve = Float[np.ndarray, "unit step"]
_MakePart = Callable[[str, Any, Bound | TwoSidedBound], Part]


def compared(
    id: str,
    statement: str,
    bounds: Mapping[str, Bound | TwoSidedBound],
    values: Sequence[_Units],
    control: str,
    control_values: Sequence[_Units],
    *,
    shares: Sequence[str] = (),
    make_part: Mapping[str, _MakePart] = {},
    **details: Any,
) -> Finding:
    """Return a finding whose parts and control's parts share their bounds. Most parts are means over units.

    Args:
        id: short name.
        statement: the claim in words.
        bounds: of each part, by its name.
        values: of each part, in the order of the bounds.
        control: the control in words.
        control_values: of each part, measured on the control.
        shares: names of parts that are shares, judged by Wilson's interval.
        make_part: makes a part that is neither a share nor a mean, by its name, such as ``paired_share_part``.
        details: further fields of ``Finding``, such as ``source``.

    Example:
        >>> trained = np.array([0.7, 0.8, 0.75])
        >>> untrained = np.array([0.1, 0.2, 0.1])
        >>> above = {"": Bound(">", 0.5)}
        >>> compared("X1", "ARI is above a half", above, [trained], "untrained networks", [untrained], source="ours")
        Finding('X1', 'ARI is above a half': holds)
    """
    make = {**dict.fromkeys(bounds, mean_part), **dict.fromkeys(shares, share_part), **make_part}
    parts = _parts(bounds, values, make)
    control_parts = _parts(bounds, control_values, make)
    return Finding(id=id, statement=statement, parts=parts, control=Control(control, control_parts), **details)


def compared_with_untrained(
    id: str, statement: str, bounds: Mapping[str, Bound | TwoSidedBound], curves: Sequence[_Curve], **details: Any
) -> Finding:
    """Return a finding about the last checkpoint whose control are the networks at the first, before training.

    Arguments as ``compared``, with a curve over checkpoints for each part.
    """
    end = [curve[:, -1] for curve in curves]
    start = [curve[:, 0] for curve in curves]
    return compared(id, statement, bounds, end, "untrained networks", start, **details)


def _parts(
    bounds: Mapping[str, Bound | TwoSidedBound], values: Sequence[_Units], make: Mapping[str, _MakePart]
) -> tuple[Part, ...]:
    return tuple(make[name](name, units, bounds[name]) for name, units in zip(bounds, values, strict=True))
