"""Pure functions behind the probes: arrays in, numbers out; no hooks, no state."""

from probes.functional.cka import HSIC, CrossMoments, Similarity, cka_from_moments, linear_cka
from probes.functional.cka_intervals import cka_null, cka_resamples
from probes.functional.clustering_head import IntegerWeights, integer_weights, nearest_centroid_accuracy, within_ratio
from probes.functional.norm_jacobian import boundary_distance, norm_jacobian
from probes.functional.similarity import n_dims, neighbour_purity, neighbour_purity_chance, rbf_cka, svcca
from probes.functional.task_cluster_ari import adjusted_rand_null, adjusted_rand_score, contingency
from probes.functional.topic_attention import PairSums, topic_attention
from probes.functional.topic_embedding import TopicBlocks, TopicSimilarity, topic_blocks, topic_similarity

__all__ = [  # noqa: RUF022 - which would put names in capitals first
    "CrossMoments",
    "HSIC",
    "IntegerWeights",
    "PairSums",
    "Similarity",
    "TopicBlocks",
    "TopicSimilarity",
    "adjusted_rand_null",
    "adjusted_rand_score",
    "boundary_distance",
    "cka_from_moments",
    "cka_null",
    "cka_resamples",
    "contingency",
    "integer_weights",
    "linear_cka",
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
    "within_ratio",
]
