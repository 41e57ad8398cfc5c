"""The networks that a study trains. Memory and time are estimated before anything is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from mechclust.models import ModelConfig, build_model
from mechclust.models.config import AnyConfig
from mechclust.models.weights import initial_weights
from mechclust.report.resources import check_resources
from mechclust.report.text import size_text
from mechclust.studies.kept import on_device
from mechclust.training import TrainConfig, train
from mechclust.training.optimizer import parameter_groups
from probes import HookedModel
from probes.engine.devices import free_device_memory
from tasks import InputError, Task

_BYTES_PER_WEIGHT = 16  # in float32: the weight, its gradient and Adam's two averages
_NUMBERS_PER_WIDTH = 16  # of a token in a block, which are kept for the backward pass, roughly
_TRIAL_S = 0.3  # in which steps are measured


@dataclass(frozen=True)
class Training:
    """A network that a study trains, and how.

    Attributes:
        model: the network.
        task: its data.
        config: how it is trained.
        times: how often it is trained, with other seeds.
    """

    model: AnyConfig
    task: Task
    config: TrainConfig
    times: int = 1

    @property
    def memory_bytes(self) -> int:
        """Memory for weights, optimiser and the activations of a batch, roughly."""
        d_vocab = self.model.d_vocab
        width = getattr(self.model, "d_model", None) or d_vocab
        inner = getattr(self.model, "d_mlp", None) or 4 * width
        layers = getattr(self.model, "n_layers", 1)
        n_ctx = self.task.n_ctx
        weights = layers * 2 * width * (2 * width + inner) + (2 * d_vocab + n_ctx) * width
        attention = 2 * getattr(self.model, "n_heads", 1) * n_ctx
        per_token = layers * (_NUMBERS_PER_WIDTH * width + 2 * inner + attention) + 2 * d_vocab
        return _BYTES_PER_WEIGHT * weights + 4 * self.config.batch_size * n_ctx * per_token

    def step_seconds(self, device: str) -> float:
        """Measure how long an optimiser step takes, with one thread: the mean of several, unless a step is slow."""
        model = on_device(build_model(self.model), device)
        with _one_thread():
            first = self._seconds(model, 1)
            n_steps = 1 + int(_TRIAL_S / first)
            return self._seconds(model, n_steps) / n_steps

    def _seconds(self, model: HookedModel, n_steps: int) -> float:
        config = replace(self.config, steps=n_steps, warmup=0, checkpoint_every=None)
        start = time.perf_counter()
        train(model, self.task, config, stop_if_diverged=False)
        return time.perf_counter() - start


def no_trainings(config: object) -> Sequence[Any]:
    """Return no trainings."""
    return ()


def check_trainings(trainings: Sequence[Training]) -> None:
    """Refuse a training that freezes parameters that the network lacks, or all of them. No network is built.

    Raises:
        InputError: naming the frozen parameters.

    Example:
        >>> from tasks import SkillSuite
        >>> model = ModelConfig(d_vocab=99, n_ctx=30, n_layers=1)
        >>> check_trainings([Training(model, SkillSuite(n_eval=4), TrainConfig(freeze=("blocks.1",)))])
        Traceback (most recent call last):
        ...
        tasks.errors.InputError: freeze has 'blocks.1', which is not a parameter ...
    """
    for training in trainings:
        if isinstance(training.model, ModelConfig):
            narrow = replace(training.model, d_vocab=1, n_ctx=1, d_model=1, n_heads=1, d_mlp=1)
            named = initial_weights(narrow)
            del named["unembed.b_U"]  # which stays 0
            parameter_groups(named, training.config, "network")


def trainings_without(trainings: Sequence[Training], held: Sequence[Training]) -> list[Training]:
    """Return the trainings that are not among those ``held``, as often as they are lacking there.

    Example:
        >>> from mechclust import ModelConfig, TrainConfig
        >>> from tasks import SparseModularAddition
        >>> task = SparseModularAddition()
        >>> of_seeds = [Training(ModelConfig(d_vocab=2, n_ctx=12), task, TrainConfig(steps=9), times=n) for n in (3, 5)]
        >>> [each.times for each in trainings_without([of_seeds[1]], [of_seeds[0]])]
        [2]
    """
    n_held = Counter[str]()
    for training in held:
        n_held[repr(replace(training, times=1))] += training.times
    lacking = []
    for training in trainings:
        kind = repr(replace(training, times=1))
        n = min(training.times, n_held[kind])
        n_held[kind] -= n
        if training.times > n:
            lacking.append(replace(training, times=training.times - n))
    return lacking


def check_cost(trainings: Sequence[Training], device: str, at_once: int, *, yes: bool) -> None:
    """Refuse trainings that do not fit in memory, or take more than a day unless that was agreed to.

    Args:
        trainings: the networks.
        device: device of the training.
        at_once: how many are trained at once.
        yes: whether more than a day was agreed to. If so, time is not estimated.

    Raises:
        InputError: with the estimate, and the free memory.
    """
    _check_memory(trainings, device, at_once)
    if not yes:
        seconds = training_seconds(trainings, device) / at_once
        check_resources(seconds, yes=yes, fewer="a smaller preset, or fewer steps or seeds")


def training_seconds(trainings: Sequence[Training], device: str) -> float:
    """Return how long one process trains these networks, from some measured steps of each kind of network.

    Measuring the networks takes additional time.

    Args:
        trainings: the networks.
        device: device of the training.
    """
    measured: dict[tuple[AnyConfig, int], float] = {}
    total = 0.0
    for training in trainings:
        key = (training.model.with_seed(0), training.config.batch_size)
        if key not in measured:
            measured[key] = training.step_seconds(device)
        total += measured[key] * training.config.steps * training.times
    return total


def _check_memory(trainings: Sequence[Training], device: str, at_once: int) -> None:
    free = free_device_memory(device)
    needed = at_once * max((training.memory_bytes for training in trainings), default=0)
    if free is not None and needed > free:
        raise InputError(
            f"training takes about {size_text(needed)} of memory ({at_once} at a time), but {device} has "
            f"{size_text(free)} free; give smaller networks or batches, or fewer --workers"
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as a worker does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
