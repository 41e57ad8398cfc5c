"""Clustering heads in models of several layers and heads: trained from scratch, and pretrained."""

from mechclust.studies.heads_in_models.config import HeadsInModelsConfig
from mechclust.studies.heads_in_models.prompts import WordPrompts

__all__ = ["HeadsInModelsConfig", "WordPrompts"]
