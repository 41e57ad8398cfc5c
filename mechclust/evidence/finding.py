"""A finding: a statement, its measured values, a control's values, and the verdict on both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Shaped

from mechclust.evidence.bounds import Bound, Verdict, Within, joint_verdict, verdict_of
from mechclust.evidence.intervals import (
    Interval,
    mean_interval,
    paired_share_interval,
    prediction_interval,
    share_interval,
)
from tasks import InputError
from tasks.text.visible import quoted

Method = Literal["mean", "one more run", "share", "paired shares", "resampled", "worst"]
Kind = Literal["finding", "check"]
Shown = Literal["headline", "page", "table"]
SEEDS_ADDED = "seeds added"  # ``EarlierRun.changed`` if it is this run with fewer seeds


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
    bound: Bound | Within
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
    def verdict(self) -> Verdict:
        """Judge the interval by the bound. For a check, judge the worst value. Undefined values violate every bound.

        A single value is not tested, unless it is a check's or came with its interval (``resampled_part``).
        """
        if not self.values:
            return "not tested"
        if self.method == "worst":
            return "holds" if self.bound.met(self.bound.worst(self.values)) else "does not hold"
        if len(self.values) == 1 and self.method != "resampled":
            return "not tested"
        return verdict_of(self.bound, self.interval)


def mean_part(name: str, values: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | Within) -> Part:
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


def prediction_part(name: str, values: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | Within) -> Part:
    """Judge by the interval in which one further run falls, to compare with a paper's single run.

    Arguments as ``mean_part``.
    """
    numbers = _numbers(values)
    return Part(name, numbers, bound, prediction_interval(numbers), "one more run")


def share_part(name: str, values: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | Within) -> Part:
    """Judge a share by Wilson's interval. Arguments as ``mean_part``, with values between 0 and 1.

    Raises:
        InputError: for a value below 0 or above 1.
    """
    numbers = _numbers(values)
    return Part(name, numbers, bound, share_interval(numbers) if len(numbers) > 1 else None, "share")


def paired_share_part(
    name: str, differences: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | Within
) -> Part:
    """Judge the difference of two shares of one set of units.

    Arguments as ``mean_part``. Each unit's difference is 1, 0 or -1: the first outcome minus the second.
    """
    numbers = _numbers(differences)
    return Part(name, numbers, bound, paired_share_interval(numbers) if len(numbers) > 1 else None, "paired shares")


def resampled_part(
    name: str, values: Sequence[float] | Shaped[np.ndarray, "unit"], interval: Interval | None, bound: Bound | Within
) -> Part:
    """Judge a value by a given interval, such as a bootstrap over tasks.

    Args:
        name: the quantity, or ``""`` if the finding's statement says it.
        values: usually one value. Of several, the mean is reported.
        interval: the ends of the 95% interval, which ``values`` alone do not give. ``None`` leaves the part undecided.
        bound: the bound that the value must satisfy.

    Raises:
        InputError: if the interval's lower end is above the upper one.
    """
    if interval is not None and interval[0] > interval[1]:
        low, high = interval
        raise InputError(f"{name or 'a part'} has the interval {low:g} to {high:g}; give the lower end first")
    ends = None if interval is None else (float(interval[0]), float(interval[1]))
    return Part(name, _numbers(values), bound, ends, "resampled")


def check_part(name: str, values: Sequence[float] | Shaped[np.ndarray, "unit"], bound: Bound | Within) -> Part:
    """Judge the worst value, as a check does. Arguments as ``mean_part``."""
    return Part(name, _numbers(values), bound, None, "worst")


def _numbers(values: Sequence[float] | Shaped[np.ndarray, "unit"]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


@dataclass(frozen=True, repr=False)
class Control:
    """A finding's parts, measured on a control in which the finding should not hold.

    Attributes:
        name: the control, such as ``"untrained networks"``.
        parts: with the names, bounds and methods of the finding's parts. Make both with one function.

    Example:
        >>> Control("untrained networks", (mean_part("", [0.1, 0.2, 0.1], Bound(">", 0.5)),)).verdict
        'does not hold'
    """

    name: str
    parts: tuple[Part, ...]

    def __repr__(self) -> str:
        return f"Control({quoted(self.name)}, {len(self.parts)} parts: {self.verdict})"

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on the control, judged like the finding."""
        return joint_verdict(part.verdict for part in self.parts)


@dataclass(frozen=True)
class EarlierRun:
    """An earlier run's verdict on a finding.

    Attributes:
        run: which, such as its date and seeds.
        seeds: how many.
        verdict: of that run.
        changed: the change made after it.
    """

    run: str
    seeds: int
    verdict: Verdict
    changed: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Finding:
    """A statement with the values that decide it.

    Attributes:
        id: short name, such as ``"T1"``.
        statement: the claim in words.
        source: where the claim comes from.
        parts: all of these must hold. The first has the main value. Empty: not measured.
        control: these parts measured on a control. ``None``: not measured.
        unit: the unit of the values, such as ``"seeds"`` or ``"tasks"``.
        kind: ``"finding"``, or ``"check"``: an identity of the software, or a fact that holds by construction.
        shown: ``"headline"``: on the page, and in the family that Holm's correction is over. ``"page"``: on the page.
            ``"table"``: in ``findings.csv`` only.
        paper: the source's own value, or ``None`` if it gives none.
        not_tested: why this run cannot test it, or ``""`` if it can.
        note: a caveat for the reader.
        history: verdicts of earlier runs.

    Example:
        >>> trained = mean_part("", [0.7, 0.8, 0.75], Bound(">", 0.5))
        >>> untrained = mean_part("", [0.1, 0.2, 0.1], Bound(">", 0.5))
        >>> finding = Finding(id="X1", statement="accuracy is above a half", source="ours", parts=(trained,),
        ...                   control=Control("untrained networks", (untrained,)))
        >>> finding.verdict, finding.control.verdict
        ('holds', 'does not hold')
    """

    id: str
    statement: str
    source: str
    parts: tuple[Part, ...]
    control: Control | None = None
    unit: str = "seeds"
    kind: Kind = "finding"
    shown: Shown = "page"
    paper: float | None = None
    not_tested: str = ""
    note: str = ""
    history: tuple[EarlierRun, ...] = ()

    def __post_init__(self) -> None:
        if self.control is not None and self.parts:
            expected = [(part.name, part.bound, part.method) for part in self.parts]
            if [(part.name, part.bound, part.method) for part in self.control.parts] != expected:
                raise InputError(f"the control of {self.id} has other names, bounds or methods; use those of its parts")

    def __repr__(self) -> str:
        return f"Finding({self.id!r}, {quoted(self.statement)}: {self.verdict})"

    @property
    def verdict(self) -> Verdict:
        """Return the verdict of the parts and of the control. ``judge`` lists the words."""
        return judge(self)

    @property
    def exploratory(self) -> bool:
        """Whether seeds were added after a verdict had been seen, so that the bound was not set before the run."""
        return any(run.changed.startswith(SEEDS_ADDED) for run in self.history)

    @property
    def measured(self) -> float | None:
        """The main value, or ``None``."""
        return self.parts[0].measured if self.parts else None

    @property
    def interval(self) -> Interval | None:
        """The 95% interval of the main value, or ``None``."""
        return self.parts[0].interval if self.parts else None

    @property
    def why_not(self) -> str:
        """Why it is not tested, or ``""``."""
        if self.verdict != "not tested":
            return ""
        if self.not_tested:
            return self.not_tested
        missing = [part.name or "the value" for part in self.parts if not part.values]
        if missing or not self.parts:
            return f"{', '.join(missing) or 'the value'} could not be measured"
        return f"only one value ({self.unit})" if self.unit != "seeds" else "one seed"

    @property
    def remarks(self) -> list[str]:
        """Remarks for the reader: why it is not tested, undefined values, and the note."""
        texts = [f"not tested: {self.why_not}" if self.why_not else ""]
        for part in self.parts:
            undefined = sum(not math.isfinite(value) for value in part.values)
            if undefined:
                what = part.name or "the value"
                texts.append(f"{what} is undefined in {undefined} of {len(part.values)} {self.unit}")
        texts.append(self.note)
        return [text for text in texts if text]


def judge(finding: Finding) -> Verdict:
    """Return the verdict on a finding, which is ``"not specific"`` if the finding holds for its control as well.

    Returns:
        ``"holds"`` if every part holds, and the control does not (nor if it is undecided, or was not measured).
        ``"not specific"`` if every part holds, and the control does too. ``"does not hold"`` if a part does not hold.
        ``"not tested"`` if ``not_tested`` is set, or a part has no value or a single one. ``"undecided"`` otherwise.
    """
    if finding.not_tested:
        return "not tested"
    verdict = joint_verdict(part.verdict for part in finding.parts)
    if verdict == "holds" and finding.control is not None and finding.control.verdict == "holds":
        return "not specific"
    return verdict
