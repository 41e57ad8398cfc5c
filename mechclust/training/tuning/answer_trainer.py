"""Hugging Face's Trainer with its settings and callbacks, for one adapter. Importing this file imports transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from mechclust.jobs import progress_bar
from mechclust.training.diverged import DivergedError
from mechclust.training.tuning.checkpoints import mark_checkpoint, saving_checkpoint
from mechclust.training.tuning.config import TuneConfig


class AnswerTrainer(Trainer):  # type: ignore[misc]
    """Trains with answers, and stops if the loss is not finite.

    Args:
        name: the adapter's name in errors.
        progress: show a bar of steps.
    """

    def __init__(self, *args: Any, name: str, progress: bool, **options: Any) -> None:
        callbacks = [_MarkWhole(), _StepBar(name)] if progress else [_MarkWhole()]
        super().__init__(*args, callbacks=callbacks, **options)
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


class _MarkWhole(TrainerCallback):  # type: ignore[misc]
    """Marks each checkpoint as whole, once it is."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint that was saved."""
        mark_checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class _StepBar(TrainerCallback):  # type: ignore[misc]
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


def trainer_arguments(
    config: TuneConfig, n_examples: int, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32
) -> Any:
    """Return Hugging Face's ``TrainingArguments`` for one model on one device. Several adapters are several jobs."""
    steps = config.steps_for(n_examples)
    every = max(1, min(steps // 100, config.save_every))  # a logged loss is a mean over these
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.accumulation,
        max_steps=steps,
        learning_rate=config.lr,
        lr_scheduler_type="cosine",
        warmup_steps=config.warmup,
        weight_decay=config.weight_decay,
        max_grad_norm=config.clip,
        **trainer_precision(config, device, dtype),
        logging_steps=every,
        logging_nan_inf_filter=False,
        save_steps=every * (config.save_every // every),  # a mean is not cut by an interruption
        save_total_limit=2,
        seed=config.seed,
        data_seed=config.seed,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=device.type == "cpu",
        dataloader_pin_memory=device.type == "cuda",
    )
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def trainer_precision(config: TuneConfig, device: torch.device, dtype: torch.dtype) -> dict[str, bool]:
    """Return the format in which matrices are multiplied, as ``TrainingArguments`` takes it.

    In float16 small gradients of the activations would be 0, so the Trainer scales the loss. The adapter's weights are
    float32 (peft).

    Args:
        config: how to train.
        device: where.
        dtype: of the base's weights.
    """
    return {"bf16": config.bf16, "fp16": not config.bf16 and device.type == "cuda" and dtype == torch.float16}
