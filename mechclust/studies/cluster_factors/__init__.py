"""What do hidden states cluster by: the task, the output, or neither? The task-cluster study, one factor at a time."""

from mechclust.studies.cluster_factors.config import ClusterFactorsConfig

__all__ = ["ClusterFactorsConfig"]
