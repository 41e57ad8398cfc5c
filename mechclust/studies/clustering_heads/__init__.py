"""Clustering heads (Odonnat, Bouaziz & Cabannes): a head that maps equivalent inputs to one point."""

from typing import Any

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


def __getattr__(name: str) -> Any:
    """Import the class that needs TransformerLens, which takes seconds, on first use."""
    if name != "PoolingTransformer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mechclust.studies.clustering_heads.model import PoolingTransformer

    return PoolingTransformer
