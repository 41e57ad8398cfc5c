"""Say how long work takes before it starts, and refuse more than a day, or more memory than is free.

The time of permutations and half-samples is a crude upper estimate: what one takes at its slowest in a thread of a CPU,
for every layer, label and model. Small hidden states take about a third of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mechclust.commands.settings import EngineSettings, ModelSettings
from mechclust.models.sizes import Sizes
from mechclust.report.resources import check_work, duration_text, size_text

_OPERATIONS_PER_S = 2e9  # multiplications and additions in float64, by one thread of a CPU
_K_MEANS_ITERATIONS = 20
# Least seconds of one draw, which states of a few dimensions take.
_RELABELLING_S = 1e-4
_CKA_DRAW_S = 1e-3
HALF_CLUSTERING_S = 3e-3  # of k-means
_DRAWS_PER_HALF = 2  # one side with the other, and each with itself, of half the states
_CKA_DRAW_BYTES = 2000  # kept of each draw until a layer is measured


@dataclass(frozen=True)
class Cost:
    """Time and memory of work.

    Attributes:
        seconds: of one process.
        memory: bytes for permutations and half-samples, of one process.
    """

    seconds: float
    memory: float

    def check(self, settings: EngineSettings, fewer: str) -> None:
        """Print the cost, and refuse more than a day, or more memory than is free, unless that was agreed to.

        Args:
            settings: processes that share the work, and whether it was agreed to.
            fewer: what to give for less work, in words.

        Raises:
            InputError: with the estimate.
        """
        memory = f", {size_text(self.memory)} of memory for permutations and half-samples"
        print(f"time: about {duration_text(self.seconds)} in one process{memory}", file=sys.stderr)
        at_once = settings.at_once
        check_work(self.seconds / at_once, self.memory * at_once, yes=settings.yes, fewer=fewer)


def forward_seconds(settings: ModelSettings, sizes: Sizes, positions: float) -> float:
    """Return how long the blocks of a model take for so many tokens; 0 if sizes or the device's speed are not known."""
    if sizes.n_layers is None or sizes.block_weights is None or not positions:
        return 0.0
    speed = settings.forward_speed(sizes.d_model or 1)
    return 0.0 if speed is None else 2 * positions * sizes.n_layers * sizes.block_weights / speed


def cka_cost(n: int, width: int, n_permutations: int, n_resamples: int) -> Cost:
    """Return what pairings and half-samples of ``n`` states of this width take, for CKA of two layers, at most.

    Example:
        >>> cka_cost(10, 16, 20, 100).seconds < cka_cost(1000, 768, 20, 100).seconds < 100
        True
    """
    n_draws = n_permutations + _DRAWS_PER_HALF * n_resamples
    draw = _CKA_DRAW_S + n * width * min(n, width) / _OPERATIONS_PER_S
    return Cost(n_draws * draw, _CKA_DRAW_BYTES * (n_permutations + 3 * n_resamples))


def relabelling_seconds(n: int, width: int = 16) -> float:
    """Return how long a statistic of ``n`` rows of this width takes for one relabelling, at most."""
    return _RELABELLING_S + n * width / _OPERATIONS_PER_S


def half_clustering_seconds(n: int, width: int, n_clusters: int) -> float:
    """Return how long k-means of half of ``n`` states of this width takes, at most."""
    return HALF_CLUSTERING_S + _K_MEANS_ITERATIONS * n * width * n_clusters / _OPERATIONS_PER_S


def topic_attention_bytes(
    lengths: Sequence[int], tokens_per_batch: int, n_heads: int, n_permutations: int, n_resamples: int
) -> float:
    """Return the memory of attention within relabelled topics and halves of documents, for a batch of windows.

    Args:
        lengths: tokens of each window.
        tokens_per_batch: of all windows of a batch.
        n_heads: attention heads of all layers.
        n_permutations: relabellings of the topics.
        n_resamples: halves of the documents.
    """
    n_windows = min(len(lengths), 1 + tokens_per_batch * len(lengths) // max(1, sum(lengths)))
    of_batch = n_windows * (n_heads * n_permutations + 3 * n_resamples)
    return 8.0 * (of_batch + 2 * n_heads * (n_permutations + n_resamples))
