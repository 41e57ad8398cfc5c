"""The sandbox: any model with hooks over its training, as a figure, a film, or an interactive page."""

from mechclust.sandbox.curves import Curves
from mechclust.sandbox.figure import sandbox_figure
from mechclust.sandbox.film import sandbox_film
from mechclust.sandbox.page import sandbox_page
from mechclust.sandbox.panels import SandboxPanel
from mechclust.sandbox.recorder import SandboxRecorder, record_sandbox
from mechclust.sandbox.run import SandboxRun
from mechclust.sandbox.sequences import FollowedSequences

__all__ = [
    "Curves",
    "FollowedSequences",
    "SandboxPanel",
    "SandboxRecorder",
    "SandboxRun",
    "record_sandbox",
    "sandbox_figure",
    "sandbox_film",
    "sandbox_page",
]
