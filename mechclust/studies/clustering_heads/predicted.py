"""Findings with their data and the verdict that was predicted when their bounds were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mechclust.report.claims import Claim, EarlierRun
from mechclust.report.draws import Data
from mechclust.report.findings import Finding
from mechclust.report.verdicts import Interval, Verdict, paired_share_interval


@dataclass(frozen=True, kw_only=True)
class Predicted(Finding[Data]):
    """A finding of this study.

    Attributes:
        predicted: the verdict predicted when the bound was written.
        data: the measured data; ``None`` if there are none.
        why_not: why the claim cannot be tested; ``""`` if it can.
    """

    predicted: Verdict
    data: Data | None
    why_not: str = ""

    def judgement(self, history: Sequence[EarlierRun] = (), *, tested: bool = True) -> Claim:
        """The claim judged on its own data, with the predicted verdict in its note.

        Args:
            history: the verdicts of earlier runs.
            tested: whether a study of this size can test it.
        """
        if self.data is None:
            return self.lacking(self.why_not, history)
        said = replace(self, note="; ".join(filter(None, [f"predicted: {self.predicted}", self.note])))
        return said.judged(self.data, tested=tested, why_not=self.why_not, history=history)


def paired(after: str, before: str, part: str = "") -> Callable[[Data], dict[str, Interval | None]]:
    """The interval of a part that is the difference of two shares of the same seeds."""
    return lambda data: {part: paired_share_interval((data[after] - data[before]).tolist())}
