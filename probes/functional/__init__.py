"""Pure functions behind the probes: arrays in, numbers out; no hooks, no state."""

from probes.functional.ari import adjusted_rand_null, adjusted_rand_score, contingency
from probes.functional.clusters import IntegerWeights, integer_weights, nearest_centroid_accuracy, within_ratio
from probes.functional.curves import (
    Drop,
    Spike,
    first_above,
    first_below,
    loss_drops,
    loss_spikes,
    matched_quiet,
)
from probes.functional.dynamics import TwoStages, covered, two_stages
from probes.functional.geometry import boundary_distance, norm_jacobian
from probes.functional.topic_vectors import topic_blocks, topic_similarity
from probes.functional.topics import topic_attention

__all__ = [
    "Drop",
    "IntegerWeights",
    "Spike",
    "TwoStages",
    "adjusted_rand_null",
    "adjusted_rand_score",
    "boundary_distance",
    "contingency",
    "covered",
    "first_above",
    "first_below",
    "integer_weights",
    "loss_drops",
    "loss_spikes",
    "matched_quiet",
    "nearest_centroid_accuracy",
    "norm_jacobian",
    "topic_attention",
    "topic_blocks",
    "topic_similarity",
    "two_stages",
    "within_ratio",
]
