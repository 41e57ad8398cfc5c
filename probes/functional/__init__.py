"""Pure functions behind the probes: arrays in, numbers out, without hooks or state.

Every function takes torch tensors, NumPy arrays (``Array``) or lists, and labels (``Labels``) may also be strings. The
first of these arguments that is a tensor or an array decides the kind of the result: tensors, or NumPy arrays and
Python numbers, also for lists. All give equal numbers. Every call is checked by its annotations: an ``InputError``
names the argument that has another kind of numbers, other axes, another size, NaN or infinity.

Example:
    >>> import numpy as np
    >>> import torch
    >>> from probes.functional import within_ratio
    >>> points = np.array([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0]])
    >>> within_ratio(points, ["left", "left", "right", "right"])
    0.2
    >>> within_ratio(torch.from_numpy(points), [0, 0, 1, 1])
    tensor(0.2000, dtype=torch.float64)
"""

from probes.functional.accuracy_interval import accuracy_interval
from probes.functional.adjusted_rand import (
    IndexMoments,
    adjusted_rand_moments,
    adjusted_rand_null,
    adjusted_rand_score,
)
from probes.functional.answer_scores import AnswerScores, answer_scores
from probes.functional.attention_entropy import attention_entropy
from probes.functional.cka import cka_null, cka_resamples, linear_cka
from probes.functional.halves import half_interval
from probes.functional.integer_weights import IntegerWeights, integer_weights
from probes.functional.kmeans import KMeans, kmeans
from probes.functional.linear_decodability import ridge_predictions, stratified_folds
from probes.functional.n_dims import n_dims
from probes.functional.neighbour_purity import neighbour_purity, neighbour_purity_chance
from probes.functional.norm_jacobian import norm_jacobian
from probes.functional.planar_lattice import PlanarLattice, planar_lattice
from probes.functional.rbf_cka import rbf_cka
from probes.functional.relabelling import relabelling_p_values
from probes.functional.response_classes import response_classes
from probes.functional.similarity import Similarity
from probes.functional.svcca import svcca
from probes.functional.topic_attention import topic_attention
from probes.functional.topic_embedding import TopicSimilarity, topic_similarity
from probes.functional.topic_pairs import PairSums
from probes.functional.wilson_interval import wilson_interval
from probes.functional.within_ratio import nearest_centroid_accuracy, within_ratio

__all__ = [
    "AnswerScores",
    "IndexMoments",
    "IntegerWeights",
    "KMeans",
    "PairSums",
    "PlanarLattice",
    "Similarity",
    "TopicSimilarity",
    "accuracy_interval",
    "adjusted_rand_moments",
    "adjusted_rand_null",
    "adjusted_rand_score",
    "answer_scores",
    "attention_entropy",
    "cka_null",
    "cka_resamples",
    "half_interval",
    "integer_weights",
    "kmeans",
    "linear_cka",
    "n_dims",
    "nearest_centroid_accuracy",
    "neighbour_purity",
    "neighbour_purity_chance",
    "norm_jacobian",
    "planar_lattice",
    "rbf_cka",
    "relabelling_p_values",
    "response_classes",
    "ridge_predictions",
    "stratified_folds",
    "svcca",
    "topic_attention",
    "topic_similarity",
    "wilson_interval",
    "within_ratio",
]
