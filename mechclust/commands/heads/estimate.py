"""Estimate what a measurement will take before it begins: tokens, memory and time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from mechclust.commands.cost import Cost
from mechclust.commands.heads.config import HeadsConfig
from mechclust.commands.heads.inputs import Inputs
from mechclust.report.text import duration_text, size_text
from probes.functional.permutation_test import enough_permutations
from probes.head_roles import TESTED_ROLES
from tasks import Batch

_ADDITIONS_PER_S = 2e8  # of permutations, by one thread of a CPU
_BYTES_PER_SCORE = 8
_COPIES = 2  # of the permuted scores of all examples, while those of a batch are added


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of measuring a model and its copies with random weights.

    Attributes:
        n_models: number of models.
        tokens: tokens of all texts.
        permuted: bytes of the scores of all heads with permuted token ids; ``None`` if not known.
        operations: multiplications and additions of all forward passes, at least; ``None`` if not known.
        additions: additions behind the p-values; ``None`` if not known.
    """

    n_models: int
    tokens: int
    permuted: int | None
    operations: int | None
    additions: int | None

    @classmethod
    def from_inputs(cls, inputs: Inputs, config: HeadsConfig) -> Estimate:
        """Estimate from the texts and the sizes of a model that is not loaded."""
        batches = list(chain.from_iterable(inputs.batches.values()))
        n_models = 1 + config.untrained
        positions = sum(batch.tokens.numel() for batch in batches)
        sizes = inputs.sizes
        permuted = operations = additions = None
        if sizes.n_layers is not None and sizes.n_heads is not None:
            n_heads = sizes.n_layers * sizes.n_heads
            n_scores = len(TESTED_ROLES) * n_permutations(config, n_heads)
            n_kept = max(len(batch) * min(n_scores, batch.tokens.shape[1] ** 2) for batch in batches)
            permuted = _BYTES_PER_SCORE * n_heads * (n_kept + _COPIES * n_scores)
            additions = n_heads * n_scores * _n_pairs(batches)
        if sizes.n_layers is not None and sizes.block_weights is not None:
            operations = 2 * n_models * positions * sizes.n_layers * sizes.block_weights
        tokens = sum(int(batch.lengths().sum()) for batch in batches)
        return cls(n_models, tokens, permuted, operations, additions)

    def cost(self, speed: float | None) -> Cost:
        """Return the time and memory of one process, as far as they are known, at this speed (see ``text``)."""
        forward = 0.0 if self.operations is None or speed is None else self.operations / speed
        return Cost(forward + (self.additions or 0) / _ADDITIONS_PER_S, self.permuted or 0)

    def text(self, speed: float | None) -> str:
        """Return the estimate in words.

        Args:
            speed: multiplications and additions per second of the model's device; ``None`` if not known.
        """
        parts = [f"{self.tokens} tokens"]
        if self.n_models > 1:
            parts.append(f"{self.n_models} models")
        if self.permuted:
            parts.append(f"permuted scores: about {size_text(self.permuted)} of memory")
        if self.operations is not None and speed is not None:
            parts.append(f"forward passes: at least {duration_text(self.operations / speed)}")
        if self.additions:
            parts.append(f"permutations: about {duration_text(self.additions / _ADDITIONS_PER_S)} on a CPU")
        return "; ".join(parts)


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
