"""What do hidden states cluster by: the task, the output, or neither? Factors of the task-cluster study, one by one."""

from mechclust.studies.cluster_factors.config import ClusterFactorsConfig

__all__ = ["ClusterFactorsConfig"]
