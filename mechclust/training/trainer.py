"""Probes during a training by Hugging Face's Trainer. Importing this file imports transformers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from mechclust.training.probe_hook import ProbeHook
from probes.batches import Batches
from probes.probe import Probe

__all__ = ["MechclustCallback"]


class MechclustCallback(TrainerCallback):  # type: ignore[misc] # transformers has no types
    """Runs probes every so many optimiser steps, and logs their numbers to what the Trainer logs to.

    ``MechclustCallback(probes, batches, every=100).add_to(trainer)`` logs as the Trainer's own losses are logged: to
    its log history, to the progress bar, and to TensorBoard, Weights & Biases or whatever ``report_to`` names. Given as
    ``Trainer(callbacks=[...])`` it has no way to these, and writes to the log history (``trainer.state.log_history``,
    ``trainer_state.json``) alone. The training itself goes on to the same bits.

    Of several processes the first one measures. A model whose weights are sharded over processes (FSDP, DeepSpeed
    ZeRO 3) cannot be measured so; save checkpoints and give them to ``mechclust history``.

    Args:
        probes: as ``ProbeHook`` takes them.
        batches: likewise, the same each time.
        every: optimiser steps from one measurement to the next; the first is before training.
        out: folder for the whole results.
        tokenizer: where batches are texts; by default the Trainer's ``processing_class``.

    Attributes:
        hook: what measures; ``hook.results`` has a result per probe by step.

    Example:
        >>> from probes import TaskClusterARI, last_token
        >>> callback = MechclustCallback(TaskClusterARI(readout=last_token()), ["a text"], every=50)
        >>> # callback.add_to(trainer); trainer.train(); callback.hook.results
    """

    def __init__(
        self,
        probes: Probe | Sequence[Probe],
        batches: Batches,
        every: int = 100,
        *,
        out: str | Path | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.hook = ProbeHook(probes, batches, every, out=out, tokenizer=tokenizer)
        self._trainer: Any = None

    def add_to(self, trainer: Any) -> MechclustCallback:
        """Add it to a Trainer, and log to where that logs to."""
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first measurement."""
        if self._trainer is None and args.report_to:
            warnings.warn(
                f"MechclustCallback was given as callbacks=[...], so that its numbers go to the Trainer's log history "
                f"and not to {', '.join(args.report_to)}; call callback.add_to(trainer) instead",
                stacklevel=2,
            )
        self._measure(state, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The others."""
        self._measure(state, **kwargs)

    def _measure(self, state: Any, model: Any, processing_class: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        if self.hook.tokenizer is None:
            self.hook.tokenizer = processing_class
        numbers = self.hook(model, state.global_step)
        if not numbers:
            return
        if self._trainer is not None:
            self._trainer.log(numbers)
        else:
            state.log_history.append({**numbers, "step": state.global_step})
