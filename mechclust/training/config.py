"""Settings of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from tasks.settings import (
    AtLeast,
    AtMost,
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    PositiveShare,
    ShareBelowOne,
    check_settings,
)

MAX_CHECKPOINTS = 10_000  # log-spaced, of which most would be at the same step


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one training run: optimiser, learning rate, gradient clipping, checkpoints.

    Args:
        steps: optimiser steps.
        batch_size: examples in each step.
        lr: learning rate with which the schedule starts at step 0, without a warm-up.
        schedule: ``"cosine"`` (along a half cosine to 0), ``"constant"``, or ``"late-drop"`` (a tenth from halfway on).
        optimizer: ``"adamw"``, ``"adam"`` or ``"sgd"`` (plain, without momentum).
        weight_decay: on all weights. AdamW's is decoupled. For Adam and SGD it is the gradient of
            ``weight_decay / 2 * sum of squares``.
        betas: Adam's two averaging rates.
        clip: largest gradient norm. ``None`` for no clipping.
        warmup: steps over which the learning rate rises from ``lr / (warmup + 1)`` to its schedule. That does not wait:
            after a warm-up of half the steps, a cosine is at half of ``lr``.
        layer_decay: factor from the learning rate of a block to the rate of the block below it. The last block and the
            weights after it have ``lr``, the embeddings one factor less than the first block.
        freeze: parameters, or parts of the model, that are not trained, such as ``"embed"`` or ``"blocks.0.attn"``.
        n_checkpoints: log-spaced steps from 1 to the end, both included (also by 0 and 1), at which the callbacks run.
            They also run at step 0 and two thirds of the way.
        checkpoint_every: run the callbacks every this many steps instead.
        save_every: steps between saves of the resumable state.

    Example:
        >>> TrainConfig(steps=100, n_checkpoints=4).checkpoint_steps
        [0, 1, 5, 22, 67, 100]
    """

    steps: Count = 1200
    batch_size: Count = 256
    lr: Positive = 1e-3
    schedule: Literal["cosine", "constant", "late-drop"] = "cosine"
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    weight_decay: NotNegative = 0.01
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    clip: Positive | None = 1.0
    warmup: CountOrZero = 0
    layer_decay: PositiveShare = 1.0
    freeze: tuple[str, ...] = ()
    n_checkpoints: Annotated[int, AtLeast(0), AtMost(MAX_CHECKPOINTS)] = 10
    checkpoint_every: Count | None = None
    save_every: Count = 100

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def checkpoint_steps(self) -> list[int]:
        """Steps at which the callbacks run, in order."""
        if self.checkpoint_every is not None:
            return [*range(0, self.steps, self.checkpoint_every), self.steps]
        spaced = np.geomspace(1, self.steps, max(self.n_checkpoints, 2)).round().astype(int)
        return sorted({0, *spaced.tolist(), math.ceil(2 * self.steps / 3), self.steps})

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        lr = self.lr * min(1.0, (step + 1) / (self.warmup + 1))
        if self.schedule == "constant":
            return lr
        if self.schedule == "late-drop":
            return lr if 2 * step < self.steps else lr / 10
        return lr * 0.5 * (1 + math.cos(math.pi * step / self.steps))
