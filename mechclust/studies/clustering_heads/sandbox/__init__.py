"""The sandbox of one small network over its training, with all that two dimensions show."""

from mechclust.studies.clustering_heads.sandbox.data import sandbox_run

__all__ = ["sandbox_run"]
