"""The visual sandbox: one network over its training, as a figure, a film, or an interactive page."""

from mechclust.views.sandbox.curves import Curves
from mechclust.views.sandbox.data import SandboxRun, sandbox_run
from mechclust.views.sandbox.figure import sandbox_figure, sandbox_film
from mechclust.views.sandbox.page import sandbox_page
from mechclust.views.sandbox.sequences import ProbeSequences

__all__ = [
    "Curves",
    "ProbeSequences",
    "SandboxRun",
    "sandbox_figure",
    "sandbox_film",
    "sandbox_page",
    "sandbox_run",
]
