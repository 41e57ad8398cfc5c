"""Pure functions behind the probes: arrays in, numbers out; no hooks, no state."""

from probes.functional.ari import adjusted_rand_null, adjusted_rand_score, contingency
from probes.functional.cka import HSIC, CrossMoments, Similarity, cka_from_moments, linear_cka
from probes.functional.cka_intervals import cka_null, cka_resamples
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
from probes.functional.layer_groups import LayerGroups, crossover, layer_groups
from probes.functional.similarity import n_dims, neighbour_purity, neighbour_purity_chance, rbf_cka, svcca
from probes.functional.topic_vectors import TopicBlocks, TopicSimilarity, topic_blocks, topic_similarity
from probes.functional.topics import PairSums, topic_attention

__all__ = [  # noqa: RUF022 - which would put names in capitals first
    "CrossMoments",
    "Drop",
    "HSIC",
    "IntegerWeights",
    "LayerGroups",
    "PairSums",
    "Similarity",
    "Spike",
    "TopicBlocks",
    "TopicSimilarity",
    "TwoStages",
    "adjusted_rand_null",
    "adjusted_rand_score",
    "boundary_distance",
    "cka_from_moments",
    "cka_null",
    "cka_resamples",
    "contingency",
    "covered",
    "crossover",
    "first_above",
    "first_below",
    "integer_weights",
    "layer_groups",
    "linear_cka",
    "loss_drops",
    "loss_spikes",
    "matched_quiet",
    "n_dims",
    "nearest_centroid_accuracy",
    "neighbour_purity",
    "neighbour_purity_chance",
    "norm_jacobian",
    "rbf_cka",
    "svcca",
    "topic_attention",
    "topic_blocks",
    "topic_similarity",
    "two_stages",
    "within_ratio",
]
