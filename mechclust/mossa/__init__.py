"""MOSSA: curves of similarity with single-task controls, groups of layers, and the findings on them."""

from mechclust.mossa.bootstrap import bootstrap_interval
from mechclust.mossa.layer_groups import (
    LayerGroups,
    LayerGroupsInterval,
    crossover,
    layer_groups,
    layer_groups_interval,
)
from mechclust.mossa.task_curves import TaskCurves

__all__ = [
    "LayerGroups",
    "LayerGroupsInterval",
    "TaskCurves",
    "bootstrap_interval",
    "crossover",
    "layer_groups",
    "layer_groups_interval",
]
