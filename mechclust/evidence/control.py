"""A finding's control: its parts, measured where the finding should not hold."""

from __future__ import annotations

from dataclasses import dataclass

from mechclust.evidence.parts import Part
from mechclust.evidence.verdict import Verdict, joint_verdict
from tasks.text.visible import quoted


@dataclass(frozen=True, repr=False)
class Control:
    """A finding's parts, measured on a control in which the finding should not hold.

    Attributes:
        name: the control, such as ``"untrained networks"``.
        parts: with the names, bounds and methods of the finding's parts. Make both with one function.

    Example:
        >>> from mechclust.evidence import Bound, mean_part
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
