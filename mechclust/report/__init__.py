"""What studies and commands conclude and show: claims, figures, tables, one page for a run."""

from mechclust.report.analysis import Analysis, Panel
from mechclust.report.claims import Claim, Claims, EarlierRun, claim, load_claims, with_severity
from mechclust.report.families import family_notes, holm
from mechclust.report.findings import Finding
from mechclust.report.layer_groups import (
    LayerGroups,
    LayerGroupsInterval,
    crossover,
    layer_groups,
    layer_groups_interval,
)
from mechclust.report.page import render_report, write_report
from mechclust.report.severity import Severity, severities_of, severity_of
from mechclust.report.task_curves import TaskCurves, bootstrap
from mechclust.report.verdicts import Bound, Part

__all__ = [
    "Analysis",
    "Bound",
    "Claim",
    "Claims",
    "EarlierRun",
    "Finding",
    "LayerGroups",
    "LayerGroupsInterval",
    "Panel",
    "Part",
    "Severity",
    "TaskCurves",
    "bootstrap",
    "claim",
    "crossover",
    "family_notes",
    "holm",
    "layer_groups",
    "layer_groups_interval",
    "load_claims",
    "render_report",
    "severities_of",
    "severity_of",
    "with_severity",
    "write_report",
]
