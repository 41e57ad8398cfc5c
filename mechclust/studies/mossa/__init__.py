"""MOSSA (Zhao, Ziser & Cohen): which layers hold which tasks after tuning."""

from mechclust.studies.mossa.config import MossaConfig

__all__ = ["MossaConfig"]
