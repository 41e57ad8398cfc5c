"""Task clusters (Wu & Varshney): hidden states of a causal LM cluster by task."""

from mechclust.studies.task_clusters.config import TaskClustersConfig

__all__ = ["TaskClustersConfig"]
