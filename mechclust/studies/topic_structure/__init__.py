"""Topic structure (Li, Li & Risteski): a one-layer masked LM encodes topics."""

from mechclust.studies.topic_structure.config import TopicTransformerConfig

__all__ = ["TopicTransformerConfig"]
