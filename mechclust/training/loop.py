"""The training loop."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechclust.jobs import progress_bar
from mechclust.models.build import config_of
from mechclust.models.config import config_to_json
from mechclust.models.weights import get_weights, set_weights, trainable
from mechclust.training.callbacks import Callback, CheckpointCallback, KeepsFiles, ProbeCallback
from mechclust.training.config import TrainConfig
from mechclust.training.dropout import dropout_of
from mechclust.training.state import load_state, save_state
from mechclust.training.tuning.errors import DivergedError
from probes.engine.hooks import HookedModel, device_of, forward
from probes.engine.identity import fingerprint
from probes.store.files import remove_leftovers, versions
from probes.store.locks import locked
from tasks import Batch, InputError, Task
from tasks.settings import to_json

_LOWER = "give a smaller lr, or look for damaged examples"
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
) -> Tensor:
    """Train ``model`` on ``task``; resumes from ``out`` when a run was interrupted there.

    A model that computes the loss without a full forward pass (``logits_at_loss``) is trained that way,
    and its hook points do not fire; probe it in callbacks.

    An interrupted run (also by ``kill -9``) started again ends with the same bits as one that was
    not, on the same machine with the same number of threads. If a callback has lost a file of an earlier step,
    the steps up to it are trained again in memory, with a warning, and training continues from the saved state.

    Args:
        model: from ``build_model``, on any device; trained in place. To resume, give it with the weights from before
            training, or from when its state was last saved: a finished training may be called again.
        task: where the batches and the loss come from.
        config: the settings.
        out: folder of the resumable state (``state.safetensors``), for one process at a time; ``None``: keep nothing.
        callbacks: called at the checkpoints.
        progress: show a progress bar.
        name: label of the bar.
        stop_if_diverged: stop at the first step whose loss, or the weights after it, are not finite. What was saved
            before stays.

    Returns:
        ``[steps]`` training loss of every step, as the task defines it (float32).

    Raises:
        DivergedError: naming the step at which training diverged.
        InputError: when ``out`` holds a run with other settings or from other weights, or a damaged state, or
            another process trains there, when callbacks hold files of other settings, and when a lost file cannot be
            recreated, because the steps up to it give different numbers here.
    """
    run = _Training(model, task, config, None if out is None else Path(out), callbacks, stop_if_diverged)
    if out is None:
        return run(progress, name)
    with locked(out, wait=WAIT):
        remove_leftovers(out, recursive=True)  # also what callbacks were writing
        return run(progress, name)


class _Training:
    """A training run: where it stands, what it keeps."""

    def __init__(
        self,
        model: HookedModel,
        task: Task,
        config: TrainConfig,
        out: Path | None,
        callbacks: Sequence[Callback],
        stop_if_diverged: bool,
    ) -> None:
        self.model, self.task, self.config, self.callbacks = model, task, config, callbacks
        self.stop_if_diverged = stop_if_diverged
        self.path = None if out is None else out / "state.safetensors"
        self.optimizer = make_optimizer(_groups(model, config), config)
        self.losses, self.loss_of = torch.zeros(config.steps), _loss(model, task)
        self.dropout_at = dropout_of(model, config_of(model).seed)
        self.record = {} if out is None else self._record()

    def __call__(self, progress: bool, name: str) -> Tensor:
        lacking = self._lacking()
        self.model.train()
        start = self._resume(lacking, progress, name)
        config, checkpoints = self.config, set(self.config.checkpoint_steps)
        for step in step_bar(start, config.steps, progress, name):
            # Also before a file is made: after a kill what was measured has the bits of what is gone on from.
            if step != start and (step % config.save_every == 0 or lacking.get(step)):
                self._save(step)
            if step in checkpoints:
                self._check_weights(step)
                self._call(step, self.callbacks)
            loss = self._loss(step)
            self.losses[step] = loss.detach()
            self._check_loss(step)
            self._update(step, loss, self.optimizer)
        if start < config.steps:
            self._save(config.steps)
        self._check_weights(config.steps)
        self._call(config.steps, self.callbacks)
        return self.losses

    def _check_loss(self, step: int) -> None:
        loss = float(self.losses[step])
        if self.stop_if_diverged and not math.isfinite(loss):
            raise DivergedError(f"training diverged: the loss is {loss} at step {step}; {_LOWER}")

    def _check_weights(self, step: int) -> None:
        """Refuse weights that are not finite, before they are measured or replace those that were saved."""
        if self.stop_if_diverged and not all(bool(w.isfinite().all()) for w in trainable(self.model).values()):
            raise DivergedError(f"training diverged: weights are not finite before step {step}; {_LOWER}")

    def _record(self) -> dict[str, Any]:
        """What run a saved state belongs to."""
        # The optimiser's state follows the order of the parameters, which the TransformerLens major decides.
        major = versions()["transformer-lens"].split(".")[0]
        began = {"transformer-lens": major, "initial weights": fingerprint(self.model)}
        return {
            "task": self.task.to_config(),
            "training": to_json(self.config),
            "model": {**config_to_json(config_of(self.model)), **began},
        }

    def _loss(self, step: int) -> Tensor:
        batch = self.task.train_batch(step, self.config.batch_size).to(device_of(self.model))
        with self.dropout_at(step):
            return self.loss_of(batch)

    def _update(self, step: int, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.config.lr_at(step) * group["share"]
        self.model.zero_grad(set_to_none=True)  # of frozen parameters too
        loss.backward()  # type: ignore[no-untyped-call]
        if self.config.clip is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.config.clip)
        optimizer.step()

    def _lacking(self) -> dict[int, list[Path]]:
        """What callbacks lack of each checkpoint; refuses files of other settings, before any work."""
        checkpoints = self.config.checkpoint_steps
        for callback in self.callbacks:
            at = callback.at if isinstance(callback, (CheckpointCallback, ProbeCallback)) else None
            if missed := sorted(set(at or ()) - set(checkpoints)):
                what = "save" if isinstance(callback, CheckpointCallback) else "measure"
                raise InputError(
                    f"{type(callback).__name__} is to {what} at step {missed[0]}, at which no callback runs; give some "
                    f"of TrainConfig.checkpoint_steps ({', '.join(map(str, checkpoints[:8]))}"
                    f"{', …' if len(checkpoints) > 8 else ''}), or set checkpoint_every"
                )
        return {
            step: [path for callback in self._keeping() for path in callback.lacks(step, self.model)]
            for step in checkpoints
        }

    def _keeping(self) -> list[KeepsFiles]:
        return [callback for callback in self.callbacks if isinstance(callback, KeepsFiles)]

    def _resume(self, lacking: Mapping[int, Sequence[Path]], progress: bool, name: str) -> int:
        """Go on from the saved state, if there is one; returns the next step."""
        if self.path is None or not self.path.exists():
            return 0
        saved = load_state(self.path, self.optimizer, self.record, get_weights(self.model))
        lost = {step: paths for step, paths in lacking.items() if paths and step < saved.step}
        if lost:
            if saved.run != json.loads(json.dumps(self.record)):
                raise InputError(
                    f"{self._named(lost)} missing or damaged, and this model was trained already; build it again "
                    "(build_model(config)) to restore what is lost"
                )
            self._make(lost, saved.losses, progress, name)
        set_weights(self.model, saved.weights)
        self.losses[: saved.step] = saved.losses
        self.record = saved.run  # with the weights that it began from
        return saved.step

    def _make(self, lost: Mapping[int, Sequence[Path]], losses: Tensor, progress: bool, name: str) -> None:
        """Train up to what is lost, in memory, and measure it there; the saved state stays as it is."""
        last, optimizer = max(lost), make_optimizer(_groups(self.model, self.config), self.config)
        warnings.warn(
            f"{self._named(lost)} missing or damaged; the steps up to {last} are trained again to restore what is lost",
            stacklevel=5,
        )
        checkpoints = set(self.config.checkpoint_steps)
        for step in step_bar(0, last + 1, progress, f"{name}, what is lost"):
            loss = self._loss(step)
            found, held = loss.detach().cpu(), losses[step]
            if not torch.equal(found.view(torch.int32), held.view(torch.int32)):
                raise InputError(
                    f"{self._named(lost)} missing or damaged and cannot be recreated here: the loss of step {step} is "
                    f"{float(found):.9g}, not {float(held):.9g} as before; run the same command on the machine, and "
                    "with the versions and number of threads, that it was trained with, or give another folder"
                )
            if step in checkpoints:  # where nothing is lost, the weights are compared with those measured
                self._call(step, self._keeping())
            if step < last:
                self._update(step, loss, optimizer)

    def _named(self, lost: Mapping[int, Sequence[Path]]) -> str:
        """The first lost file, how many more, and the verb."""
        paths = [path for at in lost.values() for path in at]
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        folder = "" if self.path is None else f" of the training in {str(self.path.parent)!r}"
        return f"{str(paths[0])!r}{more}{folder} {'are' if more else 'is'}"

    def _save(self, step: int) -> None:
        if self.path is not None:
            self._check_weights(step)
            save_state(self.path, get_weights(self.model), self.optimizer, step, self.losses, self.record)

    def _call(self, step: int, callbacks: Sequence[Callback]) -> None:
        for callback in callbacks:
            callback(step, self.model)


def _groups(model: HookedModel, config: TrainConfig) -> list[dict[str, Any]]:
    """What to train, in groups of one share of the learning rate each."""
    named = trainable(model)
    shares = trained_names(named, config, type(model).__name__)
    return [{"params": [named[name] for name in names], "share": share} for share, names in shares.items()]


def trained_names(named: Mapping[str, Tensor], config: TrainConfig, kind: str) -> dict[float, list[str]]:
    """Which parameters are trained, by their share of the learning rate.

    Args:
        named: the parameters, as ``trainable`` names them.
        config: what is frozen, and how the rate falls from block to block.
        kind: what a message calls the model.

    Raises:
        InputError: where something is frozen that is not there, or nothing is left.
    """
    frozen = {start: [name for name in named if f"{name}.".startswith(f"{start}.")] for start in config.freeze}
    for start, names in frozen.items():
        if not names:
            raise InputError(
                f"freeze has {start!r}, which is not a parameter or part of the model (there are {', '.join(named)})"
            )
    block = {name: int(match[1]) for name in named if (match := re.match(r"blocks\.(\d+)\.", name))}
    top = max(block.values(), default=-1)
    groups: dict[int, list[str]] = {}
    for name in named:
        if any(name in names for names in frozen.values()):
            continue
        depth = top - block.get(name, -1 if name.startswith(("embed.", "pos_embed.")) else top)
        groups.setdefault(depth if config.layer_decay < 1 else 0, []).append(name)
    if not groups:
        raise InputError(f"this {kind} has nothing to train; let some parameters require gradients")
    return {config.layer_decay**depth: names for depth, names in groups.items()}


def make_optimizer(parameters: list[Tensor] | list[dict[str, Any]], config: TrainConfig) -> torch.optim.Optimizer:
    """PyTorch's own optimiser with the settings of ``config``."""
    decay: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, **decay)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, betas=config.betas, **decay)


def _loss(model: HookedModel, task: Task) -> Callable[[Batch], Tensor]:
    """Batch to training loss. A model that computes only where the loss counts is asked for that."""
    logits_at_loss, loss_at = getattr(model, "logits_at_loss", None), getattr(task, "loss_at", None)
    if logits_at_loss is not None and loss_at is not None:
        return lambda batch: loss_at(logits_at_loss(batch), batch.targets[batch.loss_mask])  # type: ignore[index]
    # In a causal model padding on the right changes nothing, and no mask is faster.
    causal = getattr(config_of(model), "attention", None) == "causal"
    return lambda batch: task.loss(
        model(batch.tokens) if causal and batch.padded_right else forward(model, batch), batch
    )


def step_bar(start: int, steps: int, progress: bool, name: str) -> Any:
    """The steps still to do, with a progress bar where one is wanted."""
    options = {"desc": name, "unit": "step", "initial": start, "total": steps}
    return progress_bar(range(start, steps), disable=not progress, **options)
