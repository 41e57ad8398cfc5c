"""MOSSA (Zhao, Ziser & Cohen): which layers hold which tasks after tuning."""

from mechclust.studies.mossa.config import MossaConfig, OriginConfig

__all__ = ["MossaConfig", "OriginConfig"]
