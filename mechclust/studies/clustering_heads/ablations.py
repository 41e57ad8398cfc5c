"""The ablations: which settings are varied, one at a time, and with which seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tasks import InputError
from tasks.errors import check_at_least

PADDED = 128  # up to this width, different widths train together, as their arithmetic is a small part of a step
_CHEAP_BATCH = 8  # with smaller batches, training takes more than 256,000 steps


@dataclass(frozen=True)
class Ablations:
    """Settings varied one at a time.

    Args:
        seeds: seeds for every value; empty for no ablations.
        batch_sizes: sequences per step, at a fixed number of epochs.
        lrs: learning rates.
        widths: widths of the feed-forward layer.
        discounts: factors on the feed-forward layer's learning rate.
        dropouts: probabilities of dropping a neuron of the feed-forward layer during training.
        bias: also train without biases in the feed-forward layer.
        costly: how many seeds, counted from the first, are trained with the values that take longest: batches of fewer
            than 8 sequences, widths above 128, and dropout.
        group: number of seeds trained together in one process.
    """

    seeds: tuple[int, ...] = tuple(range(200, 300))
    batch_sizes: tuple[int, ...] = tuple(2**k for k in range(12))
    lrs: tuple[float, ...] = tuple(float(f"{x:.3g}") for x in np.geomspace(1, 1e-4, 20))
    widths: tuple[int, ...] = tuple(int(x) for x in np.geomspace(10, 10_000, 20).round())
    discounts: tuple[float, ...] = tuple(float(f"{x:.3g}") for x in np.geomspace(1e-2, 1e2, 20))
    dropouts: tuple[float, ...] = tuple(k / 10 for k in range(10))
    bias: bool = True
    costly: int = 25
    group: int = 25

    def __post_init__(self) -> None:
        check_at_least(**{"ablations.costly": (self.costly, 1), "ablations.group": (self.group, 1)})
        grids: list[tuple[str, Sequence[float], Callable[[float], bool], str]] = [
            ("batch_sizes", self.batch_sizes, lambda x: x >= 1, "at least 1"),
            ("lrs", self.lrs, lambda x: math.isfinite(x) and x > 0, "positive learning rates"),
            ("widths", self.widths, lambda x: x >= 1, "at least 1"),
            ("discounts", self.discounts, lambda x: math.isfinite(x) and x >= 0, "factors of at least 0"),
            ("dropouts", self.dropouts, lambda x: 0 <= x < 1, "at least 0 and below 1"),
        ]
        for name, values, allowed, expected in grids:
            if refused := [value for value in values if not allowed(value)]:
                raise InputError(f"ablations.{name} has {refused[0]}; expected {expected}")

    def seeds_for(
        self, *, batch_size: int = _CHEAP_BATCH, width: int = PADDED, dropout: float = 0.0
    ) -> tuple[int, ...]:
        """The seeds trained with a batch size, a width or a dropout."""
        cheap = batch_size >= _CHEAP_BATCH and width <= PADDED and dropout == 0
        return self.seeds if cheap else self.seeds[: self.costly]
