"""Clustering heads (Odonnat, Bouaziz & Cabannes): a head that maps equivalent inputs to one point."""

from typing import TYPE_CHECKING

from mechclust.lazy import lazily
from mechclust.studies.clustering_heads.ablations import Ablations
from mechclust.studies.clustering_heads.config import (
    ClusteringHeadsConfig,
    Curriculum,
    FullBatch,
    PoolingTransformerConfig,
    Starts,
)
from mechclust.studies.clustering_heads.curves import (
    Drop,
    Spike,
    first_above,
    first_below,
    loss_drops,
    loss_spikes,
)

if TYPE_CHECKING:  # imports TransformerLens, which takes seconds, so only when it is first used
    from mechclust.studies.clustering_heads.model import PoolingTransformer

__all__ = [
    "Ablations",
    "ClusteringHeadsConfig",
    "Curriculum",
    "Drop",
    "FullBatch",
    "PoolingTransformer",
    "PoolingTransformerConfig",
    "Spike",
    "Starts",
    "first_above",
    "first_below",
    "loss_drops",
    "loss_spikes",
]

__getattr__ = lazily(__name__, __file__)
