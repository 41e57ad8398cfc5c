"""Findings: statements judged by their values and by the values of a control."""

from mechclust.evidence.bounds import Bound, TwoSidedBound
from mechclust.evidence.control import Control
from mechclust.evidence.families import family_notes
from mechclust.evidence.finding import Finding
from mechclust.evidence.findings import Findings, load_findings
from mechclust.evidence.parts import (
    Part,
    check_part,
    mean_part,
    paired_share_part,
    prediction_part,
    resampled_part,
    share_part,
)
from mechclust.evidence.verdict import EarlierVerdict, Verdict

__all__ = [
    "Bound",
    "Control",
    "EarlierVerdict",
    "Finding",
    "Findings",
    "Part",
    "TwoSidedBound",
    "Verdict",
    "check_part",
    "family_notes",
    "load_findings",
    "mean_part",
    "paired_share_part",
    "prediction_part",
    "resampled_part",
    "share_part",
]
