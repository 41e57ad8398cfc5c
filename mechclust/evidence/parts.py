"""Parts of a finding: measured values, their interval, and the bound that they must satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Shaped

from mechclust.evidence.bounds import Bound, TwoSidedBound
from mechclust.evidence.intervals import (
    Interval,
    mean_interval,
    paired_share_interval,
    prediction_interval,
    share_interval,
)
from mechclust.evidence.measured_numbers import measured_number
from mechclust.evidence.verdict import Verdict, verdict_of
from tasks import InputError
from tasks.text.visible import quoted

Method = Literal["mean", "one more run", "share", "paired shares", "resampled", "worst"]


@dataclass(frozen=True, repr=False)
class Part:
    """A measured value and the bound that it must satisfy.

    The functions below make parts: ``mean_part``, ``share_part``, ``paired_share_part``, ``prediction_part``,
    ``resampled_part`` and ``check_part``.

    Attributes:
        name: the quantity, or ``""`` if the finding's statement says it.
        values: one for each unit, such as a seed.
        bound: the bound that the value must satisfy.
        interval: the ends of the 95% interval, or ``None`` if there is none, as for a check.
        method: how the interval was made. ``"worst"``: without an interval, by the worst value.
    """

    name: str
    values: tuple[float, ...]
    bound: Bound | TwoSidedBound
    interval: Interval | None
    method: Method

    def __repr__(self) -> str:
        return f"Part({quoted(self.name)}, {len(self.values)} values: {self.verdict})"

    @property
    def required(self) -> str:
        """The bound behind the part's name, such as ``overlap 0: >= 0.5``, or alone if it has no name."""
        return f"{self.name}: {self.bound}" if self.name else str(self.bound)

    @property
    def measured(self) -> float | None:
        """Return the mean, or for a check the worst value. ``None`` for no values, or if one is not finite."""
        if not self.values or not np.isfinite(self.values).all():
            return None
        return self.bound.worst(self.values) if self.method == "worst" else float(np.mean(self.values))

    @property
    def measured_text(self) -> str:
        """Return the value with its 95% interval: ``0.937 (0.886 to 0.989)``. ``-`` without a value."""
        if self.measured is None:
            return "-"
        number = measured_number(self.measured)
        if self.interval is None:
            return number
        low, high = self.interval
        return f"{number} ({measured_number(low)} to {measured_number(high)})"

    @property
    def verdict(self) -> Verdict:
        """Judge the interval by the bound. For a check, judge the worst value.

        A single value is not tested, unless it is a check's or came with its interval (``resampled_part``). If a value
        is not finite, a check does not hold, and any other part is undecided.
        """
        if not self.values:
            return "not tested"
        if self.method == "worst":
            return "holds" if self.measured is not None and self.bound.met(self.measured) else "does not hold"
        if len(self.values) == 1 and self.method != "resampled":
            return "not tested"
        return "undecided" if self.measured is None else verdict_of(self.bound, self.interval)


def mean_part(name: str, values: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | TwoSidedBound) -> Part:
    """Judge a mean by Student's interval.

    Args:
        name: the quantity, or ``""`` if the finding's statement says it.
        values: one for each unit, such as a seed.
        bound: the bound that their mean must satisfy.

    Example:
        >>> mean_part("", [0.7, 0.8, 0.75], Bound(">", 0.5))
        Part('', 3 values: holds)
    """
    numbers = _numbers(values)
    return Part(name, numbers, bound, mean_interval(numbers), "mean")


def prediction_part(
    name: str, values: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | TwoSidedBound
) -> Part:
    """Judge by the interval in which one further run falls, to compare with a paper's single run.

    Arguments as ``mean_part``.
    """
    numbers = _numbers(values)
    return Part(name, numbers, bound, prediction_interval(numbers), "one more run")


def share_part(name: str, values: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | TwoSidedBound) -> Part:
    """Judge a share by Wilson's interval. Arguments as ``mean_part``, with values between 0 and 1.

    Raises:
        InputError: for a value below 0 or above 1.
    """
    numbers = _numbers(values)
    return Part(name, numbers, bound, share_interval(numbers) if len(numbers) > 1 else None, "share")


def paired_share_part(
    name: str, differences: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | TwoSidedBound
) -> Part:
    """Judge the difference of two shares of one set of units.

    Arguments as ``mean_part``. Each unit's difference is 1, 0 or -1: the first outcome minus the second.

    Raises:
        InputError: for another difference.
    """
    numbers = _numbers(differences)
    return Part(name, numbers, bound, paired_share_interval(numbers) if len(numbers) > 1 else None, "paired shares")


def resampled_part(
    name: str,
    values: Sequence[float] | Shaped[np.ndarray, "unit"],
    interval: Interval | None,
    bound: Bound | TwoSidedBound,
) -> Part:
    """Judge a value by a given interval, such as a bootstrap over tasks.

    Args:
        name: the quantity, or ``""`` if the finding's statement says it.
        values: usually one value. Of several, the mean is reported.
        interval: the ends of the 95% interval, which ``values`` alone do not give. ``None``, or an end that is not
            finite, leaves the part undecided.
        bound: the bound that the value must satisfy.

    Raises:
        InputError: if the interval's lower end is above the upper one.
    """
    if interval is not None and interval[0] > interval[1]:
        low, high = interval
        raise InputError(f"{name or 'a part'} has the interval {low:g} to {high:g}; give the lower end first")
    ends = None
    if interval is not None and np.isfinite(interval).all():
        ends = (float(interval[0]), float(interval[1]))
    return Part(name, _numbers(values), bound, ends, "resampled")


def check_part(name: str, values: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | TwoSidedBound) -> Part:
    """Judge the worst value, as a check does. Arguments as ``mean_part``."""
    return Part(name, _numbers(values), bound, None, "worst")


def _numbers(values: Sequence[float] | Shaped[np.ndarray, "unit"]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
