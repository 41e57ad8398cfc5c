"""Train one network, resumably, with callbacks at checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.jobs import progress_bar
from mechclust.models.config import check_model_config_fits_task, config_of, model_config_to_json
from mechclust.models.weights import get_weights, set_weights, trainable_weights
from mechclust.training.callbacks import AccuracyCallback, Callback, CheckpointCallback, FileCallback, ProbeCallback
from mechclust.training.config import TrainConfig
from mechclust.training.diverged import DivergedError
from mechclust.training.dropout import dropout_of
from mechclust.training.optimizer import make_optimizer, parameter_groups
from mechclust.training.state import check_state_files, load_training_state, save_training_state
from probes import load_result
from probes.engine.devices import device_of
from probes.engine.fingerprint import fingerprint
from probes.engine.hooked_model import HookedModel, forward
from probes.store.locks import locked_folder
from probes.store.safetensors_files import is_whole_file
from probes.store.temporary_files import remove_leftovers
from probes.store.versions import package_versions
from tasks import Batch, InputError, Task
from tasks.settings import settings_to_json

_WAY_OUT = "give a smaller lr, or look for damaged examples"
_MAX_STEPS_LISTED = 8
WAIT = 30.0  # seconds for the lock: a job whose driver died may live some seconds longer on a cluster


def train(
    model: HookedModel,
    task: Task,
    config: TrainConfig,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    progress: bool = False,
    name: str = "training",
    stop_if_diverged: bool = True,
) -> Float[Tensor, "step"]:
    """Train ``model`` on ``task``, or resume a run that was interrupted in ``out``.

    A model that computes the loss without a full forward pass (``logits_at_loss``) is trained that way, and its hook
    points do not fire. Probe it in callbacks.

    An interrupted run (also by ``kill -9``) started again ends with the bits of an uninterrupted one, on one machine
    with one number of threads. If a callback has lost a file of an earlier step than the saved state's, the error says
    which files to delete to train again.

    Args:
        model: from ``build_model``, on any device, trained in place. To resume, give it with the weights from before
            training, or from when its state was last saved. A finished training may be called again.
        task: source of the batches and the loss.
        config: the settings.
        out: folder of the resumable state (``state.safetensors``), for one process at a time. ``None``: keep no files.
        callbacks: called at the checkpoints.
        progress: show a progress bar.
        name: label of the bar.
        stop_if_diverged: stop at the first step whose loss, or the weights after it, are not finite. Earlier saved
            files stay.

    Returns:
        The training loss of every step, as the task defines it (float32).

    Raises:
        DivergedError: naming the step at which training diverged.
        InputError: for a task with more tokens than the model, or longer examples. Also when ``out`` holds a run with
            other settings, probes or weights, or a damaged state, or another process trains there. Also when a
            callback has lost a file of an earlier step than the saved state's.

    Example:
        >>> from mechclust import TrainConfig, build_model, model_for, train
        >>> from tasks import SkillSuite
        >>> suite = SkillSuite(n_eval=4)
        >>> model = build_model(model_for(suite, n_layers=1, d_model=16, n_heads=2))
        >>> losses = train(model, suite, TrainConfig(steps=20, batch_size=8, lr=0.01))
        >>> losses.shape, bool(losses[-5:].mean() < losses[:5].mean())
        (torch.Size([20]), True)
    """
    run = _Training(model, task, config, None if out is None else Path(out), callbacks, stop_if_diverged)
    if out is None:
        return run(progress, name)
    with locked_folder(out, wait=WAIT):
        remove_leftovers(out, recursive=True)  # also the temporary files of callbacks
        return run(progress, name)


class _Training:
    """A training run: its network, optimiser and losses, and the state that it saves."""

    def __init__(
        self,
        model: HookedModel,
        task: Task,
        config: TrainConfig,
        out: Path | None,
        callbacks: Sequence[Callback],
        stop_if_diverged: bool,
    ) -> None:
        check_model_config_fits_task(task, config_of(model))
        for callback in callbacks:
            _check_steps(callback, config.checkpoint_steps)
        self.model = model
        self.task = task
        self.config = config
        self.callbacks = callbacks
        self.measuring = [each for each in callbacks if isinstance(each, (AccuracyCallback, ProbeCallback))]
        self.stop_if_diverged = stop_if_diverged
        self.path = None if out is None else out / "state.safetensors"
        named = trainable_weights(model)
        self.optimizer = make_optimizer(named, parameter_groups(named, config, type(model).__name__), config)
        self.losses = torch.zeros(config.steps)
        self.dropout_at = dropout_of(model, config_of(model).seed)
        self.record = {} if out is None else self._record()

    def __call__(self, progress: bool, name: str) -> Float[Tensor, "step"]:
        self.model.train()
        start = self._resume()
        config = self.config
        checkpoints = set(config.checkpoint_steps)
        steps = progress_bar(
            range(start, config.steps), disable=not progress, desc=name, unit="step", initial=start, total=config.steps
        )
        for step in steps:
            if step != start and step % config.save_every == 0:
                self._save(step)
            if step in checkpoints:
                self._check_weights(step)
                self._call(step, self.callbacks)
            loss = self._loss(step)
            self.losses[step] = loss.detach()
            self._check_loss(step)
            self._update(step, loss)
        self._check_weights(config.steps)
        if start < config.steps:
            self._call(config.steps, self.callbacks)
            self._save(config.steps)
        else:
            self._call(config.steps, [each for each in self.callbacks if not _has_its_files(each, start)])
        return self.losses

    def _check_loss(self, step: int) -> None:
        loss = float(self.losses[step])
        if self.stop_if_diverged and not math.isfinite(loss):
            raise DivergedError(f"training diverged: the loss is {loss} at step {step}; {_WAY_OUT}")

    def _check_weights(self, step: int) -> None:
        """Refuse weights that are not finite, before they are measured or replace those that were saved."""
        if self.stop_if_diverged and not all(bool(w.isfinite().all()) for w in trainable_weights(self.model).values()):
            raise DivergedError(f"training diverged: weights are not finite before step {step}; {_WAY_OUT}")

    def _record(self) -> dict[str, Any]:
        """Return the settings with which a saved state must have been trained to be resumed."""
        # The optimiser's state follows the order of the parameters, which the TransformerLens major decides.
        major = package_versions()["transformer-lens"].split(".")[0]
        began = {"transformer-lens": major, "initial weights": fingerprint(self.model)}
        callbacks: dict[str, str] = {}
        for callback in self.measuring:
            for name, setting in callback.settings().items():
                callbacks[name] = f"{callbacks[name]} and {setting}" if name in callbacks else setting
        return {
            "task": self.task.to_config(),
            "training": settings_to_json(self.config),
            "model": {**model_config_to_json(config_of(self.model)), **began},
            "callbacks": callbacks,
        }

    def _loss(self, step: int) -> Float[Tensor, ""]:
        batch = self.task.train_batch(step, self.config.batch_size).to(device_of(self.model))
        with self.dropout_at(step):
            return _loss(self.model, self.task, batch)

    def _update(self, step: int, loss: Float[Tensor, ""]) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr_at(step) * group["share"]
        self.model.zero_grad(set_to_none=True)  # of frozen parameters too
        loss.backward()  # type: ignore[no-untyped-call]
        if self.config.clip is not None:
            parameters = list(chain.from_iterable(group["params"] for group in self.optimizer.param_groups))
            torch.nn.utils.clip_grad_norm_(parameters, self.config.clip)
        self.optimizer.step()

    def _resume(self) -> int:
        """Put the saved state in place, if there is one, and return the next step.

        Raises:
            InputError: if files of callbacks of earlier steps are lost.
        """
        if self.path is None or not self.path.exists():
            self._check_results_are_of_these_weights()
            return 0
        saved = load_training_state(self.path, self.optimizer, self.record, get_weights(self.model))
        past = [step for step in self.config.checkpoint_steps if step < saved.step]
        lost = [path for step in past for callback in self.callbacks for path in _lost_files(callback, step)]
        check_state_files(self.path, saved.step, lost)
        set_weights(self.model, saved.weights)
        self.losses[: saved.step] = saved.losses
        callbacks = {**saved.run.get("callbacks", {}), **self.record["callbacks"]}
        self.record = {**saved.run, "callbacks": callbacks}  # with the weights that it began from
        return saved.step

    def _check_results_are_of_these_weights(self) -> None:
        """Refuse folders of callbacks with results of a run that began from other weights."""
        results = [path for callback in self.measuring for path in callback.paths(0) if is_whole_file(path)]
        weights = fingerprint(self.model) if results else ""
        for path in results:
            if load_result(path).metadata.get("model") != weights:
                raise InputError(
                    f"{str(path)!r} was measured in a run that began from other weights; give each run a folder of its "
                    f"own, or delete {str(path.parent)!r}"
                )

    def _save(self, step: int) -> None:
        if self.path is not None:
            self._check_weights(step)
            save_training_state(self.path, get_weights(self.model), self.optimizer, step, self.losses, self.record)

    def _call(self, step: int, callbacks: Sequence[Callback]) -> None:
        for callback in callbacks:
            try:
                callback(step, self.model)
            except InputError as error:
                where, _, _ = str(error).partition(";")
                if not self.stop_if_diverged or not where.startswith("NaN or infinity"):
                    raise
                why = f"training diverged: {where} before step {step}, with lr {self.config.lr:g}"
                raise DivergedError(f"{why}; {_WAY_OUT}") from error


def _lost_files(callback: Callback, step: int) -> list[Path]:
    """Return the files of a checkpoint that are missing or, if they are mechclust's own, damaged."""
    if not isinstance(callback, FileCallback):
        return []
    ours = isinstance(callback, (AccuracyCallback, CheckpointCallback, ProbeCallback))
    return [path for path in callback.paths(step) if not (is_whole_file(path) if ours else path.exists())]


def _has_its_files(callback: Callback, step: int) -> bool:
    """Return whether all that a callback does at a checkpoint is to write files, and these exist."""
    return isinstance(callback, FileCallback) and not _lost_files(callback, step)


def _check_steps(callback: Callback, checkpoints: Sequence[int]) -> None:
    """Refuse a callback of mechclust that is to run at steps at which none does."""
    if not isinstance(callback, (CheckpointCallback, ProbeCallback)):
        return
    missed = sorted(set(callback.at or ()) - set(checkpoints))
    if missed:
        verb = "save" if isinstance(callback, CheckpointCallback) else "measure"
        listed = ", ".join(map(str, checkpoints[:_MAX_STEPS_LISTED]))
        more = ", …" if len(checkpoints) > _MAX_STEPS_LISTED else ""
        raise InputError(
            f"{type(callback).__name__} is to {verb} at step {missed[0]}, at which no callback runs; give some "
            f"of TrainConfig.checkpoint_steps ({listed}{more}), or set checkpoint_every"
        )


def _loss(model: Any, task: Any, batch: Batch) -> Float[Tensor, ""]:
    """Return the training loss, from logits at the loss's positions only if the model has ``logits_at_loss``."""
    if hasattr(model, "logits_at_loss") and hasattr(task, "loss_at"):
        assert batch.targets is not None
        return task.loss_at(model.logits_at_loss(batch), batch.targets[batch.loss_mask])  # type: ignore[no-any-return]
    # In a causal model padding on the right has no effect, and no mask is faster.
    causal = getattr(config_of(model), "attention", None) == "causal"
    logits = model(batch.tokens) if causal and batch.padded_right else forward(model, batch)
    return task.loss(logits, batch)  # type: ignore[no-any-return]
