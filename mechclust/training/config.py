"""Settings of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tasks import InputError
from tasks.errors import check_at_least
from tasks.settings import check_choices, check_finite


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one training run: optimiser, learning rate, gradient clipping, checkpoints.

    Args:
        steps: optimiser steps.
        batch_size: examples in each step.
        lr: learning rate at the start, or at the end of the warm-up.
        schedule: ``"cosine"``: annealed along a half cosine to 0; ``"constant"``; ``"late-drop"``: a tenth
            from halfway on.
        optimizer: ``"adamw"``, ``"adam"`` or ``"sgd"`` (plain, without momentum).
        weight_decay: on all weights; AdamW's is decoupled, for Adam and SGD it is the gradient of
            ``weight_decay / 2 * sum of squares``.
        betas: Adam's two averaging rates.
        clip: largest gradient norm; ``None`` for no clipping.
        warmup: steps over which the learning rate rises to its schedule.
        layer_decay: factor from the learning rate of a block to that of the block below it; the last block and
            what follows it have ``lr``, the embeddings one factor less than the first block.
        freeze: parameters, or parts of the model, that are not trained, such as ``"embed"`` or ``"blocks.0.attn"``.
        n_checkpoints: log-spaced steps at which the callbacks run, besides step 0, two thirds of
            the way, and the end.
        checkpoint_every: run the callbacks every this many steps instead.
        save_every: steps between saves of the resumable state.

    Example:
        >>> TrainConfig(steps=100, n_checkpoints=4).checkpoint_steps
        [0, 1, 5, 22, 67, 100]
    """

    steps: int = 1200
    batch_size: int = 256
    lr: float = 1e-3
    schedule: Literal["cosine", "constant", "late-drop"] = "cosine"
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = 1.0
    warmup: int = 0
    layer_decay: float = 1.0
    freeze: tuple[str, ...] = ()
    n_checkpoints: int = 10
    checkpoint_every: int | None = None
    save_every: int = 100

    def __post_init__(self) -> None:
        check_at_least(steps=(self.steps, 1), batch_size=(self.batch_size, 1), save_every=(self.save_every, 1))
        check_choices(self)
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise InputError(f"checkpoint_every is {self.checkpoint_every}; expected at least 1, or None")
        if self.warmup < 0:
            raise InputError(f"warmup is {self.warmup}; expected at least 0 steps")
        if not 0 < self.layer_decay <= 1:
            raise InputError(f"layer_decay is {self.layer_decay}; expected above 0 and at most 1 (no decay)")
        if not self.lr > 0:
            raise InputError(f"lr is {self.lr}; expected a positive learning rate")
        if not self.weight_decay >= 0:
            raise InputError(f"weight_decay is {self.weight_decay}; expected at least 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"betas is {self.betas}; expected two numbers from 0 to below 1")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip is {self.clip}; expected a positive norm, or None for no clipping")
        check_finite(self)

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
