"""Probes during training with Hugging Face's Trainer. Importing this file imports transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from mechclust.training.probe_hook import ProbeHook
from probes.engine.batches import Batches
from probes.engine.probe import Probe
from tasks import InputError, LabelledPrompts
from tasks.text.bos_token import Bos

__all__ = ["MechclustCallback"]


class MechclustCallback(TrainerCallback):  # type: ignore[misc] # transformers has no types
    """Runs probes every few optimiser steps, and logs their numbers with the Trainer's losses.

    ``MechclustCallback(probes, batches, every=100).add_to(trainer)`` uses the Trainer's loggers: its log history, and
    TensorBoard, Weights & Biases or whatever else ``report_to`` names. There are too many numbers to print. Training
    remains bit-identical.

    With several processes, the first one measures. A model whose weights are sharded over processes (FSDP, DeepSpeed
    ZeRO 3) cannot be measured this way. Save checkpoints and run ``mechclust history`` on them.

    Args:
        probes: as for ``ProbeHook``.
        batches: as for ``ProbeHook``.
        every: optimiser steps between measurements. The first is before training.
        out: folder for the full results.
        tokenizer: needed if batches are texts or prompts. By default the Trainer's ``processing_class``.
        bos, tokens_per_batch: as for ``ProbeHook``.

    Attributes:
        hook: the ``ProbeHook``. ``hook.results`` has one result per probe, by step.

    Example:
        >>> from probes import TaskClusterARI, last_token
        >>> from tasks import LabelledPrompts
        >>> prompts = LabelledPrompts(["2 + 2 =", "3 + 1 =", "hot, cold; big,"], {"task": ["sum", "sum", "opposite"]})
        >>> callback = MechclustCallback(TaskClusterARI(readout=last_token()), prompts, every=50)
        >>> # callback.add_to(trainer); trainer.train(); callback.hook.results
    """

    def __init__(
        self,
        probes: Probe | Sequence[Probe],
        batches: Batches | LabelledPrompts,
        every: int = 100,
        *,
        out: str | Path | None = None,
        tokenizer: Any = None,
        bos: Bos = "model",
        tokens_per_batch: int = 4096,
    ) -> None:
        self.hook = ProbeHook(
            probes, batches, every, out=out, tokenizer=tokenizer, bos=bos, tokens_per_batch=tokens_per_batch
        )
        self._trainer: Any = None

    def add_to(self, trainer: Any) -> MechclustCallback:
        """Add the callback to a Trainer, and log through it."""
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget an earlier training, such as of another fold.

        Raises:
            InputError: if a Trainer was given the callback as ``callbacks=[...]``, where its loggers are out of reach.
        """
        if self._trainer is None:
            raise InputError(
                "leave MechclustCallback out of callbacks=[...], and call callback.add_to(trainer) in its place"
            )
        if state.global_step == 0:
            self.hook.results.clear()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure before training, when every logger has started."""
        self._measure(state, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure if the step is due."""
        self._measure(state, **kwargs)

    def _measure(self, state: Any, model: Any, processing_class: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        if self.hook.tokenizer is None:
            self.hook.tokenizer = processing_class
        numbers = self.hook(model, state.global_step)
        if numbers:
            self._log(numbers)

    def _log(self, numbers: dict[str, float]) -> None:
        """Log to the Trainer's loggers, except the terminal, and leave its own log of this step due."""
        handler = self._trainer.callback_handler
        losses_due = self._trainer.control.should_log
        callbacks = handler.callbacks
        terminal = (PrinterCallback, ProgressCallback)
        handler.callbacks = [callback for callback in callbacks if not isinstance(callback, terminal)]
        try:
            self._trainer.log(numbers)
        finally:
            handler.callbacks = callbacks
            self._trainer.control.should_log = losses_due  # logging has taken it back
