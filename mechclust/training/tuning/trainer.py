"""Hugging Face's Trainer, which stops where the loss is not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from mechclust.training.tuning.checkpoints import saving
from mechclust.training.tuning.errors import DivergedError


class AnswerTrainer(Trainer):  # type: ignore[misc]
    """See above.

    Args:
        name: of what is trained, in errors.
    """

    def __init__(self, *args: Any, name: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._name = name

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **options)
        if not torch.isfinite(loss):
            raise DivergedError(
                f"the loss of {self._name} is {float(loss)} at step {self.state.global_step + 1}; lower --tuning.lr, "
                "or look for damaged examples"
            )
        return loss

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        with saving(Path(self.args.output_dir)):
            super()._save_checkpoint(*args, **options)
