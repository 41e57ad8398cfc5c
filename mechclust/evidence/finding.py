"""A finding: a statement, the parts that decide it, a control, and the verdict on both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mechclust.evidence.control import Control
from mechclust.evidence.intervals import Interval
from mechclust.evidence.parts import Part
from mechclust.evidence.verdict import MARKS, SEEDS_ADDED, EarlierVerdict, Verdict, joint_verdict
from tasks import InputError
from tasks.text.visible import quoted

Kind = Literal["finding", "check"]
Shown = Literal["headline", "page", "table"]


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
        >>> from mechclust.evidence import Bound, mean_part
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
    history: tuple[EarlierVerdict, ...] = ()

    def __post_init__(self) -> None:
        if self.control is not None and self.parts:
            expected = [(part.name, part.bound, part.method) for part in self.parts]
            if [(part.name, part.bound, part.method) for part in self.control.parts] != expected:
                raise InputError(f"the control of {self.id} has other names, bounds or methods; use those of its parts")

    def __repr__(self) -> str:
        return f"Finding({self.id!r}, {quoted(self.statement)}: {self.verdict})"

    @property
    def verdict(self) -> Verdict:
        """Return the verdict of the parts and of the control.

        Returns:
            ``"holds"`` if every part holds, and the control does not (nor if it is undecided, or was not measured).
            ``"not specific"`` if every part holds, and the control does too. ``"does not hold"`` if a part does not
            hold. ``"not tested"`` if ``not_tested`` is set, or a part has no value or a single one. ``"undecided"``
            otherwise.
        """
        if self.not_tested:
            return "not tested"
        verdict = joint_verdict(part.verdict for part in self.parts)
        if verdict == "holds" and self.control is not None and self.control.verdict == "holds":
            return "not specific"
        return verdict

    @property
    def verdict_text(self) -> str:
        """Return the verdict with its mark: ``✓ holds``, ``✓ holds (exploratory)``, ``– not tested: one seed``."""
        text = f"{MARKS[self.verdict]} {self.verdict}"
        if self.verdict == "not tested":
            return f"{text}: {self.why_not}"
        return f"{text} (exploratory)" if self.exploratory else text

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


def finding_order(finding: Finding) -> int:
    """Return the number in a finding's id, such as 12 for ``"T12"``, to sort by."""
    return int(finding.id[1:])
