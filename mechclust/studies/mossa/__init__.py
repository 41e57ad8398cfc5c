"""MOSSA (Zhao, Ziser & Cohen): which layers hold which tasks after tuning."""

from mechclust.studies.mossa.config import MossaConfig
from mechclust.studies.mossa.layer_groups import LayerGroups, crossover, layer_groups

__all__ = ["LayerGroups", "MossaConfig", "crossover", "layer_groups"]
