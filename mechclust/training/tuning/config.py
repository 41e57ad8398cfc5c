"""Settings of an adapter's training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tasks import InputError
from tasks.settings import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Seed,
    ShareBelowOne,
    check_different_settings,
    check_settings,
)


@dataclass(frozen=True)
class TuneConfig:
    """LoRA and its optimiser, with the MOSSA paper's settings as defaults.

    Source: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008), its public code.

    Args:
        rank: rank of the low-rank change.
        alpha: the change is scaled by ``alpha / rank``.
        dropout: dropout before the low-rank change.
        modules: names of the linear layers to adapt.
        lr: learning rate of AdamW. It falls to 0 along a cosine.
        batch_size: examples per forward pass.
        accumulation: forward passes per step.
        epochs: number of times each example is seen. Ignored if ``steps`` is given.
        steps: optimiser steps.
        warmup: steps over which the learning rate rises.
        weight_decay: weight decay of AdamW.
        clip: largest norm of the gradient.
        bf16: multiply matrices in bfloat16 (autocast), several times faster on many processors. The base and the
            adapter keep their format.
        save_every: steps between checkpoints. An interruption loses at most this many steps.
        seed: seed for the adapter's initial weights and the order of the examples.
    """

    rank: Count = 8
    alpha: Count = 16
    dropout: ShareBelowOne = 0.0
    modules: tuple[str, ...] = ("q_proj", "v_proj")
    lr: Positive = 5e-5
    batch_size: Count = 4
    accumulation: Count = 4
    epochs: Positive = 3.0
    steps: Count | None = None
    warmup: CountOrZero = 0
    weight_decay: NotNegative = 0.0
    clip: Positive = 1.0
    bf16: bool = False
    save_every: Count = 50
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_settings(self)
        check_different_settings(modules=self.modules)
        if not self.modules:
            raise InputError("modules is empty; name the linear layers that the adapter changes, such as q_proj")

    @property
    def per_step(self) -> int:
        """Examples per optimiser step."""
        return self.batch_size * self.accumulation

    def steps_for(self, n_examples: int) -> int:
        """Return the optimiser steps that training on so many examples takes."""
        if self.steps is not None:
            return self.steps
        return math.ceil(self.epochs * self.steps_per_epoch(n_examples))

    def steps_per_epoch(self, n_examples: int) -> int:
        """Return the steps in which each example is seen once. The last may have fewer examples."""
        return math.ceil(math.ceil(n_examples / self.batch_size) / self.accumulation)
