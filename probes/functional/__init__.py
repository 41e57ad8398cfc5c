"""Pure functions behind the probes: arrays in, numbers out; no hooks, no state."""

from probes.functional.ari import adjusted_rand_null, adjusted_rand_score, contingency
from probes.functional.dynamics import TwoStages, covered, two_stages
from probes.functional.topic_vectors import topic_blocks, topic_similarity
from probes.functional.topics import topic_attention

__all__ = [
    "TwoStages",
    "adjusted_rand_null",
    "adjusted_rand_score",
    "contingency",
    "covered",
    "topic_attention",
    "topic_blocks",
    "topic_similarity",
    "two_stages",
]
