"""``mechclust mossa``: which layers hold which tasks after a real model was tuned on many (Zhao, Ziser & Cohen)."""

from mechclust.commands.mossa.config import MossaConfig, presets
from mechclust.commands.mossa.result import MossaResult
from mechclust.commands.mossa.run import run_mossa

__all__ = ["MossaConfig", "MossaResult", "presets", "run_mossa"]
