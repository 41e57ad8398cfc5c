"""Settings of an adapter's training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tasks import InputError
from tasks.errors import check_count


@dataclass(frozen=True)
class TuneConfig:
    """LoRA and its optimiser; the defaults are those of the MOSSA paper.

    Source: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008), its public code.

    Args:
        rank: rank of the low-rank change.
        alpha: the change is scaled by ``alpha / rank``.
        dropout: dropout before the low-rank change.
        modules: names of the linear layers to adapt.
        lr: learning rate of AdamW; it falls to 0 along a cosine.
        batch_size: examples per forward pass.
        accumulation: forward passes per step.
        epochs: number of times each example is seen; ignored if ``steps`` is given.
        steps: optimiser steps.
        warmup: steps over which the learning rate rises.
        weight_decay: weight decay of AdamW.
        clip: largest norm of the gradient.
        bf16: multiply matrices in bfloat16 (autocast), several times faster on many processors; all weights keep their
            own format.
        save_every: steps between checkpoints; an interruption loses at most this many steps.
        seed: seed for the adapter's initial weights and the order of the examples.
    """

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.0
    modules: tuple[str, ...] = ("q_proj", "v_proj")
    lr: float = 5e-5
    batch_size: int = 4
    accumulation: int = 4
    epochs: float = 3.0
    steps: int | None = None
    warmup: int = 0
    weight_decay: float = 0.0
    clip: float = 1.0
    bf16: bool = False
    save_every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"rank": 1, "alpha": 1, "batch_size": 1, "accumulation": 1, "warmup": 0, "save_every": 1, "seed": 0}
        check_count(**{name: (getattr(self, name), n) for name, n in least.items()})
        if self.steps is not None:
            check_count(steps=(self.steps, 1))
        for name in ("lr", "epochs", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name):g}; expected a number above 0")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay is {self.weight_decay:g}; expected at least 0")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout:g}; expected a number from 0 to below 1")
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
        per_epoch = math.ceil(math.ceil(n_examples / self.batch_size) / self.accumulation)
        return math.ceil(self.epochs * per_epoch)
