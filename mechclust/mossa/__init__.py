"""MOSSA: curves of similarity with single-task controls, groups of layers, and the findings on them."""

from mechclust.mossa.crossovers import crossover
from mechclust.mossa.layer_groups import LayerGroups, LayerGroupsInterval, layer_groups_interval
from mechclust.mossa.task_bootstrap import task_bootstrap_interval
from mechclust.mossa.task_curves import TaskCurves

__all__ = [
    "LayerGroups",
    "LayerGroupsInterval",
    "TaskCurves",
    "crossover",
    "layer_groups_interval",
    "task_bootstrap_interval",
]
