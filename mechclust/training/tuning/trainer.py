"""Hugging Face's Trainer and its callbacks, for one adapter. Importing this file imports transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Trainer, TrainerCallback

from mechclust.jobs import progress_bar
from mechclust.training.tuning.checkpoints import mark_whole, saving_checkpoint
from mechclust.training.tuning.errors import DivergedError


class AnswerTrainer(Trainer):  # type: ignore[misc]
    """Trains with answers, and stops if the loss is not finite.

    Args:
        name: the adapter's name in errors.
    """

    def __init__(self, *args: Any, name: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._name = name

    def training_step(self, *args: Any, **options: Any) -> Float[Tensor, ""]:
        """Take a step, and return its loss.

        Raises:
            DivergedError: if the loss is not finite.
        """
        loss: Float[Tensor, ""] = super().training_step(*args, **options)
        if not torch.isfinite(loss):
            raise DivergedError(
                f"the loss of {self._name} is {float(loss)} at step {self.state.global_step + 1}; lower --tuning.lr, "
                "or look for damaged examples"
            )
        return loss

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        with saving_checkpoint(Path(self.args.output_dir)):
            super()._save_checkpoint(*args, **options)


class MarkWhole(TrainerCallback):  # type: ignore[misc]
    """Marks each checkpoint as whole, once it is."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint that was saved."""
        mark_whole(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class StepBar(TrainerCallback):  # type: ignore[misc]
    """Shows a bar of steps, in a worker on a separate line: from the first steps on it shows the time left.

    Args:
        name: label of the bar.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the bar."""
        self.bar = progress_bar(total=state.max_steps, initial=state.global_step, desc=self.name, unit="step")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Advance the bar."""
        self.bar.update()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the bar."""
        self.bar.close()
