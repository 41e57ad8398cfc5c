"""The sandbox of one small network over its training, with everything that two dimensions can show."""

from mechclust.studies.clustering_heads.sandbox.data import is_drawn_whole, sandbox_run

__all__ = ["is_drawn_whole", "sandbox_run"]
