"""Topic structure (Li, Li & Risteski): a one-layer masked LM encodes topics."""

from mechclust.studies.topic_structure.blocks import TopicBlocks, topic_blocks
from mechclust.studies.topic_structure.config import Beyond, TopicStructureConfig, TopicTransformerConfig
from mechclust.studies.topic_structure.optimum import DocumentMoments, minimiser, moments_of, population_moments
from mechclust.studies.topic_structure.stages import TwoStages, share_covered, two_stages
from mechclust.studies.topic_structure.tables import TableTopics, table_topics
from mechclust.studies.topic_structure.theory import stage_one_value, theory_gap

__all__ = [
    "Beyond",
    "DocumentMoments",
    "TableTopics",
    "TopicBlocks",
    "TopicStructureConfig",
    "TopicTransformerConfig",
    "TwoStages",
    "minimiser",
    "moments_of",
    "population_moments",
    "share_covered",
    "stage_one_value",
    "table_topics",
    "theory_gap",
    "topic_blocks",
    "two_stages",
]
