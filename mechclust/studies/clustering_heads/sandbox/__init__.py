"""The visual sandbox: one network over its training, as a figure, a film, or an interactive page."""

from mechclust.studies.clustering_heads.sandbox.curves import Curves
from mechclust.studies.clustering_heads.sandbox.data import SandboxRun, sandbox_run
from mechclust.studies.clustering_heads.sandbox.figure import sandbox_figure, sandbox_film
from mechclust.studies.clustering_heads.sandbox.page import sandbox_page
from mechclust.studies.clustering_heads.sandbox.sequences import ProbeSequences

__all__ = [
    "Curves",
    "ProbeSequences",
    "SandboxRun",
    "sandbox_figure",
    "sandbox_film",
    "sandbox_page",
    "sandbox_run",
]
