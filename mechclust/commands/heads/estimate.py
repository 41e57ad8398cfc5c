"""Estimate what a measurement will take before it begins."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from mechclust.commands.cost import Cost, forward_seconds
from mechclust.commands.heads.config import HeadsConfig
from mechclust.commands.heads.inputs import Inputs
from probes.functional.permutation_test import enough_permutations
from probes.head_roles import TESTED_ROLES
from tasks import Batch

_ADDITIONS_PER_S = 2e8  # of permutations, by one thread of a CPU
_BYTES_PER_SCORE = 8
_COPIES = 2  # of the permuted scores of all examples, while those of a batch are added


def cost_of(inputs: Inputs, config: HeadsConfig) -> Cost:
    """Return the time of forward passes and permutations, and the memory of permuted scores, as far as known."""
    batches = list(chain.from_iterable(inputs.batches.values()))
    sizes = inputs.sizes
    positions = sum(batch.tokens.numel() for batch in batches)
    seconds = forward_seconds(config, sizes, (1 + config.untrained) * positions)
    if sizes.n_layers is None or sizes.n_heads is None:
        return Cost(seconds, 0)
    n_heads = sizes.n_layers * sizes.n_heads
    n_scores = len(TESTED_ROLES) * n_permutations(config, n_heads)
    n_kept = max(len(batch) * min(n_scores, batch.tokens.shape[1] ** 2) for batch in batches)
    seconds += n_heads * n_scores * _n_pairs(batches) / _ADDITIONS_PER_S
    return Cost(seconds, _BYTES_PER_SCORE * n_heads * (n_kept + _COPIES * n_scores))


def n_permutations(config: HeadsConfig, n_heads: int) -> int:
    """Return the number of permutations of token ids of the model."""
    if config.n_permutations is not None:
        return config.n_permutations
    return enough_permutations(len(TESTED_ROLES) * n_heads)


def _n_pairs(batches: Iterable[Batch]) -> int:
    """Count the pairs of positions with the same token, over all sequences."""
    n = 0
    for batch in batches:
        for tokens, length in zip(batch.tokens, batch.lengths().tolist(), strict=True):
            _, counts = tokens[:length].unique(return_counts=True)
            n += int((counts * (counts - 1) // 2).sum())
    return n
