"""Clustering heads in models of several layers and heads: trained from scratch, and pretrained."""

from typing import Any

from mechclust.studies.heads_in_models.config import HeadsInModelsConfig
from mechclust.studies.heads_in_models.prompts import WordPrompts

__all__ = ["HeadsInModelsConfig", "PlantedHeads", "WordPrompts"]


def __getattr__(name: str) -> Any:
    """The class that needs TransformerLens, whose import takes seconds, is imported when asked for."""
    if name != "PlantedHeads":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mechclust.studies.heads_in_models.planted import PlantedHeads

    return PlantedHeads
