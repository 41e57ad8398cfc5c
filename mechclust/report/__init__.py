"""What studies and commands show: figures, tables, one page for a run."""

from mechclust.report.analysis import Analysis, Panel
from mechclust.report.layer_groups import (
    LayerGroups,
    LayerGroupsInterval,
    crossover,
    layer_groups,
    layer_groups_interval,
)
from mechclust.report.page import render_report, write_report
from mechclust.report.task_curves import TaskCurves, bootstrap

__all__ = [
    "Analysis",
    "LayerGroups",
    "LayerGroupsInterval",
    "Panel",
    "TaskCurves",
    "bootstrap",
    "crossover",
    "layer_groups",
    "layer_groups_interval",
    "render_report",
    "write_report",
]
