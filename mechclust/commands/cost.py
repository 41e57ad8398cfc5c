"""Say how long work takes before it starts, and refuse more than a day, or more memory than is free.

The time of permutations and half-samples is a crude upper estimate: what one takes at its slowest in a thread of a CPU,
for every layer, label and model. Work on small hidden states takes about a third of the estimated time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mechclust.commands.settings import EngineSettings, ModelSettings
from mechclust.models.sizes import Sizes
from mechclust.report.resources import check_resources
from mechclust.report.text import duration_text, size_text
from tasks.batch_rows import token_batch_rows

_OPERATIONS_PER_S = 2e9  # multiplications and additions in float64, by one thread of a CPU
_K_MEANS_ITERATIONS = 20
# Seconds that a draw takes besides its multiplications.
_RELABELLING_OVERHEAD_S = 1e-4
_CKA_OVERHEAD_S = 1e-3
HALF_CLUSTERING_OVERHEAD_S = 3e-3  # of k-means
LABEL_WIDTH = 16  # counting a label takes as long as so many multiplications
_COMPARISONS_PER_HALF = 3  # one side with the other, and each with itself
_CKA_BYTES = 2000  # kept of each comparison until a layer is measured
_KERNELS_AT_ONCE = 7  # float64 kernel matrices of a comparison with units
_KERNEL_WIDTH = 150  # what such a comparison does with an entry takes as long as so many multiplications
_DRAWS_PER_HALF = 3  # whether a document is in it, as an integer and a float, and a copy


@dataclass(frozen=True)
class Cost:
    """Time and memory of work, as far as they are known; 0 if not.

    Attributes:
        seconds: of all work, in one process.
        memory: bytes for random draws, such as permutations and half-samples, of each process.
    """

    seconds: float
    memory: float

    def check(self, settings: EngineSettings, fewer: str, of: str = "") -> None:
        """Print the cost, and refuse more than a day, or more memory than is free, unless that was agreed to.

        Processes share the work if their number is known. That of a Ray cluster is not without ``workers``: its time is
        that of one process.

        Args:
            settings: processes that share the work, and whether it was agreed to.
            fewer: what to give for less work, in words.
            of: what takes the time, if not all of it, such as ``" of forward passes"``.

        Raises:
            InputError: with the estimate.
        """
        n_processes = settings.workers or 1
        seconds = self.seconds / n_processes
        parts = []
        if self.seconds:
            where = "one process" if n_processes == 1 else f"{n_processes} processes"
            parts.append(f"time{of}: about {duration_text(seconds)} in {where}")
        if self.memory:
            parts.append(f"memory for random draws: {size_text(self.memory)} in each process")
        if parts:
            print("; ".join(parts), file=sys.stderr)
        if settings.engine == "ray" and settings.workers is None:
            fewer = f"--workers, {fewer}"
        check_resources(seconds, self.memory * settings.at_once, yes=settings.yes, fewer=fewer)


def forward_seconds(settings: ModelSettings, sizes: Sizes, positions: float) -> float:
    """Time a short matrix product, and estimate how long the blocks of a model take for so many tokens.

    Nothing is timed for no tokens or unknown sizes. The estimate is then 0, as for a device of unknown speed.
    """
    if sizes.n_layers is None or sizes.block_weights is None or not positions:
        return 0.0
    speed = settings.forward_speed(sizes.d_model or 1)
    return 0.0 if speed is None else 2 * positions * sizes.n_layers * sizes.block_weights / speed


def cka_cost(n: int, width: int, n_permutations: int, n_resamples: int, *, units: bool = False) -> Cost:
    """Return what pairings and half-samples of ``n`` states of this width take, for CKA of two layers, at most.

    Args:
        n: number of states.
        width: their dimensions.
        n_permutations: random pairings.
        n_resamples: half-samples.
        units: whether states come in units, which takes whole kernel matrices.

    Example:
        >>> cka_cost(10, 16, 20, 100).seconds < cka_cost(1000, 768, 20, 100).seconds < 100
        True
    """
    n_of_halves = _COMPARISONS_PER_HALF * n_resamples
    seconds = n_permutations * _cka_seconds(n, width, units) + n_of_halves * _cka_seconds(n / 2, width, units)
    kernels = _KERNELS_AT_ONCE * 8 * n**2 if units else 0
    return Cost(seconds, _CKA_BYTES * (n_permutations + n_of_halves) + kernels)


def _cka_seconds(n: float, width: int, units: bool) -> float:
    """Return how long one comparison of ``n`` states of this width takes, at most."""
    per_state = n * (width + _KERNEL_WIDTH) if units else width * min(n, width)
    return _CKA_OVERHEAD_S + n * per_state / _OPERATIONS_PER_S


def relabelling_seconds(n: int, width: int) -> float:
    """Return how long a statistic of ``n`` rows of this width takes for one relabelling, at most."""
    return _RELABELLING_OVERHEAD_S + n * width / _OPERATIONS_PER_S


def half_clustering_seconds(n: int, width: int, n_clusters: int) -> float:
    """Return how long k-means of half of ``n`` states of this width takes, at most: twice, from two starts."""
    return HALF_CLUSTERING_OVERHEAD_S + _K_MEANS_ITERATIONS * n * width * n_clusters / _OPERATIONS_PER_S


def topic_attention_bytes(
    lengths: Sequence[int], tokens_per_batch: int, n_heads: int, n_permutations: int, n_resamples: int
) -> float:
    """Return the memory of attention within relabelled topics and halves of documents, for the batch of most windows.

    Args:
        lengths: tokens of each window.
        tokens_per_batch: most tokens of a batch.
        n_heads: attention heads of all layers.
        n_permutations: relabellings of the topics.
        n_resamples: halves of the documents.
    """
    batches = token_batch_rows(lengths, tokens_per_batch, "window {}".format)
    n_windows = max((len(rows) for rows in batches), default=0)
    of_window = n_heads * n_permutations + _DRAWS_PER_HALF * n_resamples  # all heads share the halves
    of_corpus = 2 * n_heads * (n_permutations + n_resamples)  # same-topic and different-topic attention
    return 8.0 * (n_windows * of_window + of_corpus)
