"""The ablations: which settings are varied, one at a time, and with which seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.settings import Count, Positive, Seed, ShareBelowOne, check_settings

PADDED = 128  # up to this width, different widths train together, as their arithmetic is a small part of a step
_CHEAP_BATCH = 8  # with smaller batches, training takes more than 256,000 steps


@dataclass(frozen=True)
class Ablations:
    """Settings varied one at a time.

    Args:
        seeds: seeds for every value. Without seeds, there are no ablations.
        batch_sizes: sequences per step, at a fixed number of epochs.
        lrs: learning rates.
        widths: widths of the feed-forward layer.
        discounts: factors on the feed-forward layer's learning rate, above 0.
        dropouts: probabilities of dropping a neuron of the feed-forward layer during training.
        bias: also train without biases in the feed-forward layer.
        costly: how many seeds, counted from the first, are trained with the values that take longest: batches of fewer
            than 8 sequences, widths above 128, and dropout.
        group: number of seeds trained together in one process.
    """

    seeds: tuple[Seed, ...] = tuple(range(200, 300))
    batch_sizes: tuple[Count, ...] = tuple(2**k for k in range(12))
    lrs: tuple[Positive, ...] = tuple(float(f"{x:.3g}") for x in np.geomspace(1, 1e-4, 20))
    widths: tuple[Count, ...] = tuple(int(x) for x in np.geomspace(10, 10_000, 20).round())
    discounts: tuple[Positive, ...] = tuple(float(f"{x:.3g}") for x in np.geomspace(1e-2, 1e2, 20))
    dropouts: tuple[ShareBelowOne, ...] = tuple(k / 10 for k in range(10))
    bias: bool = True
    costly: Count = 25
    group: Count = 25

    def __post_init__(self) -> None:
        check_settings(self, "ablations.")

    def seeds_for(
        self, *, batch_size: int = _CHEAP_BATCH, width: int = PADDED, dropout: float = 0.0
    ) -> tuple[int, ...]:
        """Return the seeds trained with a batch size, a width or a dropout."""
        cheap = batch_size >= _CHEAP_BATCH and width <= PADDED and dropout == 0
        return self.seeds if cheap else self.seeds[: self.costly]
