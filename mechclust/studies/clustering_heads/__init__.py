"""Clustering heads (Odonnat, Bouaziz & Cabannes): a head that maps equivalent inputs to one point."""

from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig, PoolingTransformerConfig

__all__ = ["ClusteringHeadsConfig", "PoolingTransformerConfig"]
