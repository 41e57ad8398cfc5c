"""The training loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mechclust.jobs import progress_bar
from mechclust.models.build import config_of
from mechclust.models.config import config_to_json
from mechclust.models.weights import get_weights, set_weights, trainable
from mechclust.training.config import TrainConfig
from mechclust.training.state import load_state, save_state
from probes.files import versions
from probes.hooks import HookedModel, device_of, forward
from tasks import Batch, InputError, Task
from tasks.settings import to_json


class Callback(Protocol):
    """Called at ``TrainConfig.checkpoint_steps``, before the step's update, and after the last one.

    After an interruption the calls since the last saved state come again, with the same weights.
    """

    def __call__(self, step: int, model: HookedModel) -> None: ...


def train(
    model: HookedModel,
    task: Task,
    config: TrainConfig,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    progress: bool = False,
    name: str = "training",
) -> Tensor:
    """Train ``model`` on ``task``; resumes from ``out`` when a run was interrupted there.

    A model that computes the loss without a full forward pass (``logits_at_loss``) is trained that way,
    and its hook points do not fire; probe it in callbacks.

    An interrupted run (also by ``kill -9``) started again ends with the same bits as one that was
    not, on the same machine with the same number of threads.

    Args:
        model: from ``build_model``, on any device; trained in place.
        task: where the batches and the loss come from.
        config: the settings.
        out: folder of the resumable state (``state.safetensors``); ``None``: keep nothing.
        callbacks: called at the checkpoints.
        progress: show a progress bar.
        name: its label.

    Returns:
        ``[steps]`` training loss of every step, as the task defines it (float32).

    Raises:
        InputError: when ``out`` holds a run with other settings, or a damaged state.
    """
    groups = _groups(model, config)
    parameters = [p for group in groups for p in group["params"]]
    optimizer = make_optimizer(groups, config)
    # The optimiser's state follows the order of the parameters, which the TransformerLens major decides.
    major = versions()["transformer-lens"].split(".")[0]
    run = {
        "task": task.to_config(),
        "training": to_json(config),
        "model": {**config_to_json(config_of(model)), "transformer-lens": major},
    }
    path = None if out is None else Path(out) / "state.safetensors"
    losses, start = torch.zeros(config.steps), 0
    if path is not None and path.exists():
        start, done, weights = load_state(path, optimizer, run)
        set_weights(model, weights)
        losses[:start] = done
    checkpoints, device = set(config.checkpoint_steps), device_of(model)
    loss_of = _loss(model, task)
    model.train()
    for step in step_bar(start, config.steps, progress, name):
        if step in checkpoints:
            for callback in callbacks:
                callback(step, model)
        if path is not None and step != start and step % config.save_every == 0:
            save_state(path, get_weights(model), optimizer, step, losses, run)
        for group in optimizer.param_groups:
            group["lr"] = config.lr_at(step) * group["share"]
        batch = task.train_batch(step, config.batch_size).to(device)
        loss = loss_of(batch)
        model.zero_grad(set_to_none=True)  # of frozen parameters too
        loss.backward()  # type: ignore[no-untyped-call]
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.step()
        losses[step] = loss.detach()
    for callback in callbacks:
        callback(config.steps, model)
    if path is not None and start < config.steps:
        save_state(path, get_weights(model), optimizer, config.steps, losses, run)
    return losses


def _groups(model: HookedModel, config: TrainConfig) -> list[dict[str, Any]]:
    """What to train, in groups of one share of the learning rate each."""
    named = trainable(model)
    frozen = {start: [name for name in named if f"{name}.".startswith(f"{start}.")] for start in config.freeze}
    for start, names in frozen.items():
        if not names:
            raise InputError(
                f"freeze has {start!r}, which is no parameter or part of the model (there are {', '.join(named)})"
            )
    block = {name: int(match[1]) for name in named if (match := re.match(r"blocks\.(\d+)\.", name))}
    top = max(block.values(), default=-1)
    groups: dict[int, list[Tensor]] = {}
    for name, parameter in named.items():
        if any(name in names for names in frozen.values()):
            continue
        depth = top - block.get(name, -1 if name.startswith(("embed.", "pos_embed.")) else top)
        groups.setdefault(depth if config.layer_decay < 1 else 0, []).append(parameter)
    if not groups:
        raise InputError(f"this {type(model).__name__} has nothing to train; let some parameters require gradients")
    return [{"params": params, "share": config.layer_decay**depth} for depth, params in groups.items()]


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
