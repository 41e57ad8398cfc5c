"""Values of Llama-2-7B (32 layers) in the MOSSA paper's figures, to compare runs with.

Zhao, Ziser & Cohen, "Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language
Models" (EMNLP 2024, arXiv 2410.20008). CKA is the biased form there. Numbers were read off the figures, to about .005.
NaN where the figure does not show them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

_NO = math.nan
N_LAYERS = 32
FLESCH_KINCAID = "Flesch-Kincaid grade"
COLEMAN_LIAU = "Coleman-Liau index"
DATA_SIZE = "number of training examples"


@dataclass(frozen=True)
class PublishedQuartiles:
    """Over tasks, by layer from 1."""

    low: tuple[float, ...]
    median: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def spread(self) -> Float[np.ndarray, "layer"]:
        """``[layer]`` interquartile range.

        Example:
            >>> SEEN["tuned"].spread[9 - 1 : 13].round(3).tolist()
            [0.102, 0.055, 0.042, 0.038, 0.033]
        """
        return np.array(self.high) - np.array(self.low)


@dataclass(frozen=True)
class _Correlation:
    """Over tasks, with CKA in some layers: the range that the figure shows.

    Attributes:
        covariate: its name.
        which: ``"base"`` or ``"tuned"``.
        layers: first and last, counted from 1.
        low, high: between which the correlation is.
    """

    covariate: str
    which: str
    layers: tuple[int, int]
    low: float
    high: float


# Figure 2: tasks that the model was tuned on. CKA with their controls.
SEEN: Mapping[str, PublishedQuartiles] = {
    "base": PublishedQuartiles(
        low=(
            _NO, _NO, .980, .969, .964, .954, .913, .863, .832, .749, .707, .665, .601, .583, .509, .547, .497,
            .439, .428, .423, .400, .402, .377, .370, .370, .377, .375, .383, .393, .398, .420, .301,
        ),
        median=(
            _NO, _NO, _NO, .989, .988, .982, .974, .945, .922, .894, .873, .855, .817, .792, .742, .741, .705, .681,
            .652, .637, .608, .605, .603, .596, .604, .613, .598, .601, .602, .613, .630, .533,
        ),
        high=(
            _NO, _NO, .989, .995, .993, .990, .985, .977, .970, .962, .964, .946, .924, .883, .870, .863, .853,
            .835, .815, .807, .782, .774, .776, .764, .761, .774, .779, .772, .777, .792, .769, .738,
        ),
    ),
    "tuned": PublishedQuartiles(
        low=(
            _NO, _NO, .956, .904, .904, .829, .824, .835, .873, .924, .942, .944, .949, .941, .942, .924, .921,
            .922, .921, .911, .901, .914, .889, .888, .891, .898, .894, .896, .889, .889, .891, .889,
        ),
        median=(
            _NO, _NO, .977, .949, .949, .940, .930, .924, .942, .959, .969, .972, .966, .962, .965, .956, .954,
            .960, .956, .952, .951, .951, .942, .942, .937, .941, .943, .934, .932, .932, .939, .911,
        ),
        high=(
            _NO, _NO, .987, .990, .989, .979, .977, .974, .975, .979, .984, .982, .982, .980, .980, .980, .982,
            .982, .982, .982, .979, .975, .972, .972, .969, .969, .962, .960, .962, .969, .974, .939,
        ),
    ),
}  # fmt: skip

# Figure 7: the seven tasks that were left out.
HELD_OUT: Mapping[str, PublishedQuartiles] = {
    "base": PublishedQuartiles(
        low=(
            _NO, _NO, _NO, _NO, .974, .970, .947, .934, .908, .874, .856, .845, .710, .555, .436, .391, .309, .239,
            .179, .154, .134, .128, .124, .121, .116, .114, .116, .117, .195, .117, .118, .077,
        ),
        median=(
            _NO, _NO, _NO, _NO, .982, _NO, .975, .970, .963, .938, .927, .895, .823, .812, .799, .797, .715, .596,
            .478, .422, .347, .342, .325, .315, .306, .332, .349, .373, .593, .398, .414, .302,
        ),
        high=(
            _NO, _NO, _NO, _NO, .990, .989, .990, .985, .980, .970, .966, .952, .926, .912, .916, .896, .754, .699,
            .695, .684, .655, .659, .663, .652, .648, .660, .667, .693, .722, .700, .737, .630,
        ),
    ),
    "tuned": PublishedQuartiles(
        low=(
            _NO, _NO, .981, .951, .941, .933, .904, .869, .825, .773, .786, .750, .711, .611, .507, .444, .395,
            .373, .336, .327, .327, .318, .336, .335, .333, .332, .335, .339, .337, .337, .350, .258,
        ),
        median=(
            _NO, _NO, .986, .967, .956, _NO, .956, .929, .908, .869, .856, .843, .835, .835, .829, .803, .784, .707,
            .652, .628, .593, .588, .578, .573, .559, .564, .552, .570, .567, .566, .578, .504,
        ),
        high=(
            _NO, _NO, .995, .988, .984, .949, .975, .977, .973, .963, .956, .956, .952, .941, .952, .951, .893,
            .882, .869, .866, .851, .865, .856, .855, .844, .851, .840, .854, .847, .854, .877, .793,
        ),
    ),
}  # fmt: skip

# Figure 5: dimensions for 99% of the variance, by layer.
DIMS: Mapping[str, Mapping[int, int]] = {
    "base": {1: 270, 10: 795, 15: 820, 20: 735, 32: 820},
    "tuned": {1: 270, 10: 1004, 15: 1720, 20: 1740, 32: 1520},
}

# Figure 3: medians of untuned and tuned by cluster of tasks, at the layer named: clusters, then (layer, base, tuned).
CLUSTERS: Mapping[str, tuple[int, float, float]] = {
    "struct_to_text": (32, 0.19, 0.93),
    "translation": (32, 0.29, 0.92),
    "coreference": (28, 0.33, 0.89),
    "sentiment": (32, 0.71, 0.98),
    "paraphrase": (32, 0.60, 0.72),
}

# Figure 6: correlations over tasks of CKA with readability and with the size of the training data.
CORRELATIONS = (
    _Correlation(FLESCH_KINCAID, "tuned", (15, 29), 0.38, 0.43),
    _Correlation(FLESCH_KINCAID, "base", (1, 32), -0.18, 0.18),
    _Correlation(COLEMAN_LIAU, "tuned", (15, 23), 0.41, 0.45),
    _Correlation(DATA_SIZE, "base", (1, 1), 0.46, 0.46),
)

# The paper's groups of layers, and how many tasks its figures are of.
GROUPS: Mapping[str, tuple[int, int]] = {"shared": (1, 9), "transition": (10, 15), "refinement": (16, 32)}
N_SEEN = 60
